"""What is refused before anything runs, and what stands for an unknown handle (PROC-5, PROC-8, ENV-1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from runner.api import (
    ApplyPatch,
    Describe,
    ErrorCode,
    FindFiles,
    GrepFiles,
    Message,
    QueryProcess,
    ReadFile,
    ReadProcess,
    RecoverPatches,
    ResizeProcess,
    Runner,
    RunnerError,
    StartProcess,
    TerminateProcess,
    TerminateWorkspace,
    WorkspaceRef,
    WorkspaceTerms,
    WriteStdin,
)
from tests.contract.rig import Rig

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.covers("PROC-8")
@pytest.mark.parametrize(
    "argv",
    [(), ("",), ("/bin/echo", "a\0b"), ("/bin/ec\0ho",), ("/bin/echo", "x" * 131_072), ("/bin/true",) * 20_000],
    ids=["empty", "no name", "NUL", "NUL in the name", "one too long", "too many"],
)
async def test_an_invalid_command_is_refused_and_its_id_stays_unknown(rig: Rig, argv: tuple[str, ...]) -> None:
    process_id = rig.new_id()
    with pytest.raises(RunnerError) as caught:
        await rig.runner.start_process(StartProcess(process_id=process_id, terms=rig.terms(), argv=argv))
    assert caught.value.code is ErrorCode.INVALID_COMMAND
    with pytest.raises(RunnerError) as caught:
        await rig.status(process_id)
    assert caught.value.code is ErrorCode.PROCESS_NOT_FOUND


@pytest.mark.covers("PROC-8")
async def test_the_longest_allowed_command_runs(rig: Rig) -> None:
    process_id = await rig.start("/bin/echo", "x" * (131_072 - len("/bin/echo") - 2))
    assert len(await rig.output(process_id)) == 131_072 - len("/bin/echo") - 1


@pytest.mark.covers("PROC-8", "LEASE-2")
@pytest.mark.parametrize(("program", "errno"), [("/no/such/program", "ENOENT"), ("/etc", "EACCES")])
async def test_a_program_that_cannot_be_run_is_a_spawn_failure_with_stage_and_errno(
    rig: Rig, program: str, errno: str
) -> None:
    process_id = rig.new_id()
    with pytest.raises(RunnerError) as caught:
        await rig.runner.start_process(StartProcess(process_id=process_id, terms=rig.terms(), argv=(program,)))
    assert caught.value.code is ErrorCode.PROCESS_SPAWN_FAILED
    assert (caught.value.details["stage"], caught.value.details["errno"]) == ("exec", errno)
    with pytest.raises(RunnerError) as caught:
        await rig.status(process_id)
    assert caught.value.code is ErrorCode.PROCESS_NOT_FOUND
    assert [e for e in rig.events if e.process_id == process_id] == []


@pytest.mark.covers("PROC-8")
async def test_an_id_that_was_used_is_refused_and_the_first_command_is_untouched(rig: Rig) -> None:
    process_id = await rig.start("/bin/cat")
    with pytest.raises(RunnerError) as caught:
        await rig.runner.start_process(StartProcess(process_id=process_id, terms=rig.terms(), argv=("/bin/true",)))
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert (await rig.status(process_id)).state == "running"


HANDLES: dict[str, Callable[[Runner, str], Awaitable[Message]]] = {
    "read_process": lambda runner, pid: runner.read_process(ReadProcess(process_id=pid)),
    "process_status": lambda runner, pid: runner.process_status(QueryProcess(process_id=pid)),
    "write_stdin": lambda runner, pid: runner.write_stdin(WriteStdin(process_id=pid, data="x")),
    "resize_process": lambda runner, pid: runner.resize_process(ResizeProcess(process_id=pid, rows=2, cols=2)),
    "terminate_process": lambda runner, pid: runner.terminate_process(TerminateProcess(process_id=pid)),
}


@pytest.mark.covers("PROC-5")
@pytest.mark.parametrize("method", HANDLES)
async def test_an_unknown_handle_is_not_found(rig: Rig, method: str) -> None:
    with pytest.raises(RunnerError) as caught:
        await HANDLES[method](rig.runner, "proc_of_another_life")
    assert caught.value.code is ErrorCode.PROCESS_NOT_FOUND


@pytest.mark.covers("PROC-7")
async def test_terminate_workspace_ends_its_commands_alone_and_returns_when_they_are_dead(rig: Rig) -> None:
    mine = [await rig.start("/bin/cat"), await rig.sh("trap 'exit 3' TERM; echo ready; while :; do read x || :; done")]
    await rig.until(mine[1], "ready")
    other = await rig.start("/bin/cat", terms=rig.terms(workspace_id="other"))
    answer = await rig.runner.terminate_workspace(TerminateWorkspace(workspace_id="demo"))
    assert set(answer.process_ids) == set(mine)
    for process_id in mine:
        assert (await rig.status(process_id)).termination == "terminated"
    assert (await rig.status(other)).state == "running"
    assert (await rig.runner.terminate_workspace(TerminateWorkspace(workspace_id="demo"))).process_ids == ()


CONTAINER = WorkspaceRef(workspace_id="boxed", root="/", environment="linux-container")
ELSEWHERE: dict[str, Callable[[Runner, str], Awaitable[Message]]] = {
    "read_file": lambda runner, _: runner.read_file(ReadFile(workspace=CONTAINER, path="etc/passwd")),
    "find_files": lambda runner, _: runner.find_files(FindFiles(workspace=CONTAINER, pattern="*")),
    "grep_files": lambda runner, _: runner.grep_files(GrepFiles(workspace=CONTAINER, pattern="x")),
    "apply_patch": lambda runner, _: runner.apply_patch(ApplyPatch(workspace=CONTAINER, patch="x", journal_dir="/x")),
    "recover_patches": lambda runner, _: runner.recover_patches(RecoverPatches(workspace=CONTAINER, journal_dir="/x")),
    "start_process": lambda runner, process_id: runner.start_process(
        StartProcess(process_id=process_id, terms=_container_terms(), argv=("/bin/true",))
    ),
}


def _container_terms() -> WorkspaceTerms:
    return WorkspaceTerms(workspace_id="boxed", root="/", environment="linux-container")


@pytest.mark.covers("ENV-1")
@pytest.mark.parametrize("method", ELSEWHERE)
async def test_an_environment_without_a_backend_answers_nothing_else(rig: Rig, method: str) -> None:
    with pytest.raises(RunnerError) as caught:
        await ELSEWHERE[method](rig.runner, rig.new_id())
    assert caught.value.code is ErrorCode.ENVIRONMENT_UNAVAILABLE
    assert caught.value.details["environment"] == "linux-container"


@pytest.mark.covers("ENV-1")
async def test_describe_tells_the_two_environments_apart(rig: Rig) -> None:
    here = await rig.runner.describe(Describe(terms=rig.terms()))
    assert here.environment.kind == "host"
    assert here.environment.exec_supported
    assert here.environment.file_read_supported
    there = await rig.runner.describe(Describe(terms=_container_terms()))
    assert there.environment.kind == "linux-container"
    assert not any(there.environment.model_dump(exclude={"kind"}).values())
    assert not any((there.grep_available, there.patch_available, there.isolation.available))
    assert there.runner_instance_id == here.runner_instance_id
