"""What one workspace may take of the proxy: threads that resolve, and turns of parsing."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Iterator

import pytest

from adapters.egress_proxy import resolver
from adapters.egress_proxy.http import MAX_LINES_A_TURN, BodyMeter
from adapters.egress_proxy.resolver import NotResolved, SystemResolver
from adapters.egress_proxy.session import _send_body
from adapters.egress_proxy.share import Share, Shares
from adapters.egress_proxy.turns import MAX_RESOLVING, SPARE, Turns

BOUND_S = 15.0
pytestmark = pytest.mark.covers("NET-4")


class Stuck:
    """A name server that answers for `slow.test` once it is let go, and for others at once."""

    def __init__(self) -> None:
        self.under_way = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.asked: list[str] = []

    def __call__(self, name: str, port: int, **_: object) -> list[object]:
        self.asked.append(name)
        if name == "slow.test":
            self.under_way.release()
            assert self.let_go.wait(BOUND_S)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]

    async def holds(self, number: int) -> None:
        for _ in range(number):
            assert await asyncio.to_thread(self.under_way.acquire, timeout=BOUND_S)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    made = Stuck()
    monkeypatch.setattr("adapters.egress_proxy.resolver.socket.getaddrinfo", made)
    yield made
    made.let_go.set()


async def test_names_that_nobody_waits_for_any_more_hold_their_turns_until_the_threads_are_back(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, system = Shares(), SystemResolver()

    async def look_up(name: str, workspace: str) -> object:
        return await system.addresses(name, 80, shares.of(workspace))

    waiting = [asyncio.create_task(look_up("slow.test", "a")) for _ in range(MAX_RESOLVING)]
    await stuck.holds(MAX_RESOLVING)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    del waiting, task
    gc.collect()  # the workspace's last command has ended
    with monkeypatch.context() as hurry:
        hurry.setattr(resolver, "RESOLVE_TIMEOUT_S", 0.05)
        with pytest.raises(NotResolved, match="too many names"):
            await look_up("more.test", "a")
    assert "more.test" not in stuck.asked
    assert await look_up("other.test", "b"), "another workspace does not notice"
    stuck.let_go.set()
    async with asyncio.timeout(BOUND_S):
        assert await look_up("more.test", "a")


HOSTILE = 6
"""Workspaces that each want all they may: more than there is."""


async def test_workspaces_that_hold_every_spare_thread_leave_each_other_one_its_first(stuck: Stuck) -> None:
    shares, system = Shares(), SystemResolver()
    assert HOSTILE * (MAX_RESOLVING - 1) > SPARE

    async def look_up(name: str, workspace: str) -> object:
        return await system.addresses(name, 80, shares.of(workspace))

    hostile = [
        asyncio.create_task(look_up("slow.test", f"hostile {n}")) for n in range(HOSTILE) for _ in range(MAX_RESOLVING)
    ]
    # One each and all the spare ones; the rest waits.
    await stuck.holds(HOSTILE + SPARE)
    async with asyncio.timeout(BOUND_S):
        for n in range(20):
            assert await look_up("other.test", f"quiet {n}")
            assert await look_up("other.test", f"quiet {n}"), "and it has its thread back each time"
        second = asyncio.create_task(look_up("slow.test", "quiet"))
        await stuck.holds(1)
        third = asyncio.create_task(look_up("other.test", "quiet"))
        assert stuck.asked.count("other.test") == 40
        stuck.let_go.set()
        assert len(await asyncio.gather(*hostile, second, third)) == HOSTILE * MAX_RESOLVING + 2


async def test_turns_come_back_in_every_order_and_to_whoever_was_first() -> None:
    turns, a, b = Turns(spare=1), Share(0.0), Share(0.0)
    async with asyncio.timeout(BOUND_S):
        await turns.take(a)
        await turns.take(a)  # the spare one
        await turns.take(b)
        first, second = asyncio.create_task(turns.take(b)), asyncio.create_task(turns.take(a))
        gone = asyncio.create_task(turns.take(b))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        turns.give_back(a)
        await first
        assert (a.resolving, b.resolving, second.done()) == (1, 2, False)
        # One that is granted and given up at once goes to the next.
        late = asyncio.create_task(turns.take(b))
        await asyncio.sleep(0)
        turns.give_back(b)
        await second
        turns.give_back(a)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert (a.resolving, b.resolving) == (1, 1)
        await turns.take(b)
        for share in (a, b, b):
            turns.give_back(share)
        assert (a.resolving, b.resolving) == (0, 0)
        for _ in range(2):
            await turns.take(a)
        await turns.take(b)
        assert not turns._grant(b)


async def test_one_connection_of_a_workspace_parses_at_a_time_and_another_workspace_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = Shares()
    a, b = shares.of("a"), shares.of("b")
    resting, go_on = asyncio.Event(), asyncio.Event()
    parsed: list[tuple[Share, int]] = []

    async def rest(self: Share, lines: int) -> None:
        parsed.append((self, lines))
        if self is a and not go_on.is_set():
            resting.set()
            await go_on.wait()

    monkeypatch.setattr(Share, "parsed", rest)
    body = b"1\r\na\r\n" * MAX_LINES_A_TURN + b"0\r\n\r\n"
    async with asyncio.timeout(BOUND_S):
        greedy = [asyncio.create_task(send(a, body)) for _ in range(8)]
        await resting.wait()
        assert await send(b, body) == body
        assert parsed == [(a, MAX_LINES_A_TURN), (b, MAX_LINES_A_TURN), (b, 2)]
        go_on.set()
        assert await asyncio.gather(*greedy) == [body] * 8


async def test_a_workspace_pays_for_the_lines_of_all_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("adapters.egress_proxy.share.asyncio.sleep", sleep)
    shares = Shares()
    kept = shares.of("a")
    for _ in range(1000):
        await shares.of("a").parsed(MAX_LINES_A_TURN)
    assert kept is shares.of("a")
    assert waits[0] == 0, "at least it has let the others have a turn"
    assert waits[-1] > 1
    await shares.of("b").parsed(MAX_LINES_A_TURN)
    assert waits[-1] == 0


async def send(share: Share, body: bytes) -> bytes:
    """What arrives at the server."""
    ours, theirs = socket.socketpair()
    got, writer = await asyncio.open_connection(sock=theirs)
    _, to_server = await asyncio.open_connection(sock=ours)
    client = asyncio.StreamReader()
    client.feed_eof()
    try:
        sending = asyncio.create_task(_send_body(share, BodyMeter(None), body, client, to_server, lambda: None))
        arrived = await got.readexactly(len(body))
        await sending
        return arrived
    finally:
        for end in (writer, to_server):
            end.close()
            await end.wait_closed()
