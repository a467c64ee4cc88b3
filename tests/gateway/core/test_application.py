"""The use cases through the application, with a runner and a link that do as they are told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import AlreadyServed, Code, RegistryRefused, StartFailed
from gateway.liveness import LivenessDirectory
from gateway.locks import lock_directory
from gateway.request_keys import MAX_KEY_CHARS
from runner import api
from runner.api import ErrorCode, RunnerError, RunnerLost
from tests.gateway.core.application_rig import WRITE, Core, core, soon
from tests.gateway.core.support import (
    FakeRunner,
    descriptors,
    not_found,
)


# --- commands ---------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-1", "LEASE-1", "LEASE-2", "ENV-2")
async def test_a_command_runs_on_the_registry_s_terms_and_holds_the_lease_until_it_is_over(tmp_path: Path) -> None:
    async with core(tmp_path, {"demo": {**WRITE, "limits": {"timeout_s": 7}, "env": {"A": "b"}}, "other": WRITE}) as c:
        process_id, status = await c.exec("demo", "echo", "$HOME", tty=True)
        assert process_id.startswith("proc_")
        assert status == "confirmed"
        request = c.runner.requests[-1][1]
        assert isinstance(request, api.StartProcess)
        assert (request.argv, request.tty, request.process_id) == (("echo", "$HOME"), True, process_id)
        assert (request.terms.root, request.terms.limits.timeout_s) == (str(c.root()), 7)
        assert request.terms.env == {"A": "b"}
        busy = await c.refused(c.application.exec_command("demo", ("true",)), Code.WORKSPACE_BUSY)
        assert busy.details["holder"] == {"kind": "process", "id": process_id}
        assert await c.is_free("other")
        await soon(c.application.read_file("demo", "x"))
        await soon(c.application.find_files("demo", "*"))
        c.runner.exit(process_id)
        assert await c.is_free()


@pytest.mark.covers("POL-1", "NETIF-3")
async def test_a_read_only_workspace_reads_but_runs_nothing_and_each_decision_is_audited(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        await soon(c.application.read_file("ro", "x"))
        refusal = await c.refused(c.application.exec_command("ro", ("true",)), Code.UNAUTHORIZED)
        assert refusal.details == {"workspace_id": "ro", "profile": "read-only", "action": "exec"}
        await c.refused(c.application.exec_command("nope", ("true",)), Code.WORKSPACE_NOT_FOUND)
        assert c.runner.count("start_process") == 0
        assert c.audit.lines() == [
            ("decision", "read", "allowed", None),
            ("decision", "exec_command", "refused", "UNAUTHORIZED"),
            ("decision", "exec_command", "refused", "WORKSPACE_NOT_FOUND"),
        ]


@pytest.mark.covers("PROC-8")
@pytest.mark.parametrize("argv", [(), ("",), ("a\0b",), ("a", "x" * 200_000), ("\ud800",)])
async def test_an_invalid_command_takes_neither_id_nor_lease(tmp_path: Path, argv: tuple[str, ...]) -> None:
    async with core(tmp_path) as c:
        await c.refused(c.application.exec_command("demo", argv), Code.INVALID_COMMAND)
        assert c.runner.count("start_process") == 0
        assert await c.is_free()


@pytest.mark.covers("PROC-8", "LEASE-2")
@pytest.mark.parametrize(
    "code", [ErrorCode.PROCESS_SPAWN_FAILED, ErrorCode.SANDBOX_UNAVAILABLE, ErrorCode.TOO_MANY_PROCESSES]
)
async def test_a_command_that_provably_did_not_start_gives_the_lease_back(tmp_path: Path, code: ErrorCode) -> None:
    async with core(tmp_path) as c:
        details = {"stage": "exec", "errno": "ENOENT"}
        c.runner.answers["start_process"] = RunnerError(code, "it did not start", details=details)
        error = await c.refused(c.application.exec_command("demo", ("true",)), Code(code.value))
        assert error.details == details
        assert c.audit.lines()[-1] == ("mutation", "exec_command", "failed", code.value)
        del c.runner.answers["start_process"]
        assert await c.is_free()


@pytest.mark.covers("PROC-8", "UDS-2", "PROC-7", "LEASE-2")
async def test_a_lost_dispatch_is_unknown_and_its_lease_is_held_until_death_is_proved(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["start_process"] = RunnerLost("cut")
        process_id, status = await c.exec()
        assert status == "unknown"
        assert c.audit.lines()[-1] == ("mutation", "exec_command", "unknown", None)
        lost = c.link.lose()
        await c.refused(c.application.exec_command("demo", ("true",)), Code.RUNNER_UNAVAILABLE)
        query = api.QueryProcess(process_id=process_id)
        await c.refused(c.application.process_status(query), Code.PROCESS_NOT_FOUND)
        c.link.up(FakeRunner("run-2"))
        assert not await c.is_free()
        await c.refused(c.application.process_status(query), Code.PROCESS_NOT_FOUND)
        assert await c.is_free("other")
        c.link.prove_dead(lost)
        assert await c.is_free()
        assert c.runner.count("process_status") == 0, "another instance is not asked"


@pytest.mark.covers("PROC-8", "LEASE-2")
async def test_a_dispatch_that_the_runner_itself_does_not_know_of_keeps_lease_and_handle(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        uncertain = RunnerError(ErrorCode.INTERNAL, "the helper was lost", details={"uncertain": True})
        c.runner.answers["start_process"] = uncertain
        process_id, status = await c.exec()
        del c.runner.answers["start_process"]
        assert status == "unknown"
        assert not await c.is_free()
        await soon(c.application.process_status(api.QueryProcess(process_id=process_id)))
        c.runner.running[process_id] = "demo"
        c.runner.exit(process_id)
        assert await c.is_free()


@pytest.mark.covers("PROC-8", "LEASE-2")
@pytest.mark.parametrize("known", [True, False])
async def test_after_a_fault_of_the_runner_it_is_asked_whether_anything_started(tmp_path: Path, known: bool) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["start_process"] = RunnerError(ErrorCode.INTERNAL, "bug", details={"error_id": "err_1"})
        if known:
            _, status = await c.exec()
            assert status == "unknown"
            assert not await c.is_free()
            return
        c.runner.answers["process_status"] = not_found("?")
        error = await c.refused(c.application.exec_command("demo", ("true",)), Code.INTERNAL)
        assert error.details == {"error_id": "err_1"}
        del c.runner.answers["start_process"]
        assert await c.is_free()


async def test_a_command_that_is_over_before_its_start_is_answered_leaves_nothing_held(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.hold["start_process"] = asyncio.Event()
        call = asyncio.create_task(c.application.exec_command("demo", ("true",)))
        await soon(c.runner.asked_for("start_process").wait())
        process_id = c.runner.requests[-1][1].process_id  # type: ignore[attr-defined]
        c.runner.running[process_id] = "demo"
        c.runner.exit(process_id)
        c.runner.hold["start_process"].set()
        assert (await soon(call)).dispatch_status == "confirmed"
        c.runner.hold.clear()
        assert await c.is_free()
        await soon(c.application.read_process(api.ReadProcess(process_id=process_id)))


@pytest.mark.covers("PROC-7", "LEASE-2", "TOOL-3")
async def test_a_caller_that_goes_away_loses_neither_the_command_nor_its_lease(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.hold["start_process"] = asyncio.Event()
        call = asyncio.create_task(c.application.exec_command("demo", ("true",), request_key="k"))
        await soon(c.runner.asked_for("start_process").wait())
        call.cancel()
        await asyncio.wait({call})
        assert call.cancelled()
        again = asyncio.create_task(c.application.exec_command("demo", ("true",), request_key="k"))
        c.runner.hold["start_process"].set()
        process_id = (await soon(again)).process_id
        assert c.runner.count("start_process") == 1
        c.runner.hold.clear()
        assert not await c.is_free()
        c.runner.exit(process_id)
        assert await c.is_free()


@pytest.mark.covers("PROC-9")
async def test_more_commands_than_the_operator_allows_are_refused(tmp_path: Path) -> None:
    async with core(tmp_path, dict.fromkeys("abc", WRITE), max_processes=2) as c:
        first, _ = await c.exec("a")
        await c.exec("b")
        error = await c.refused(c.application.exec_command("c", ("true",)), Code.TOO_MANY_PROCESSES)
        assert (error.retryable, error.details) == (True, {"max_processes": 2})
        assert c.runner.count("start_process") == 2
        c.runner.exit(first)
        assert await c.is_free("c")


# --- request keys -----------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-12")
async def test_a_key_finds_its_first_dispatch_and_refuses_another_request(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        first = await c.exec("demo", "a", "b", request_key="k")
        assert await c.exec("demo", "a", "b", request_key="k") == first
        for other in ({"argv": ("ab",)}, {"argv": ("a", "b"), "tty": True}):
            argv, more = other["argv"], {k: v for k, v in other.items() if k != "argv"}
            call = c.application.exec_command("demo", argv, request_key="k", **more)  # type: ignore[arg-type]
            await c.refused(call, Code.OPERATION_KEY_CONFLICT)
        assert (await c.exec("other", "a", "b", request_key="k"))[0] != first[0]
        c.runner.exit(first[0])
        assert await c.exec("demo", "a", "b", request_key="k") == first
        assert c.runner.count("start_process") == 2


@pytest.mark.covers("PROC-12")
async def test_two_callers_with_one_key_at_once_are_one_dispatch(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        calls = [c.exec("demo", "a", request_key="k") for _ in range(6)]
        answers = await soon(asyncio.gather(*calls))
        assert len(set(answers)) == 1
        assert c.runner.count("start_process") == 1


@pytest.mark.covers("PROC-12")
async def test_a_key_whose_dispatch_failed_may_be_tried_again(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.runner.answers["start_process"] = RunnerError(ErrorCode.PROCESS_SPAWN_FAILED, "no")
        for _ in range(2):
            call = c.application.exec_command("demo", ("a",), request_key="k")
            await c.refused(call, Code.PROCESS_SPAWN_FAILED)
        assert c.runner.count("start_process") == 2
        blocker, _ = await c.exec("demo", "z") if c.runner.answers.pop("start_process") else ("", "")
        await c.refused(c.application.exec_command("demo", ("a",), request_key="k"), Code.WORKSPACE_BUSY)
        c.runner.exit(blocker)
        await c.exec("demo", "a", request_key="k")


@pytest.mark.covers("PROC-12")
async def test_a_key_ends_with_its_runner_instance(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        first, _ = await c.exec("demo", "a", request_key="k")
        c.link.prove_dead(c.link.lose())
        c.link.up(FakeRunner("run-2"))
        second, _ = await c.exec("demo", "another", request_key="k")
        assert second != first


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY_CHARS + 1), "a\0", "\udc00"])
async def test_a_key_that_is_no_short_text_is_refused(tmp_path: Path, key: str) -> None:
    async with core(tmp_path) as c:
        error = await c.refused(c.application.exec_command("demo", ("a",), request_key=key), Code.INVALID_ARGUMENT)
        assert error.details["argument"] == "request_key"


# --- handles ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("PROC-5", "PROC-7")
async def test_handles_are_those_of_this_gateway_and_no_others(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        process_id, _ = await c.exec()
        app = c.application
        for known, code in ((process_id, None), ("proc_nope", Code.PROCESS_NOT_FOUND), ("", Code.PROCESS_NOT_FOUND)):
            for call in (
                app.read_process(api.ReadProcess(process_id=known)),
                app.process_status(api.QueryProcess(process_id=known)),
                app.write_stdin(api.WriteStdin(process_id=known, data="x")),
                app.resize_process(api.ResizeProcess(process_id=known, rows=1, cols=1)),
                app.terminate_process(api.TerminateProcess(process_id=known)),
            ):
                if code is None:
                    await soon(call)
                else:
                    await c.refused(call, code)


@pytest.mark.parametrize("fails", [True, False])
async def test_a_call_on_a_handle_that_is_being_started_waits_for_what_becomes_of_it(
    tmp_path: Path, fails: bool
) -> None:
    async with core(tmp_path) as c:
        c.runner.hold["start_process"] = asyncio.Event()
        if fails:
            c.runner.answers["start_process"] = RunnerError(ErrorCode.PROCESS_SPAWN_FAILED, "no")
        start = asyncio.create_task(c.application.exec_command("demo", ("true",)))
        await soon(c.runner.asked_for("start_process").wait())
        process_id = c.runner.requests[-1][1].process_id  # type: ignore[attr-defined]
        query = c.application.process_status(api.QueryProcess(process_id=process_id))
        call = asyncio.create_task(query)
        await asyncio.wait({call}, timeout=0)
        assert c.runner.count("process_status") == 0
        c.runner.hold["start_process"].set()
        if fails:
            await c.refused(start, Code.PROCESS_SPAWN_FAILED)
            await c.refused(call, Code.PROCESS_NOT_FOUND)
            assert c.runner.count("process_status") == 0
        else:
            await soon(start)
            assert (await soon(call)).state == "running"


async def test_a_handle_that_the_runner_has_evicted_is_forgotten(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        process_id, _ = await c.exec()
        c.runner.exit(process_id)
        c.runner.answers["read_process"] = not_found(process_id)
        for _ in range(2):
            await c.refused(c.application.read_process(api.ReadProcess(process_id=process_id)), Code.PROCESS_NOT_FOUND)
        assert c.runner.count("read_process") == 1


@pytest.mark.covers("PROC-7")
async def test_a_call_on_a_handle_that_is_cut_off_says_that_the_process_is_gone(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        process_id, _ = await c.exec()
        c.runner.answers["read_process"] = RunnerLost("cut")
        call = c.application.read_process(api.ReadProcess(process_id=process_id))
        await c.refused(call, Code.PROCESS_NOT_FOUND)
        c.runner.answers["read_file"] = RunnerLost("cut")
        error = await c.refused(c.application.read_file("demo", "x"), Code.RUNNER_UNAVAILABLE)
        assert error.retryable


# --- roots ------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("LEASE-2")
async def test_a_replaced_root_is_refused_until_the_operator_reloads(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.root().rename(tmp_path / "moved")
        c.root().mkdir()
        for call in (c.application.read_file("demo", "x"), c.application.exec_command("demo", ("true",))):
            error = await c.refused(call, Code.FILE_OPERATION_FAILED)
            assert error.details["reason"] == "root_replaced"
        assert c.runner.count("start_process") == 0
        await soon(c.application.reload())
        assert await c.is_free()


@pytest.mark.covers("LEASE-2")
async def test_a_second_program_on_a_root_or_the_data_directory_is_refused_and_takes_nothing(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        (tmp_path / "second").mkdir()
        same_data = Core(tmp_path, {"else": WRITE})
        with pytest.raises(AlreadyServed, match="data directory"):
            await soon(same_data.application.start())
        same_root = Core(tmp_path / "second", {"free": WRITE, "demo": {**WRITE, "root": str(c.root())}})
        with pytest.raises(AlreadyServed, match="workspace demo"):
            await soon(same_root.application.start())
        assert same_root.link.fake is None, "no runner was started"
        lock_directory(str(same_root.root("free")), "root").release()
    lock_directory(str(c.root()), "root").release()


async def test_start_waits_for_nothing_and_fails_where_an_earlier_run_is_still_dying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.application.PREDECESSOR_S", 0.05)
    (tmp_path / "data").mkdir(mode=0o700)
    left, write_end = await LivenessDirectory(tmp_path / "data" / "liveness").create()
    left.give_up()
    one = Core(tmp_path, {"demo": WRITE})
    with pytest.raises(StartFailed, match="still ending"):
        await soon(one.application.start())
    os.close(write_end)
    again = Core(tmp_path, {"demo": WRITE})
    await soon(again.application.start())
    await soon(again.application.close())


async def test_starting_and_closing_leaves_no_descriptor(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        await c.exec()
    before = descriptors()
    async with core(tmp_path) as c:
        await c.exec()
    assert descriptors() == before


@pytest.mark.covers("PROC-8", "UDS-3", "LEASE-2")
@pytest.mark.parametrize("known", [False, True])
async def test_a_command_that_meets_a_fault_of_a_runner_in_this_process_leaks_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    async def broken(request: api.StartProcess) -> api.ProcessStarted:
        if known:
            c.runner.running[request.process_id] = request.terms.workspace_id
        raise OSError(5, "the disk of /somewhere")

    async with core(tmp_path) as c:
        monkeypatch.setattr(c.runner, "start_process", broken)
        if known:
            process_id, dispatched = await c.exec()
            assert dispatched == "unknown"
            monkeypatch.undo()
            assert not await c.is_free()
            c.runner.exit(process_id)
        else:
            c.runner.answers["process_status"] = RunnerError(ErrorCode.PROCESS_NOT_FOUND, "none")
            error = await c.refused(c.application.exec_command("demo", ("true",)), Code.INTERNAL)
            assert "somewhere" not in str(error.to_structured())
            monkeypatch.undo()
        assert await c.is_free()
        assert c.application.running_processes() == 0


# --- reload -----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("POL-5")
async def test_a_bad_reload_keeps_the_old_registry_in_force(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        before = await soon(c.application.workspace_info(None))
        (tmp_path / "registry.json").write_text(json.dumps({"workspaces": {"demo": {"root": "/", "x": 1}}}))
        with pytest.raises(RegistryRefused):
            await soon(c.application.reload())
        assert await soon(c.application.workspace_info(None)) == before
        assert await c.is_free()


@pytest.mark.covers("POL-5", "LEASE-2")
async def test_a_reload_that_names_a_taken_root_changes_nothing_and_holds_nothing_new(tmp_path: Path) -> None:
    hold = "import fcntl,os,sys; d=os.open(sys.argv[1],os.O_RDONLY); fcntl.flock(d,2); print(1,flush=True); input()"
    async with core(tmp_path) as c:
        c.root("taken").mkdir()
        c.root("fresh").mkdir()
        command = [sys.executable, "-c", hold, str(c.root("taken"))]
        holder = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdout is not None
        await soon(holder.stdout.readline())
        c.write({"demo": WRITE, "fresh": WRITE, "taken": WRITE})
        with pytest.raises(AlreadyServed, match="taken"):
            await soon(c.application.reload())
        holder.kill()
        await soon(holder.communicate())
        await c.refused(c.application.exec_command("fresh", ("true",)), Code.WORKSPACE_NOT_FOUND)
        lock_directory(str(c.root("fresh")), "root").release()
        assert await c.is_free("other")


@pytest.mark.covers("POL-5", "POL-1")
async def test_a_reload_counts_for_later_calls_and_running_commands_keep_their_terms(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        process_id, _ = await c.exec()
        c.write({"demo": {}, "new": WRITE})
        await soon(c.application.reload())
        lock_directory(str(c.root("other")), "root").release()
        await soon(c.application.write_stdin(api.WriteStdin(process_id=process_id, data="x")))
        assert c.runner.count("terminate_process") == 0
        await c.refused(c.application.exec_command("demo", ("true",)), Code.UNAUTHORIZED)
        await c.refused(c.application.exec_command("other", ("true",)), Code.WORKSPACE_NOT_FOUND)
        assert await c.is_free("new")
        info = await soon(c.application.workspace_info("demo"))
        assert info.profile == "read-only"


@pytest.mark.covers("LEASE-2")
async def test_commands_of_a_removed_workspace_are_ended_and_its_root_stays_locked_until_they_are(
    tmp_path: Path,
) -> None:
    async with core(tmp_path) as c:
        process_id, _ = await c.exec()
        c.runner.hold["terminate_process"] = asyncio.Event()
        (c.root() / "in").mkdir()
        c.write({"other": WRITE, "inner": {**WRITE, "root": str(c.root() / "in")}})
        await soon(c.application.reload())
        await soon(c.runner.asked_for("terminate_process").wait())
        with pytest.raises(AlreadyServed):
            lock_directory(str(c.root()), "root")
        await c.refused(c.application.exec_command("inner", ("true",)), Code.WORKSPACE_BUSY)
        read = c.application.read_process(api.ReadProcess(process_id=process_id))
        await c.refused(read, Code.PROCESS_NOT_FOUND)
        c.runner.exit(process_id, "terminated")
        lock_directory(str(c.root()), "root").release()
        c.runner.hold["terminate_process"].set()
        assert await c.is_free("inner")


# --- workspace_info ---------------------------------------------------------------------------------------------------
@pytest.mark.covers("ENV-1", "ENV-5", "BOX-4", "POL-2")
async def test_workspace_info_tells_what_is_registered_and_what_is_enforced(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        c.application.set_exposure(tools=["read"], transports=["unix"])
        general = (await soon(c.application.workspace_info(None))).model_dump(exclude_none=True)
        assert general == {
            "server": "codespace",
            "version": "1",
            "internal_model_calls": False,
            "tools_exposed": ("read",),
            "transports": ("unix",),
            "workspaces": (
                {"workspace_id": "demo", "profile": "workspace-write"},
                {"workspace_id": "other", "profile": "workspace-write"},
                {"workspace_id": "ro", "profile": "read-only"},
            ),
        }
        info = (await soon(c.application.workspace_info("ro"))).model_dump(exclude_none=True)
        assert info["workspace_id_is_credential"] is False
        execution = info["execution"]
        assert execution["permissions"] == {"read": True, "write": False, "exec": False}
        assert execution["environment"]["client_selectable"] is False
        assert execution["process"]["capabilities"]["tty"]["initial_cols"] == 80
        assert execution["isolation"]["protections"] == {"user_namespace": "active"}
        assert execution["network"] == {"policy": "restricted", "enforcement": "enforced", "client_may_escalate": False}
        assert execution["limits"]["timeout_s"] == 30


async def test_workspace_info_is_asked_for_again_only_when_something_changed(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        for _ in range(3):
            await soon(c.application.workspace_info("demo"))
        assert c.runner.count("describe") == 1
        c.link.prove_dead(c.link.lose())
        await c.refused(c.application.workspace_info("demo"), Code.RUNNER_UNAVAILABLE)
        await soon(c.application.workspace_info(None))
        broken = FakeRunner("run-2")
        broken.available = False
        c.link.up(broken)
        for _ in range(2):
            info = await soon(c.application.workspace_info("demo"))
            assert info.execution.process.model_dump(exclude_none=True) == {"available": False}
        assert broken.count("describe") == 2, "what is not available now may be soon"
        await c.refused(c.application.workspace_info("nope"), Code.WORKSPACE_NOT_FOUND)


@pytest.mark.covers("ENV-1")
async def test_an_environment_without_backend_is_told_as_such_and_refuses_every_tool(tmp_path: Path) -> None:
    boxed = {"boxed": {**WRITE, "environment": "box"}}
    async with core(tmp_path, boxed, environments={"box": {"kind": "linux-container"}}) as c:
        info = await soon(c.application.workspace_info("boxed"))
        environment = info.execution.environment
        assert (environment.kind, environment.exec_supported, environment.file_read_supported) == (
            "linux-container",
            False,
            False,
        )
        for call in (
            c.application.read_file("boxed", "x"),
            c.application.find_files("boxed", "*"),
            c.application.grep_files("boxed", "x"),
            c.application.exec_command("boxed", ("true",)),
        ):
            await c.refused(call, Code.ENVIRONMENT_UNAVAILABLE)
        assert c.runner.requests == []


async def test_readiness_names_what_is_missing(tmp_path: Path) -> None:
    async with core(tmp_path) as c:
        assert (await soon(c.application.readiness())).ready
        c.runner.available = False
        ready = await soon(c.application.readiness())
        assert not ready.ready
        assert "user_namespace (EPERM)" in ready.reasons[0]
        c.link.lose()
        assert "runner" in (await soon(c.application.readiness())).reasons[0]


# --- nothing leaks ----------------------------------------------------------------------------------------------------
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["exec", "exec", "exec", "exit", "lose", "dead", "reload"]),
        st.integers(0, 2),
        st.sampled_from(["ok", "ok", "spawn", "lost", "uncertain", "internal", "unknown internal"]),
    ),
    max_size=25,
)
REFUSALS: dict[str, RunnerError] = {
    "spawn": RunnerError(ErrorCode.PROCESS_SPAWN_FAILED, "no"),
    "lost": RunnerLost("cut"),
    "uncertain": RunnerError(ErrorCode.INTERNAL, "?", details={"uncertain": True}),
    "internal": RunnerError(ErrorCode.INTERNAL, "bug"),
    "unknown internal": RunnerError(ErrorCode.INTERNAL, "bug"),
}


@pytest.mark.timeout(120)
@pytest.mark.covers("LEASE-1", "LEASE-2")
@given(steps=STEPS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_happens_a_lease_is_held_exactly_while_something_may_be_alive(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, str]]
) -> None:
    asyncio.run(play(tmp_path_factory.mktemp("play"), steps))


async def play(base: Path, steps: list[tuple[str, int, str]]) -> None:
    names = ("a", "b", "c")
    held: dict[str, tuple[str, str]] = {}  # workspace to (process, instance)
    unproved: list[str] = []
    instances = 1

    async with core(base, dict.fromkeys(names, WRITE)) as c:

        async def step(what: str, which: int, outcome: str) -> None:
            nonlocal instances
            name = names[which]
            if what == "exec":
                c.runner.answers = {}
                if outcome in REFUSALS:
                    c.runner.answers["start_process"] = REFUSALS[outcome]
                if outcome == "internal":
                    c.runner.answers["process_status"] = not_found("?")
                expected = {"spawn": Code.PROCESS_SPAWN_FAILED, "internal": Code.INTERNAL}.get(outcome)
                if name in held:
                    busy = await c.refused(c.application.exec_command(name, ("x",)), Code.WORKSPACE_BUSY)
                    assert busy.details["holder"]["id"] == held[name][0]
                elif expected is not None:
                    await c.refused(c.application.exec_command(name, ("x",)), expected)
                else:
                    process_id, status = await c.exec(name)
                    assert status == ("confirmed" if outcome == "ok" else "unknown")
                    held[name] = (process_id, c.runner.instance_id)
            elif what == "exit" and name in held and held[name][1] == c.runner.instance_id:
                process_id, _ = held.pop(name)
                c.runner.running[process_id] = name
                c.runner.exit(process_id)
            elif what == "lose":
                unproved.append(c.link.lose())
                instances += 1
                c.link.up(FakeRunner(f"run-{instances}"))
            elif what == "dead" and unproved:
                proved = unproved.pop(which % len(unproved))
                c.link.prove_dead(proved)
                for workspace_id in [w for w, (_, instance) in held.items() if instance == proved]:
                    del held[workspace_id]
            elif what == "reload":
                await soon(c.application.reload())

        for one in steps:
            await step(*one)
        unproved.append(c.link.lose())
        for instance in unproved:
            c.link.prove_dead(instance)
        c.link.up(FakeRunner("last"))
        for name in names:
            assert await c.is_free(name)
