// The output of one command as it comes: runs of text with style classes, the newest kept, the oldest dropped.

const MOST_CHARS = 512 * 1024;
const MOST_NODES = 6000;

export class Output {
  constructor(pane, note, follow) {
    this.pane = pane;
    this.note = note;
    this.follow = follow;
    this.chars = 0;
    this.dropped = false;
    this.atEnd = true;
    pane.addEventListener("scroll", () => {
      this.atEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 24;
      follow.hidden = this.atEnd;
    }, { passive: true });
    follow.addEventListener("click", () => {
      pane.scrollTop = pane.scrollHeight;
      pane.focus();
    });
  }

  take(piece) {
    if (piece.reset) {
      this.pane.replaceChildren();
      this.chars = 0;
      this.dropped = false;
    }
    if (piece.skipped) this.add(`⋯ ${piece.skipped.toLocaleString()} bytes are not shown ⋯\n`, "skipped");
    for (const [text, classes] of piece.runs) this.add(text, classes);
    while (this.pane.childNodes.length > 1 && (this.chars > MOST_CHARS || this.pane.childNodes.length > MOST_NODES)) {
      this.chars -= this.pane.firstChild.textContent.length;
      this.pane.firstChild.remove();
      this.dropped = true;
    }
    this.say(piece);
    if (this.atEnd) this.pane.scrollTop = this.pane.scrollHeight;
  }

  add(text, classes) {
    const span = document.createElement("span");
    if (classes) span.className = classes;
    span.textContent = text;
    this.pane.append(span);
    this.chars += text.length;
  }

  say(piece) {
    let text = "live";
    if (piece.failed) text = piece.failed;
    else if (piece.eof) text = "ended";
    if (this.dropped) text += " · the beginning is no longer shown";
    if (this.note.textContent !== text) this.note.textContent = text;
  }
}
