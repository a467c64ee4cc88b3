// Makes the shown page like a fresh one and leaves alone what a person is at: focus, scrolling, opened folds, and forms
// in which something was typed. Works on parsed documents; no text ever becomes markup here.

const KEPT_ATTRIBUTES = new Map([["DETAILS", ["open"]], ["FORM", ["aria-busy", "data-submitted"]]]);

// A select without a chosen default has its first option selected, which nobody chose.
function hasDefault(select) {
  return [...select.options].some((option) => option.defaultSelected);
}

function isTouched(select) {
  return hasDefault(select) ? [...select.options].some((o) => o.selected !== o.defaultSelected) : select.selectedIndex > 0;
}

function keptForms(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return [];
  const forms = [...node.querySelectorAll("form[data-keep]")];
  if (node.matches("form[data-keep]")) forms.push(node);
  return forms.filter((form) => !form.hasAttribute("data-submitted") && dirty(form));
}

/** Whether something was typed or chosen in this form that the page did not come with. */
export function dirty(form) {
  // What was sent and refused comes back with the page, and is no less typed for that.
  return form.hasAttribute("data-typed") || [...form.elements].some((field) => {
    if (field.type === "hidden" || field.tagName === "BUTTON") return false;
    return field.tagName === "SELECT" ? isTouched(field) : field.value !== field.defaultValue;
  });
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id || "" : "";
}

function isSameKind(live, fresh) {
  return live.nodeType === fresh.nodeType && live.nodeName === fresh.nodeName && keyOf(live) === keyOf(fresh);
}

function attributes(live, fresh) {
  const kept = KEPT_ATTRIBUTES.get(live.tagName) ?? [];
  for (const { name } of [...live.attributes]) {
    if (!fresh.hasAttribute(name) && !kept.includes(name)) live.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (!kept.includes(name) && live.getAttribute(name) !== value) live.setAttribute(name, value);
  }
}

/** Makes `live` like `fresh`. Both are elements of the same kind. */
export function morph(live, fresh) {
  if (live.nodeType !== Node.ELEMENT_NODE) {
    if (live.nodeValue !== fresh.nodeValue) live.nodeValue = fresh.nodeValue;
    return;
  }
  if (live.hasAttribute("data-keep-text") || live.hasAttribute("data-filled") || live.tagName === "SCRIPT") return;
  if (live.matches("form[data-keep]") && !live.hasAttribute("data-submitted") && dirty(live)) {
    const stale = live.querySelector(".stale");
    if (stale && live.dataset.version !== fresh.dataset.version) stale.hidden = false;
    const [key, now] = [live, fresh].map((form) => form.elements.namedItem("form_key"));
    if (key && now) key.value = now.value; // of the session that there is now
    return;
  }
  const isTime = live.tagName === "TIME" && live.getAttribute("datetime") === fresh.getAttribute("datetime");
  if (isTime) return; // it is in the reader's own words already
  attributes(live, fresh);
  if (live.tagName === "TEXTAREA") {
    if (live.defaultValue !== fresh.defaultValue || live.value !== fresh.defaultValue) {
      live.defaultValue = fresh.defaultValue;
      live.value = fresh.defaultValue;
    }
    return;
  }
  children(live, fresh);
  if (live.tagName === "SELECT") {
    const chosen = [...live.options].findIndex((option) => option.defaultSelected);
    live.selectedIndex = Math.max(chosen, 0);
  } else if (live.tagName === "INPUT" && live.value !== live.defaultValue && document.activeElement !== live) {
    live.value = live.defaultValue;
  }
}

function children(live, fresh) {
  const keyed = new Map();
  for (const child of live.childNodes) {
    const key = keyOf(child);
    if (key) keyed.set(key, child);
  }
  let at = live.firstChild;
  for (const next of [...fresh.childNodes]) {
    if (next.nodeName === "SCRIPT") continue;
    const key = keyOf(next);
    let found = null;
    if (key) {
      const candidate = keyed.get(key);
      if (candidate && candidate.nodeName === next.nodeName) found = candidate;
    } else if (at && isSameKind(at, next)) {
      found = at;
    }
    if (!found) {
      live.insertBefore(document.importNode(next, true), at);
      continue;
    }
    if (found === at) at = at.nextSibling;
    else live.insertBefore(found, at);
    morph(found, next);
  }
  while (at) {
    const after = at.nextSibling;
    if (!keptForms(at).length) at.remove();
    else for (const form of keptForms(at)) markGone(form);
    at = after;
  }
}

// What the form was for is gone; what was typed stays until the person leaves the page.
function markGone(form) {
  for (const button of form.querySelectorAll("button")) button.disabled = true;
  const stale = form.querySelector(".stale") ?? form.insertBefore(document.createElement("p"), form.firstChild);
  stale.className = "stale problem";
  stale.textContent = "This can no longer be changed. What you typed is kept here until you leave the page.";
  stale.hidden = false;
}
