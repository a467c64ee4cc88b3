"""The helper process as the runner sees it: kept warm, replaced, bounded, and truthful when it dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from adapters.patch_helper.engine import PatchHelperEngine
from runner.api import ErrorCode, PatchApplied, RunnerError
from tests.adapters.patch_helper.workspaces import Workspace, outcome, patch, snapshot, update, workspace
from tests.privileges import ORDINARY_UID, run_as

FAULTY = Path(__file__).with_name("faulty_helper.py")
CHANGE = patch(*update("a", "@@", "-1", "+2"), "*** Add File: n/w", "+x", "*** Delete File: d")


def faulty(made: Workspace, *steps: int) -> PatchHelperEngine:
    plan = made.root.parent / "plan"
    plan.write_text("\n".join(map(str, steps)))
    return PatchHelperEngine(command=(sys.executable, "-I", "-S", "-B", str(FAULTY), str(plan)))


def fill(made: Workspace) -> None:
    made.put("a", "1\n")
    made.put("d", "bye\n")


def helper_pids(of: Workspace | None = None) -> list[int]:
    """Of our children that are patch helpers (of one workspace)."""
    found = []
    for name in os.listdir("/proc"):
        try:
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            arguments = Path(f"/proc/{name}/cmdline").read_bytes()
        except (OSError, NotADirectoryError):
            continue
        if (
            stat[1] == str(os.getpid())
            and stat[0] != "Z"
            and b"helper" in arguments
            and (of is None or str(of.root).encode() in arguments)
        ):
            found.append(int(name))
    return found


async def wait_until(holds: Callable[[], bool], timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 (the kernel tells nobody when a process of somebody else is reaped)
            await asyncio.sleep(0)


def dead(pid: int) -> bool:
    """Gone, or a zombie that waits for its reaper."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
async def engines() -> AsyncIterator[list[PatchHelperEngine]]:
    made: list[PatchHelperEngine] = []
    yield made
    for engine in made:
        await engine.close()


@pytest.mark.covers("PATCH-4")
async def test_a_helper_is_kept_warm_and_replaced_when_it_dies_idle(engine: PatchHelperEngine, demo: Workspace) -> None:
    demo.put("a", "0\n")
    pids = set()
    for number in range(4):
        text = patch(*update("a", "@@", f"-{number}", f"+{number + 1}"))
        assert isinstance(await outcome(engine, demo.request(text)), PatchApplied)
        (pid,) = helper_pids()
        pids.add(pid)
        if number == 1:
            os.kill(pid, signal.SIGKILL)
    assert len(pids) == 2
    assert demo.files() == {"a": b"4\n"}


@pytest.mark.covers("PATCH-5", "PATCH-6")
async def test_a_helper_that_dies_during_a_patch_is_answered_by_what_its_journal_proves(
    demo: Workspace, engines: list[PatchHelperEngine]
) -> None:
    seen = []
    for step in (5, 8, 25, 40, 48, 52, 60, 64):
        demo.clear()
        fill(demo)
        before = snapshot(demo.root)
        engine = faulty(demo, step)
        engines.append(engine)
        got = await outcome(engine, demo.request(CHANGE))
        if isinstance(got, PatchApplied):
            assert demo.files() == {"a": b"2\n", "n/w": b"x\n"}
            assert {change.path for change in got.changes} == {"a", "n/w", "d"}
            seen.append("applied")
        else:
            assert got.code is ErrorCode.FILE_OPERATION_FAILED
            assert got.details == {"status": "failed_rolled_back"}
            assert got.retryable
            assert snapshot(demo.root) == before
            seen.append("rolled back")
        await engine.close()
    assert set(seen) == {"applied", "rolled back"}
    assert seen == sorted(seen, reverse=True)


@pytest.mark.covers("PATCH-5", "PATCH-6")
async def test_a_fault_of_our_own_during_a_patch_ends_in_the_truth_too(
    demo: Workspace, engines: list[PatchHelperEngine], capfd: pytest.CaptureFixture[str]
) -> None:
    fill(demo)
    before = snapshot(demo.root)
    engine = faulty(demo, -25, 0)
    engines.append(engine)
    got = await outcome(engine, demo.request(CHANGE))
    assert isinstance(got, RunnerError)
    assert got.details == {"status": "failed_rolled_back"}
    assert snapshot(demo.root) == before
    record = json.loads(capfd.readouterr().err)
    assert (record["event"], record["error"]) == ("patch_helper_fault", "RuntimeError")
    assert "fault of our own" not in str(record)


@pytest.mark.covers("PATCH-6")
async def test_a_helper_that_dies_in_recovery_too_leaves_the_truth_to_the_next(
    demo: Workspace, engines: list[PatchHelperEngine]
) -> None:
    fill(demo)
    before = snapshot(demo.root)
    engine = faulty(demo, 30, 2, 0)
    engines.append(engine)
    got = await outcome(engine, demo.request(CHANGE, operation_id="op_x"))
    assert isinstance(got, RunnerError)
    assert got.details == {"status": "unknown"}
    for _ in range(2):
        (found,) = (await engine.recover_patches(demo.recovery())).recovered
        assert (found.operation_id, found.status) == ("op_x", "failed_rolled_back")
    assert snapshot(demo.root) == before


@pytest.mark.covers("PATCH-4")
async def test_a_helper_that_is_killed_before_it_wrote_anything_is_asked_once_more(
    demo: Workspace, engines: list[PatchHelperEngine]
) -> None:
    fill(demo)
    engine = faulty(demo, 1, 0, 0)
    engines.append(engine)
    assert isinstance(await outcome(engine, demo.request(CHANGE)), PatchApplied)


@pytest.mark.covers("PATCH-5")
async def test_a_caller_that_stops_waiting_does_not_stop_the_patch(engine: PatchHelperEngine, demo: Workspace) -> None:
    fill(demo)
    waiting = asyncio.create_task(engine.apply_patch(demo.request(CHANGE, operation_id="op_c")))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    (found,) = (await engine.recover_patches(demo.recovery())).recovered
    assert (found.operation_id, found.status) == ("op_c", "applied")


@pytest.mark.covers("PATCH-4")
async def test_requests_of_one_workspace_take_turns_and_others_do_not_wait(engine: PatchHelperEngine) -> None:
    with workspace() as one, workspace() as two:
        one.put("a", "")
        two.put("a", "")
        asked = [made.request(patch(*update("a", "@@", f"+{n}"))) for n in range(10) for made in (one, two)]
        results = await asyncio.gather(*(outcome(engine, request) for request in asked))
        assert all(isinstance(result, PatchApplied) for result in results)
        assert one.files() == two.files() == {"a": b"".join(b"%d\n" % n for n in range(10))}
        assert len(helper_pids()) == 2
        await engine.close()


@pytest.mark.covers("PATCH-4")
async def test_the_number_of_helpers_is_bounded_and_the_one_idle_longest_makes_room(
    engines: list[PatchHelperEngine],
) -> None:
    engine = PatchHelperEngine(max_helpers=2)
    engines.append(engine)
    with workspace() as one, workspace() as two, workspace() as three:
        for made in (one, two, one, three):
            assert isinstance(
                await outcome(engine, made.request(patch("*** Add File: n"), check_only=True)), PatchApplied
            )
        assert len(helper_pids()) == 2
        assert helper_pids(two) == []
        await engine.close()
        assert helper_pids() == []


@pytest.mark.covers("PATCH-4")
async def test_as_many_workspaces_as_helpers_keep_theirs(engines: list[PatchHelperEngine]) -> None:
    engine = PatchHelperEngine(max_helpers=2)
    engines.append(engine)
    preview = patch("*** Add File: n")
    with workspace() as one, workspace() as two:
        for made in (one, two):
            assert isinstance(await outcome(engine, made.request(preview, check_only=True)), PatchApplied)
        first = helper_pids()
        for made in (one, two, one):
            assert isinstance(await outcome(engine, made.request(preview, check_only=True)), PatchApplied)
        assert sorted(helper_pids()) == sorted(first)
        await engine.close()


@pytest.mark.covers("PATCH-4")
async def test_an_idle_helper_ends(demo: Workspace, engines: list[PatchHelperEngine]) -> None:
    engine = PatchHelperEngine(idle_s=0)
    engines.append(engine)
    assert isinstance(await outcome(engine, demo.request(patch("*** Add File: n"), check_only=True)), PatchApplied)
    await wait_until(lambda: not helper_pids())


@pytest.mark.covers("PATCH-4")
async def test_a_closed_engine_refuses_and_leaves_no_process(engine: PatchHelperEngine, demo: Workspace) -> None:
    assert isinstance(await outcome(engine, demo.request(patch("*** Add File: n"), check_only=True)), PatchApplied)
    (pid,) = helper_pids()
    await engine.close()
    await engine.close()
    assert dead(pid)
    got = await outcome(engine, demo.request(CHANGE))
    assert isinstance(got, RunnerError)
    assert got.code is ErrorCode.RUNNER_UNAVAILABLE


@pytest.mark.covers("PATCH-4", "PATCH-2")
async def test_a_root_that_was_replaced_is_served_as_it_is_now(engine: PatchHelperEngine, demo: Workspace) -> None:
    fill(demo)
    assert isinstance(await outcome(engine, demo.request(CHANGE)), PatchApplied)
    demo.root.rename(demo.root.parent / "old")
    demo.root.mkdir()
    fill(demo)
    assert isinstance(await outcome(engine, demo.request(CHANGE)), PatchApplied)
    assert demo.files() == {"a": b"2\n", "n/w": b"x\n"}


@pytest.mark.covers("PATCH-4")
async def test_a_root_that_is_gone_is_an_error_with_its_reason(engine: PatchHelperEngine, demo: Workspace) -> None:
    demo.root.rename(demo.root.parent / "old")
    got = await outcome(engine, demo.request(CHANGE))
    assert isinstance(got, RunnerError)
    assert got.code is ErrorCode.FILE_OPERATION_FAILED
    assert (got.details["reason"], got.details["errno"]) == ("root_replaced", "ENOENT")
    demo.root.mkdir()


@pytest.mark.covers("PATCH-4")
@pytest.mark.parametrize("mode", [0o000, 0o100, 0o200, 0o300])
def test_a_root_that_is_closed_to_its_owner_is_no_fault_of_the_helper(mode: int) -> None:
    with workspace() as made:
        made.put("a", "1\n")
        for path in (made.root.parent, made.root, made.root / "a"):
            os.chown(path, ORDINARY_UID, ORDINARY_UID)

        async def patched() -> list[str]:
            engine = PatchHelperEngine()
            try:
                told = []
                for now in (mode, 0o700):
                    made.root.chmod(now)
                    got = await outcome(engine, made.request(patch(*update("a", "@@", "-1", "+2"))))
                    told.append(got.status if isinstance(got, PatchApplied) else f"{got.code} {got.details['remedy']}")
                return told
            finally:
                await engine.close()

        told = run_as(ORDINARY_UID, lambda: asyncio.run(patched()))
        assert told == ["FILE_OPERATION_FAILED run chmod u+rwx on the workspace's root", "applied"]


@pytest.mark.covers("PATCH-4")
async def test_a_program_that_is_no_helper_is_an_error(demo: Workspace, engines: list[PatchHelperEngine]) -> None:
    for command in (("/bin/true",), ("/no/such/program",), ("/bin/echo",)):
        engine = PatchHelperEngine(command=command)
        engines.append(engine)
        got = await outcome(engine, demo.request(CHANGE))
        assert isinstance(got, RunnerError)
        assert got.code is ErrorCode.RUNNER_UNAVAILABLE
        assert engine.available is (command != ("/no/such/program",))


@pytest.mark.covers("PATCH-4")
async def test_a_megabyte_of_patch_on_ten_megabytes_of_file_fits_the_helper(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    lines = [f"line number {n} of this file" for n in range(360_000)]
    demo.put("a", "\n".join(lines) + "\n")
    chunks = [
        ("@@", " " + lines[n], "-" + lines[n + 1], f"+changed {n}", " " + lines[n + 2]) for n in range(0, 359_900, 40)
    ]
    text = patch("*** Update File: a", *(line for chunk in chunks for line in chunk))
    assert len(text) > 800_000
    got = await outcome(engine, demo.request(text))
    assert isinstance(got, PatchApplied), got
    assert b"changed 0\n" in demo.files()["a"]
    # What one large patch left of its memory must not be missing for the next: that helper has ended.
    big = bytearray(200 * 1024 * 1024)
    await wait_until(lambda: not helper_pids())
    pids = set()
    for _ in range(3):
        small = demo.request(patch("*** Add File: n"), check_only=True)
        assert isinstance(await outcome(engine, small), PatchApplied)
        pids.update(helper_pids())
    assert len(pids) == 1, "a small patch ends no helper, however much memory we hold ourselves"
    del big


@pytest.mark.covers("PATCH-4")
async def test_a_hostile_patch_is_refused_with_the_limit_and_the_next_one_works(
    engine: PatchHelperEngine, demo: Workspace
) -> None:
    demo.put("a", "a\n" * 5_000_000)
    demo.put("b", "1\n")
    text = patch(*update("a", "@@", *["-a"] * 330_000, "-b"))
    got = await outcome(engine, demo.request(text))
    assert isinstance(got, RunnerError)
    assert got.code is ErrorCode.INVALID_PATCH
    assert got.details["reason"] == "too_costly"
    assert got.details["limit"] in got.message
    assert isinstance(await outcome(engine, demo.request(patch(*update("b", "@@", "-1", "+2")))), PatchApplied)


@pytest.mark.covers("PATCH-4", "PATCH-5")
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as this user already")
def test_an_ordinary_user_has_the_same_helper() -> None:
    with workspace() as made:
        made.put("a", "1\n", 0o640)
        for path in (made.root.parent, made.root, made.root / "a"):
            os.chown(path, ORDINARY_UID, ORDINARY_UID)

        async def patched() -> str:
            engine = PatchHelperEngine()
            try:
                got = await outcome(
                    engine, made.request(patch(*update("a", "@@", "-1", "+2"), "*** Add File: n/w", "+x"))
                )
                return got.status if isinstance(got, PatchApplied) else f"{got.code} {got.message}"
            finally:
                await engine.close()

        assert run_as(ORDINARY_UID, lambda: asyncio.run(patched())) == "applied"
        tree = snapshot(made.root)
        assert {entry[2] for entry in tree.values()} == {ORDINARY_UID}
        assert tree["a"][1] == 0o640
