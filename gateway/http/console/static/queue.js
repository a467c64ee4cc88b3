// Moves instructions of a queue by drag or by arrow keys. Both fill in and send a form that the page came with.

const queueOf = (node) => node.closest?.("[data-queue]") ?? null;
const itemOf = (node) => node.closest?.("[data-queue] > [data-movable]") ?? null;
let dragged = null;

function clear() {
  for (const item of document.querySelectorAll(".drop-before, .drop-after, .dragged")) {
    item.classList.remove("drop-before", "drop-after", "dragged");
  }
}

function isBelow(event, item) {
  const box = item.getBoundingClientRect();
  return event.clientY > box.top + box.height / 2;
}

export function wireQueue() {
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches?.(".handle") || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    const by = event.key === "ArrowUp" ? "-1" : "1";
    const button = itemOf(event.target)?.querySelector(`button[name="by"][value="${by}"]`);
    if (button && !button.disabled) button.form.requestSubmit(button);
  });
  document.addEventListener("dragstart", (event) => {
    const item = event.target.matches?.(".handle") ? itemOf(event.target) : null;
    if (!item) return;
    dragged = item;
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", item.dataset.id);
    event.dataTransfer.setDragImage(item, 8, 8);
    item.classList.add("dragged");
  });
  document.addEventListener("dragover", (event) => {
    const over = dragged && itemOf(event.target);
    if (!over || queueOf(over) !== queueOf(dragged)) return;
    event.preventDefault();
    for (const item of queueOf(over).children) item.classList.remove("drop-before", "drop-after");
    if (over !== dragged) over.classList.add(isBelow(event, over) ? "drop-after" : "drop-before");
  });
  document.addEventListener("drop", (event) => {
    const over = dragged && itemOf(event.target);
    if (!over || queueOf(over) !== queueOf(dragged)) return;
    event.preventDefault();
    const queue = queueOf(over);
    const moved = dragged;
    const order = [...queue.querySelectorAll(":scope > [data-movable]")].filter((item) => item !== moved).map((item) => item.dataset.id);
    if (over !== moved) {
      order.splice(order.indexOf(over.dataset.id) + (isBelow(event, over) ? 1 : 0), 0, moved.dataset.id);
      const form = document.getElementById(queue.dataset.order);
      const field = form.elements.namedItem("intent_ids");
      if (field.value !== order.join(" ")) {
        field.value = order.join(" ");
        form.requestSubmit();
      }
    }
    clear();
    dragged = null;
  });
  document.addEventListener("dragend", () => {
    clear();
    dragged = null;
  });
}
