"""The running image from outside: what an agent does, what the container may, how it ends and comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pytest_docker.plugin import Services

from tests.integration.containers import UID, Appliance, flags, home, run, serving, volumes, write_registry

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ADD = "*** Begin Patch\n*** Add File: {}\n+one\n*** End Patch\n"


@pytest.mark.covers("IMG-1", "IMG-4")
def test_an_agent_reads_patches_and_runs_through_the_socket_from_outside(appliance: Appliance) -> None:
    assert (appliance.get("/healthz"), appliance.get("/readyz")) == (200, 200)
    patched = appliance.call("apply_patch", workspace_id="demo", patch=ADD.format("a.txt"))
    assert patched["files"] == ["a.txt"]
    assert (appliance.workspace / "a.txt").read_text() == "one\n"
    assert (appliance.workspace / "a.txt").stat().st_uid == UID
    assert appliance.call("read", workspace_id="demo", path="a.txt")["content"] == "one\n"
    assert appliance.call("grep", workspace_id="demo", pattern="one")["matches"][0]["path"] == "a.txt"
    assert appliance.output_of("sh", "-c", "cat a.txt; id -u; echo two >b.txt") == f"one\n{UID}\n"
    assert (appliance.workspace / "b.txt").read_text() == "two\n"


@pytest.mark.covers("IMG-1")
@pytest.mark.parametrize("program", ["git", "rg", "python3", "make", "curl", "ps"])
def test_what_agents_expect_is_there_for_commands(appliance: Appliance, program: str) -> None:
    assert appliance.run(program, "--version")["command_exit"] == {"code": 0}


def test_a_command_makes_a_virtual_environment(appliance: Appliance) -> None:
    assert appliance.run("python3", "-m", "venv", "--without-pip", "env")["command_exit"] == {"code": 0}
    assert appliance.run("env/bin/python", "-c", "import sys; assert sys.prefix != sys.base_prefix")["exit_code"] == 0


@pytest.mark.covers("IMG-1")
def test_the_container_has_no_capability_no_writable_root_and_no_way_to_the_machines_settings(
    appliance: Appliance,
) -> None:
    """As a command that broke out would find itself: the gateway's user, outside every sandbox."""
    fields = dict(line.split(":\t", 1) for line in appliance.inside("cat", "/proc/self/status").output.splitlines())
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    for place in ("/x", "/usr/x", "/opt/codespace/x", "/etc/x", "/etc/codespace/x"):
        assert "Read-only file system" in appliance.inside("sh", "-c", f"echo x >{place}").errors, place
    pattern = "/proc/sys/kernel/core_pattern"
    assert appliance.inside("cat", pattern).status == 0
    assert "Permission denied" in appliance.inside("sh", "-c", f"echo x >{pattern}").errors
    # The control: the file system itself is writable, uid 0 without any capability gets in. Appending nothing to it.
    assert appliance.inside("sh", "-c", f": >>{pattern}", user=0).status == 0


@pytest.mark.covers("IMG-1")
def test_the_image_holds_neither_build_tools_nor_tests_nor_a_model_sdk() -> None:
    script = """
import importlib.metadata, os, shutil
names = {d.metadata["Name"].lower() for d in importlib.metadata.distributions()}
print(sorted(names & {"pip", "setuptools", "wheel", "pytest", "mypy", "anthropic", "openai", "litellm", "langchain"}))
print(sorted(n for n in ("gcc", "cc", "pip") if shutil.which(n)))
print([p for p in ("/build", "/root/.cache", "/opt/codespace/tests") if os.path.exists(p)])
"""
    ended = run("-c", script, options=["--rm", "--user", str(UID), "--entrypoint", "/opt/codespace/bin/python"])
    assert ended.output.splitlines() == ["[]", "[]", "[]"], ended


@pytest.mark.covers("NETIF-1")
def test_docker_exec_bridges_a_host_that_only_starts_programs(appliance: Appliance) -> None:
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
    }  # fmt: skip
    ended = appliance.inside("codespace", "connect", stdin=json.dumps(hello).encode() + b"\n")
    assert json.loads(ended.output.splitlines()[0])["result"]["serverInfo"]["name"] == "codespace"


@pytest.mark.covers("PROC-7")
def test_sigterm_ends_every_command_and_the_container_with_status_0() -> None:
    with home() as folder, serving(folder) as running:
        process_id = running.call("exec_command", workspace_id="demo", command=["sleep", "1000"])["process_id"]
        assert running.call("process_status", process_id=process_id)["state"] == "running"
        running.signal("TERM")
        assert running.wait() == 0
        assert running.log[-1]["event"] == "stopped"
        assert all("level" in line for line in running.log), running.log


@pytest.mark.covers("OP-5", "IMG-1")
def test_a_new_container_on_the_old_data_knows_patches_holds_and_works() -> None:
    with home(approvals="off") as folder:
        with serving(folder) as first:
            patched = first.call("apply_patch", workspace_id="demo", patch=ADD.format("a"), operation_key="k1")
            work_id = first.call("work_open", workspace_id="demo")["work_id"]
            held = {"workspace_id": "demo", "command": ["true"]}
            approval_id = first.call("approval_create", tool="exec_command", arguments=held)["approval_id"]
            first.signal("KILL")
            first.wait()
        with serving(folder) as second:
            status = second.call("operation_status", operation_id=patched["operation_id"])
            assert [event["event"] for event in status["events"]] == ["minted", "finished"]
            again = second.call("apply_patch", workspace_id="demo", patch=ADD.format("a"), operation_key="k1")
            assert again["replayed"] is True
            assert second.call("steer_status", work_id=work_id)["state"] == "active"
            granted = second.call("approval_resolve", approval_id=approval_id, decision="grant")
            assert granted["state"] == "granted"
            write_registry(
                folder, demo={"root": "/workspaces/demo", "profile": "workspace-write", "approvals": "confirm"}
            )
            second.signal("HUP")
            while second.call("workspace_info", workspace_id="demo")["execution"]["approvals"] != "confirm":
                pass


@pytest.mark.covers("IMG-1")
def test_two_appliances_run_side_by_side_and_share_nothing() -> None:
    with home() as one, home() as other, serving(one) as first, serving(other) as second:
        first.run("sh", "-c", "echo first >who")
        second.run("sh", "-c", "echo second >who")
        assert first.output_of("cat", "who") == "first\n"
        assert second.output_of("cat", "who") == "second\n"
        first.signal("TERM")
        assert first.wait() == 0
        assert second.get("/readyz") == 200


@pytest.mark.covers("LEASE-2")
def test_a_second_appliance_on_the_same_data_is_refused() -> None:
    with home() as folder, serving(folder):
        again = run("serve", "--socket", "/tmp/other.sock", options=[*flags(), *volumes(folder)])
    assert again.status == 1, again
    assert "error: " in again.errors


@pytest.mark.covers("IMG-3")
def test_selftest_runs_in_the_image_and_every_probe_is_blocked() -> None:
    ended = run("selftest", "--json", timeout_s=240)
    assert ended.status == 0, ended.output[-2000:] + ended.errors
    result = json.loads(ended.output)
    assert result["ok"] is True
    assert len(result["probes"]) > 40
    assert {probe["state"] for probe in result["probes"]} == {"blocked"}


@pytest.mark.covers("IMG-4")
def test_the_whole_scenario_of_an_agent_runs_in_the_image() -> None:
    ended = run("demo", timeout_s=240)
    assert ended.status == 0, ended
    assert "Traceback" not in ended.errors


@pytest.mark.covers("IMG-4")
def test_compose_brings_the_same_appliance_up(docker_services: Services, composed_home: Path) -> None:
    composed = Appliance(composed_home, "")
    docker_services.wait_until_responsive(composed.is_ready, timeout=90, pause=0.1)
    assert composed.output_of("id", "-u") == f"{UID}\n"
