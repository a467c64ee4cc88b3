"""What an open page is told: changes, output, and the end of the session; and that slow browsers cost nothing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.changes import Changes
from gateway.http.console import events as events_module
from gateway.http.console.events import MAX_STREAMS, MAX_STREAMS_OF_ONE, Streams, output_of
from runner import api
from runner.api import ErrorCode, RunnerError
from tests.gateway.core.support import NOW
from tests.gateway.http.console.rig import Browser, Stream, browser, held, opened, soon, visiting

pytestmark = pytest.mark.timeout(60)


class Ring:
    """A command's output in the runner's manner: the newest bytes, and how many are gone. Stands in for the two calls
    of an application that a stream makes."""

    def __init__(self, kept: int = 256 * 1024) -> None:
        self.kept = kept
        self.data = ""
        self.total = 0
        self.ended = False
        self.failure: RunnerError | None = None
        self.written = asyncio.Event()
        self.changes = Changes()
        self.reads: list[api.ReadProcess] = []

    def write(self, text: str) -> None:
        self.total += len(text)
        self.data = (self.data + text)[-self.kept :]
        self.written.set()

    def end(self) -> None:
        self.ended = True
        self.written.set()

    @property
    def start(self) -> int:
        return self.total - len(self.data)

    async def process_status(self, request: api.QueryProcess) -> api.ProcessStatus:
        return api.ProcessStatus(
            process_id=request.process_id,
            state="running",
            output_total=self.total,
            output_retained_from=self.start,
            eof=self.ended,
            started_at_utc=NOW,
            isolation=api.Isolation(command_sandbox="linux-sandbox", network="restricted", protections={}),
        )

    async def read_process(self, request: api.ReadProcess) -> api.ProcessOutput:
        self.reads.append(request)
        if request.wait_ms and request.cursor >= self.total and not self.ended:
            self.written.clear()
            await self.written.wait()
        at = max(request.cursor, self.start)
        chunk = self.data[at - self.start :][: request.max_bytes]
        return api.ProcessOutput(
            process_id=request.process_id,
            cursor=at + len(chunk),
            chunk=chunk,
            encoding="utf-8",
            eof=self.ended and at + len(chunk) == self.total,
            output_lost=request.cursor < self.start,
            retained_from=self.start,
        )


@pytest.fixture(autouse=True)
def no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses that spare browsers would only make tests slow."""
    monkeypatch.setattr(events_module, "GAP_S", 0.0)
    monkeypatch.setattr(events_module, "OUTPUT_GAP_S", 0.0)


def text_of(piece: dict[str, Any]) -> str:
    return "".join(text for text, _ in piece["runs"])


async def stream(b: Browser, query: str = "", **headers: str) -> Stream:
    opened_stream = Stream(b, "/console/events", query, headers)
    await opened_stream.until("event: ")
    return opened_stream


# --- changes ----------------------------------------------------------------------------------------------------------
async def test_a_mark_changes_with_every_change_and_is_no_other_runs() -> None:
    changes, other = Changes(), Changes()
    assert changes.mark != other.mark
    before = changes.mark
    waiting = asyncio.ensure_future(changes.after(before))
    await asyncio.sleep(0)
    assert not waiting.done()
    changes.note()
    assert await soon(waiting) == changes.mark != before
    assert await soon(changes.after(before)) == changes.mark


@pytest.mark.covers("WORK-2", "APPR-3")
async def test_whatever_becomes_different_is_told(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        app = b.core.application
        await b.login()

        async def told(step: Any) -> None:
            before = app.changes.mark
            await soon(step)
            assert await soon(app.changes.after(before)) != before

        await told(held(b))
        await told(opened(b))
        (work,) = await soon(app.inbox.listed(None))
        await told(app.inbox.draft(work.work_id, "x", "note", "next_work"))
        await told(app.apply_patch("free", "*** Begin Patch\n*** Delete File: a\n*** End Patch"))
        await told(b.core.exec("free"))
        (process_id,) = b.core.runner.running
        before = app.changes.mark
        b.core.runner.exit(process_id)
        assert app.changes.mark != before
        await told(app.reload())
        before = app.changes.mark
        await soon(app.readiness())
        await soon(app.workspace_info("demo"))
        await b.get("/")
        assert app.changes.mark == before


async def test_a_page_that_is_behind_is_told_at_once_and_one_that_is_not_hears_a_beat(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        mark = b.core.application.changes.mark
        fresh, behind = await stream(b, f"seen={mark}"), await stream(b, "seen=an-older-one")
        again = await stream(b, "seen=an-older-one", **{"last-event-id": mark})
        assert (fresh.names(), behind.names(), again.names()) == (["beat"], ["change"], ["beat"])
        await held(b)
        for one in (fresh, behind, again):
            await one.until(f"id: {b.core.application.changes.mark}")
            assert one.names()[-1] == "change"
            await one.close()


async def test_a_browser_that_takes_nothing_is_told_once_of_many_changes(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        slow = await stream(b, f"seen={b.core.application.changes.mark}")
        slow.room.clear()
        for _ in range(200):
            b.core.application.changes.note()
            await asyncio.sleep(0)
        slow.room.set()
        await slow.until(f"id: {b.core.application.changes.mark}")
        assert slow.names().count("change") <= 3
        await slow.close()


async def test_a_stream_ends_with_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "BEAT_S", 0.01)
    async with browser(tmp_path) as b:
        await b.login()
        watching = await stream(b)
        await watching.until("event: beat")
        await b.post("/console/logout")
        await watching.until("event: ended")
        await asyncio.wait_for(watching.task, 30)


async def test_a_logout_ends_every_stream_of_its_session_at_once_and_no_other(tmp_path: Path) -> None:
    async with browser(tmp_path) as b, visiting(b.core) as other:
        await b.login()
        await other.login()
        mine, theirs = [await stream(b), await stream(b)], await stream(other)
        begun = asyncio.get_running_loop().time()
        await b.post("/console/logout")
        for one in mine:
            await one.until("event: ended")
            await asyncio.wait_for(one.task, 30)
        assert asyncio.get_running_loop().time() - begun < events_module.BEAT_S
        assert "ended" not in theirs.names()
        assert not theirs.task.done()
        await theirs.close()


async def test_streams_have_a_bound_and_give_their_places_back(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        streams = [await stream(b) for _ in range(MAX_STREAMS_OF_ONE)]
        assert (await b.get("/console/events", 503)).headers["retry-after"]
        async with visiting(b.core) as other:
            await other.login()
            one = await stream(other)
            await one.close()
        await streams.pop().close()
        streams.append(await stream(b))
        for one in streams:
            await one.close()


def test_all_sessions_together_have_a_bound() -> None:
    streams = Streams()
    assert all(streams.enter(str(n % 20)) for n in range(MAX_STREAMS))
    assert not streams.enter("somebody else")
    streams.leave("0")
    assert streams.enter("somebody else")


async def test_streams_that_come_together_are_no_more_than_the_bound(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        coming = [Stream(b, "/console/events") for _ in range(3 * MAX_STREAMS_OF_ONE)]
        for one in coming:
            await soon(one.arrived.wait())
        assert sorted(one.status for one in coming) == [200] * MAX_STREAMS_OF_ONE + [503] * 2 * MAX_STREAMS_OF_ONE
        for one in coming:
            await one.close()
        again = await stream(b)
        await again.close()


# --- output -----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-4")
async def test_output_comes_as_runs_from_its_tail_to_its_end() -> None:
    ring = Ring()
    ring.write("\x1b[32mgreen\x1b[0m plain")
    pieces = output_of(ring, "proc_1")  # type: ignore[arg-type]
    first = await soon(anext(pieces))
    assert first == {"reset": True, "runs": [["green", "f2"], [" plain", ""]]}
    waiting = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    ring.write("<b>more</b>")
    assert await soon(waiting) == {"runs": [["<b>more</b>", ""]]}
    ring.end()
    assert await soon(anext(pieces)) == {"runs": [], "eof": True}
    with pytest.raises(StopAsyncIteration):
        await soon(anext(pieces))


@pytest.mark.covers("PROC-4")
async def test_a_flood_is_shown_by_its_tail_in_bounded_pieces_and_what_is_gone_is_counted() -> None:
    ring = Ring()
    ring.write("x" * 10_000_000)
    pieces = output_of(ring, "proc_1")  # type: ignore[arg-type]
    first = await soon(anext(pieces))
    assert first["skipped"] == 10_000_000 - events_module.TAIL_BYTES
    shown_bytes = len(text_of(first))
    skipped = first["skipped"]
    for _ in range(20):
        ring.write("y" * 3_000_000)
        piece = await soon(anext(pieces))
        assert len(json.dumps(piece)) < 2 * events_module.OUTPUT_BYTES
        shown_bytes += len(text_of(piece))
        skipped += piece.get("skipped", 0)
    assert shown_bytes <= 21 * events_module.OUTPUT_BYTES
    assert skipped + shown_bytes == ring.reads[-1].cursor + piece.get("skipped", 0) + len(text_of(piece))
    await pieces.aclose()


async def test_a_command_that_is_gone_is_said(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        watching = await stream(b, "process=proc_nope")
        text = await watching.until('"failed"')
        assert "no process" in text
        await held(b)
        await watching.until("event: change")
        await watching.close()


async def test_an_answer_of_the_runner_that_the_handle_is_gone_ends_the_output(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        process_id, _ = await b.core.exec("free")
        b.core.runner.answers["process_status"] = RunnerError(ErrorCode.PROCESS_NOT_FOUND, "gone")
        (piece,) = [piece async for piece in output_of(b.core.application, process_id)]
        assert piece == {"runs": [], "failed": "gone"}
