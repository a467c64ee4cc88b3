// The output of one command as it comes: runs of text with style classes, the newest kept, the oldest dropped.

const MOST_CHARS = 256 * 1024;
const BLOCK_CHARS = 4 * 1024;
const BLOCK_RUNS = 200;
const MOST_LINE_CHARS = 64 * 1024; // a line that is longer is broken
const MOST_LINE_RUNS = 1000; // so is one of more colours, which would be laid out anew with each
const RUN_CHARS = 16; // what a run takes beside its text, as if it were text

export class Output {
  constructor(pane, note, follow) {
    this.pane = pane;
    this.note = note;
    this.follow = follow;
    this.atEnd = true;
    this.clear();
    pane.addEventListener("scroll", () => {
      this.atEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 24;
      follow.hidden = this.atEnd;
    }, { passive: true });
    follow.addEventListener("click", () => {
      pane.scrollTop = pane.scrollHeight;
      pane.focus();
    });
  }

  clear() {
    this.pane.replaceChildren();
    this.block = null;
    this.chars = this.filled = this.runs = 0;
    this.whole = this.dropped = false;
  }

  take(piece) {
    if (piece.reset) this.clear();
    if (piece.skipped) this.add(`⋯ ${piece.skipped.toLocaleString("en")} bytes are not shown ⋯\n`, "skipped");
    for (const [text, classes] of piece.runs) this.addLines(text, classes);
    while (this.chars > MOST_CHARS && this.pane.firstChild !== this.block) {
      this.chars -= this.pane.firstChild.textContent.length + RUN_CHARS * this.pane.firstChild.childElementCount;
      this.pane.firstChild.remove();
      this.dropped = true;
    }
    this.say(piece);
    if (this.atEnd) this.pane.scrollTop = this.pane.scrollHeight;
  }

  // A block holds whole lines, so that a browser lays out what is new and in sight, and not all of it each time.
  addLines(text, classes) {
    let rest = text;
    while (rest.length > BLOCK_CHARS) {
      const end = rest.lastIndexOf("\n", BLOCK_CHARS);
      const cut = end < 0 ? BLOCK_CHARS : end + 1;
      this.add(rest.slice(0, cut), classes);
      rest = rest.slice(cut);
    }
    if (rest) this.add(rest, classes);
  }

  add(text, classes) {
    const full = this.filled > BLOCK_CHARS || this.runs > BLOCK_RUNS;
    if (!this.block || (full && this.whole) || this.filled > MOST_LINE_CHARS || this.runs >= MOST_LINE_RUNS) {
      this.block = document.createElement("span");
      this.block.className = "lines";
      this.filled = this.runs = 0;
      this.pane.append(this.block);
    }
    const span = document.createElement("span");
    if (classes) span.className = classes;
    span.textContent = text;
    this.block.append(span);
    this.whole = text.endsWith("\n");
    this.filled += text.length;
    this.runs += 1;
    this.chars += text.length + RUN_CHARS;
  }

  say(piece) {
    let text = "live";
    if (piece.failed) text = piece.failed;
    else if (piece.eof) text = "ended";
    if (this.dropped) text += " · the beginning is no longer shown";
    if (this.note.textContent !== text) this.note.textContent = text;
  }
}
