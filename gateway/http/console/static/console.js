// Keeps the page up to date: hears of changes, fetches the page anew, and makes what is shown like it. Forms are sent
// without leaving the page. Without this script every page works all the same, and shows what was when it was loaded.

import { dirty, morph } from "./morph.js";
import { Output } from "./output.js";
import { wireQueue } from "./queue.js";

const SILENCE_MS = 40_000; // the server beats every 15 s
const RETRY_MS = [500, 1000, 2000, 4000];
const GAP_MS = 250; // between two refreshes

const here = () => document.body;
const byId = (id) => document.getElementById(id);

// --- the page -------------------------------------------------------------------------------------------------------
const state = { path: location.pathname, fetching: false, again: false, turn: 0 };

/** Fetches a document; resolves to {status, page, url}. Parsing is the browser's own: no text becomes markup here. */
function load(method, url, body) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, url);
    request.responseType = "document";
    request.timeout = 60_000;
    request.onload = () => resolve({ status: request.status, page: request.responseXML, url: request.responseURL });
    request.onerror = request.ontimeout = () => reject(new Error("no answer"));
    request.send(body);
  });
}

function show({ status, page, url }) {
  if (!page?.querySelector("main")) return;
  const there = new URL(url, location.href);
  if (there.pathname === "/console/login" || status === 401) {
    toLogin();
    return;
  }
  if (page.documentElement.dataset.build && page.documentElement.dataset.build !== document.documentElement.dataset.build) {
    location.reload(); // another version of the program serves now
    return;
  }
  if (status >= 400 && !page.body.dataset.mark) { // no page of its own: say why above what was shown
    say("problem", page.querySelector(".problem")?.textContent ?? "This cannot be shown.");
    return;
  }
  const focused = document.activeElement;
  const waiting = Number(here().dataset.pending);
  for (const part of ["header.top nav", "main"]) morph(document.querySelector(part), page.querySelector(part));
  for (const name of ["mark", "live", "pending"]) here().dataset[name] = page.body.dataset[name];
  document.title = page.title;
  if (focused !== document.activeElement && focused?.isConnected) focused.focus();
  dress();
  const now = Number(here().dataset.pending);
  if (now > waiting) byId("announce").textContent = now === 1 ? "One call waits for your decision." : `${now} calls wait for your decision.`;
}

/** The session is over. A page with something typed in it stays, and goes on once there is a session again. */
function toLogin() {
  const login = `/console/login?next=${encodeURIComponent(location.pathname + location.search)}`;
  if (![...document.querySelectorAll("form[data-keep]")].some(dirty)) {
    location.assign(login);
    return;
  }
  if (!byId("relogin")) {
    say("problem", "The session is over. What you typed is still here: ").id = "relogin";
    const link = document.createElement("a");
    link.href = login;
    link.target = "_blank";
    link.textContent = "log in in another tab";
    byId("relogin").append(link, ", and go on here.");
  }
  if (line.stream) lost();
}

function say(kind, text) {
  const line = document.createElement("p");
  line.className = kind;
  line.setAttribute("role", kind === "problem" ? "alert" : "status");
  line.textContent = text;
  byId("messages").replaceChildren(line);
  return line;
}

/** What is for this reader alone: their own time, and how many things wait. */
function dress() {
  const waiting = Number(here().dataset.pending);
  document.title = (waiting ? `(${waiting}) ` : "") + document.title.replace(/^\(\d+\) /, "");
  const today = new Date().toDateString();
  for (const time of document.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(time.dateTime);
    time.title = `${time.textContent}`;
    const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    time.textContent = at.toDateString() === today ? clock : `${at.toLocaleDateString()} ${clock}`;
  }
}

async function refresh() {
  if (state.fetching) {
    state.again = true;
    return;
  }
  state.fetching = true;
  try {
    do {
      state.again = false;
      const turn = state.turn;
      const answer = await load("GET", location.pathname + location.search.replace(/[?&]said=\w+/, ""));
      if (turn === state.turn) show(keepSaid(answer)); // a form was sent meanwhile: its answer is newer
      await new Promise((resolve) => setTimeout(resolve, GAP_MS));
    } while (state.again);
  } catch {
    // The stream notices too, and says so.
  } finally {
    state.fetching = false;
  }
}

/** What was said of the last form stays until the next one. */
function keepSaid(answer) {
  const fresh = answer.page?.getElementById("messages");
  if (fresh && !fresh.childElementCount) {
    for (const line of byId("messages").children) fresh.append(answer.page.importNode(line, true));
  }
  return answer;
}

// --- forms ----------------------------------------------------------------------------------------------------------
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.hasAttribute("data-native")) disconnect(); // it leads away, and what the stream says of that comes too late
  if (form.method !== "post" || form.hasAttribute("data-native") || event.defaultPrevented) return;
  event.preventDefault();
  if (form.getAttribute("aria-busy") === "true") return;
  const fields = new URLSearchParams(new FormData(form, event.submitter));
  form.setAttribute("aria-busy", "true");
  state.turn += 1;
  try {
    const answer = await load("POST", form.action, fields);
    state.turn += 1;
    form.setAttribute("data-submitted", "");
    if (answer.status < 400) form.reset();
    for (const field of form.elements) if (answer.status < 400 && "defaultValue" in field && field.type !== "hidden") field.value = field.defaultValue;
    for (const note of form.querySelectorAll(".stale")) note.hidden = true;
    const there = new URL(answer.url, location.href);
    if (form.hasAttribute("data-stay") && there.pathname !== "/console/login" && answer.status !== 401) {
      // The answer is another page than the one that has the button.
      const done = answer.status < 400;
      const line = answer.page?.querySelector(done ? "#said" : ".problem")?.textContent;
      say(done ? "said" : "problem", line ?? (done ? "Done." : "Not done."));
      refresh();
      return;
    }
    const moved = answer.status < 400 && there.pathname !== location.pathname;
    if (moved && there.pathname !== "/console/login") {
      history.pushState(null, "", there.pathname);
      state.path = there.pathname;
    }
    show(answer);
    if (moved) byId("main").focus();
    if (answer.status < 400) form.closest("details")?.removeAttribute("open");
    if (answer.status >= 400) byId("messages").scrollIntoView({ block: "nearest" });
    if (moved) connect(); // another page, perhaps with another command
  } catch {
    say("problem", "The answer was lost: it may have happened or not. Look at the state before you do it again.");
    refresh();
  } finally {
    form.removeAttribute("aria-busy");
    form.removeAttribute("data-submitted");
  }
});
window.addEventListener("popstate", () => {
  if (location.pathname !== state.path) location.reload(); // and not for a step within the page
});

// --- the connection -------------------------------------------------------------------------------------------------
const line = { stream: null, watch: 0, retry: 0, tries: 0, output: null, lostAt: null };

function tell(name, text) {
  const place = byId("connection");
  if (place.dataset.state === name) return;
  place.dataset.state = name;
  place.querySelector(".text").textContent = text;
}

function lost() {
  line.lostAt ??= new Date();
  tell("lost", "connection lost");
  const box = byId("lost");
  if (box.hidden) {
    box.textContent = `The connection is lost. What you see is from ${line.lostAt.toLocaleTimeString()}. It is tried again by itself.`;
    box.hidden = false;
  }
  disconnect();
  if (document.visibilityState === "hidden") return;
  line.retry = setTimeout(connect, RETRY_MS[Math.min(line.tries, RETRY_MS.length - 1)]);
  line.tries += 1;
}

function heard() {
  clearTimeout(line.watch);
  line.watch = setTimeout(lost, SILENCE_MS);
  line.tries = 0;
  if (line.lostAt) {
    line.lostAt = null;
    byId("lost").hidden = true;
    byId("relogin")?.remove();
    refresh(); // the session may be over, or the program another one
  }
  tell("live", "live");
}

function disconnect() {
  clearTimeout(line.watch);
  clearTimeout(line.retry);
  line.stream?.close();
  line.stream = null;
}

function connect() {
  disconnect();
  const query = new URLSearchParams({ seen: here().dataset.mark });
  if (here().dataset.live) query.set("process", here().dataset.live);
  const stream = new EventSource(`/console/events?${query}`);
  line.stream = stream;
  line.watch = setTimeout(lost, SILENCE_MS);
  const pane = byId("output");
  if (!pane) line.output = null;
  else if (line.output?.pane !== pane) line.output = new Output(pane, byId("output-note"), byId("follow"));
  stream.addEventListener("beat", heard);
  stream.addEventListener("change", () => {
    heard();
    refresh();
  });
  stream.addEventListener("output", (event) => {
    heard();
    const piece = JSON.parse(event.data);
    line.output?.take(piece);
    if (piece.eof || piece.failed) refresh();
  });
  stream.addEventListener("ended", toLogin);
  stream.onerror = () => {
    if (line.stream !== stream) return;
    lost();
    probe();
  };
}

/** A stream that is refused does not say why; the page does, by leading to the login. */
async function probe() {
  try {
    const answer = await load("GET", location.pathname + location.search);
    if (new URL(answer.url, location.href).pathname === "/console/login") show(answer);
  } catch {
    // Nobody answers; it is tried again.
  }
}

// Browsers open few connections to one host: a page that nobody sees holds none.
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "hidden") disconnect();
  else connect();
});
window.addEventListener("online", connect);
window.addEventListener("pagehide", disconnect);
window.addEventListener("pageshow", (event) => {
  if (event.persisted) connect();
});

if (new URLSearchParams(location.search).has("said")) {
  const query = new URLSearchParams(location.search);
  query.delete("said");
  history.replaceState(null, "", location.pathname + (query.size ? `?${query}` : ""));
}
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
dress();
wireQueue();
connect();
