"""A start that breaks off in the launcher itself: whatever it was and wherever, nothing of the command is left alive.

The faults are put in by replacing what the launcher calls: no machine runs out of memory at one line on demand.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.linux_sandbox import launcher as launching
from adapters.linux_sandbox.channels import StartChannels
from adapters.linux_sandbox.client import HelperClient, Started, end_child
from adapters.linux_sandbox.cover_watch import CoverWatch
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from adapters.linux_sandbox.network import HandOver
from adapters.linux_sandbox.process import SandboxedProcess
from runner.ports import LaunchFailed, LaunchUncertain
from tests.adapters.linux_sandbox.support import BOUND_S, run, start, terms

KINDS: dict[str, Callable[[], Exception]] = {
    "memory": MemoryError,
    "descriptors": lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "threads": lambda: RuntimeError("can't start new thread"),
    "value": lambda: ValueError("ours"),
    "key": lambda: KeyError("ours"),
}
PROTECT = (".git/hooks",)
COMMAND = ("/bin/sh", "-c", "echo ran >> mark; exec sleep 86400")


class Breaks:
    """Raises once, or `times` times, when `armed`; then what was replaced works again."""

    def __init__(self, make: Callable[[], Exception], times: int = 1) -> None:
        self._make, self._left = make, times

    def __call__(self) -> None:
        if self._left > 0:
            self._left -= 1
            raise self._make()

    @property
    def struck(self) -> bool:
        return self._left == 0


def before_the_request(patch: pytest.MonkeyPatch, strike: Breaks) -> None:
    real = LinuxSandboxLauncher._leaf

    async def leaf(self: LinuxSandboxLauncher, known: Any) -> Any:
        strike()
        return await real(self, known)

    patch.setattr(LinuxSandboxLauncher, "_leaf", leaf)


def in_the_request(patch: pytest.MonkeyPatch, strike: Breaks) -> None:
    real = HelperClient._send

    async def send(self: HelperClient, message: bytes, descriptors: Any) -> None:
        await real(self, message, descriptors)
        strike()

    patch.setattr(HelperClient, "_send", send)


def with_the_answer_lost(patch: pytest.MonkeyPatch, strike: Breaks) -> None:
    real = HelperClient.run

    async def run(self: HelperClient, *given: Any) -> Any:
        started = await real(self, *given)
        assert isinstance(started, Started)
        os.close(started.pidfd)
        strike()

    patch.setattr(HelperClient, "run", run)


def at_the_hand_over(patch: pytest.MonkeyPatch, strike: Breaks) -> None:
    class Broken(HandOver):
        def __init__(self, *given: Any) -> None:
            strike()
            super().__init__(*given)

    patch.setattr(launching, "HandOver", Broken)


def after_the_report(patch: pytest.MonkeyPatch, strike: Breaks) -> None:
    real = StartChannels.read_report

    async def read(self: StartChannels, *given: Any) -> Any:
        said = await real(self, *given)
        strike()
        return said

    patch.setattr(StartChannels, "read_report", read)


def at_the_process(patch: pytest.MonkeyPatch, strike: Breaks) -> None:
    class Broken(SandboxedProcess):
        def __init__(self, *given: Any) -> None:
            strike()
            super().__init__(*given)

    patch.setattr(launching, "SandboxedProcess", Broken)


def at_the_watch(patch: pytest.MonkeyPatch, strike: Breaks) -> None:
    class Broken(CoverWatch):
        def __init__(self, *given: Any) -> None:
            strike()
            super().__init__(*given)

    patch.setattr(launching, "CoverWatch", Broken)


POINTS = {
    point.__name__: point
    for point in (
        before_the_request, in_the_request, with_the_answer_lost, at_the_hand_over, after_the_report, at_the_process,
        at_the_watch,
    )
}  # fmt: skip
CASES = [
    *((point, "memory") for point in POINTS),
    *((point, kind) for point in ("in_the_request", "after_the_report") for kind in KINDS if kind != "memory"),
]
PROVED = {"before_the_request"}
"""Where nothing can have started."""


def children() -> set[int]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.mark.covers("PROC-8", "LEASE-2", "BOX-7")
@pytest.mark.parametrize(("point", "kind"), CASES)
async def test_a_start_that_breaks_off_leaves_nothing_alive_and_says_so(
    workspace: str, point: str, kind: str, monkeypatch: pytest.MonkeyPatch, leak_check: None
) -> None:
    what = terms(workspace, protect=PROTECT)
    before = await asyncio.to_thread(children)
    await asyncio.to_thread(os.mkdir, f"{workspace}/.git")
    launcher = LinuxSandboxLauncher()
    try:
        assert (await run(launcher, what, "true")).exit.exit_code == 0
        strike = Breaks(KINDS[kind])
        with monkeypatch.context() as patch:
            POINTS[point](patch, strike)
            with pytest.raises((LaunchFailed, LaunchUncertain)) as caught:
                await start(launcher, what, COMMAND)
        assert strike.struck
        if isinstance(caught.value, LaunchUncertain):
            assert point not in PROVED
            assert caught.value.ended is not None
            await asyncio.wait_for(caught.value.ended(), BOUND_S)
        else:
            assert not await asyncio.to_thread(os.path.exists, f"{workspace}/mark")
        assert isinstance(caught.value.__cause__, type(KINDS[kind]()))
        helpers = {helper.session for helper in launcher._helpers.values()}
        assert await asyncio.to_thread(children) - helpers - before == set()
        assert await asyncio.to_thread(os.listdir, f"{workspace}/.git") == [], "a placeholder was left"
        # And the launcher goes on.
        assert (await run(launcher, what, "echo", "on")).output == "on\n"
    finally:
        await launcher.close()


@pytest.mark.covers("PROC-8", "LEASE-2")
async def test_an_end_that_fails_for_the_same_want_is_tried_again(
    workspace: str, monkeypatch: pytest.MonkeyPatch, leak_check: None
) -> None:
    before = await asyncio.to_thread(children)
    launcher = LinuxSandboxLauncher()
    try:
        await run(launcher, terms(workspace), "true")
        strike, again = Breaks(MemoryError), Breaks(MemoryError, 3)

        async def end(pidfd: int) -> None:
            again()
            await end_child(pidfd)

        with monkeypatch.context() as patch:
            after_the_report(patch, strike)
            patch.setattr(launching, "end_child", end)
            with pytest.raises(LaunchUncertain):
                await start(launcher, terms(workspace), COMMAND)
        assert again.struck
        helpers = {helper.session for helper in launcher._helpers.values()}
        assert await asyncio.to_thread(children) - helpers - before == set()
    finally:
        await launcher.close()
