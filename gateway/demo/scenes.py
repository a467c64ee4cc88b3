"""The scenes of the demo, in order. Each shows one promise on the real thing and checks it, with a positive control
wherever something is said to be impossible.

Refuses to know: how the stage is built. Called by the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from gateway.demo.agent import Agent, Refused
from gateway.demo.narrator import Narrator
from gateway.demo.stage import Stage

GONE_S = 5.0
_CONNECT = """
import socket, sys
for address in (("127.0.0.1", int(sys.argv[1])), ("1.1.1.1", 443)):
    try:
        socket.create_connection(address, 5).close()
        print("connected to", address)
    except OSError as error:
        print("refused by the kernel:", error)
"""


async def look_around(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Look around")
    show.call('workspace_info {"workspace_id": "demo"}')
    info = await agent.call("workspace_info", workspace_id="demo")
    execution = info["execution"]
    active = [name for name, state in execution["isolation"]["protections"].items() if state == "active"]
    show.say(f"MCP {agent.revision}, tools: {', '.join(await agent.tools())}.")
    show.say(f"Protections in force: {', '.join(active)}.")
    show.proof("commands run in the Linux sandbox", execution["isolation"]["command_sandbox"] == "linux-sandbox", info)
    show.proof(
        "the network is restricted, and that is enforced", execution["network"]["enforcement"] == "enforced", info
    )
    show.proof("no model is called anywhere in the appliance", info["internal_model_calls"] is False, info)


async def find_and_read(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Find and read")
    pattern = stage.project.sources
    show.call(f'find {{"pattern": "{pattern}"}}')
    found = await agent.call("find", workspace_id="demo", pattern=pattern)
    paths = [match["path"] for match in found["matches"]]
    on_disk = await asyncio.to_thread(_matching, stage.demo, pattern)
    show.proof(
        f"{len(paths)} files, sorted, and the same as on disk", paths == on_disk[: len(paths)] and bool(paths), paths
    )
    show.call(f'read {{"path": "{stage.project.readme}"}}')
    got = await agent.call("read", workspace_id="demo", path=stage.project.readme)
    show.output("\n".join(got["content"].splitlines()[:3]))
    text = await asyncio.to_thread((stage.demo / stage.project.readme).read_text)
    show.proof(f"the file as it is, with its version {got['version'][:19]}…", got["content"] == text, got)


def _matching(root: Path, pattern: str) -> list[str]:
    found = (str(path.relative_to(root)) for path in root.glob(pattern) if path.is_file())
    return sorted(found, key=os.fsencode)


async def run_the_tests(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Run the unit tests in the sandbox, output as it comes")
    command = stage.project.tests
    show.call(f"exec_command {list(command)}")
    done = await agent.finish(await agent.start(command), show.output)
    show.proof("the tests pass in there", done.code == 0, done.output)
    who = await agent.run("/bin/sh", "-c", "id -u; grep CapEff /proc/self/status; grep NoNewPrivs /proc/self/status")
    uid, capabilities, no_new = who.output.splitlines()
    bare = uid != "0" and int(capabilities.split()[1], 16) == 0 and no_new.split()[1] == "1"
    show.proof(f"as uid {uid}, without any capability, unable to gain one", bare, who.output)


async def patch_and_run(show: Narrator, stage: Stage, agent: Agent) -> None:
    if "apply_patch" not in await agent.tools():
        return
    show.scene("Patch, run, look, patch again")
    python = stage.project.python
    wrong = "*** Begin Patch\n*** Add File: answer.py\n+print(6 * 8)\n*** End Patch\n"
    show.call('apply_patch "*** Add File: answer.py …"')
    added = await agent.call("apply_patch", workspace_id="demo", patch=wrong)
    first = await agent.run(python, "answer.py")
    show.proof("the new file is there, and runs", (added["status"], first.output) == ("applied", "48\n"), first.output)
    right = "*** Begin Patch\n*** Update File: answer.py\n@@\n-print(6 * 8)\n+print(6 * 7)\n*** End Patch\n"
    seen = {"answer.py": (await agent.call("read", workspace_id="demo", path="answer.py"))["version"]}
    show.call('apply_patch "*** Update File: answer.py …", for the version that was read')
    await agent.call("apply_patch", workspace_id="demo", patch=right, expected_versions=seen)
    second = await agent.run(python, "answer.py")
    show.proof("the correction is in force", second.output == "42\n", second.output)
    try:
        await agent.call("apply_patch", workspace_id="demo", patch=wrong, expected_versions=seen)
        stale = "no refusal"
    except Refused as error:
        stale = error.code
    show.proof("a patch for the version before is refused", stale == "VERSION_CONFLICT", stale)


async def resize_a_terminal(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Resize a terminal")
    script = "stty size; trap 'stty size; exit 0' WINCH; echo waiting; while :; do sleep 1; done"
    show.call(f'exec_command {{"command": ["sh", "-c", "{script}"], "tty": true}}')
    process_id = await agent.start(["/bin/sh", "-c", script], tty=True)
    before, cursor = await agent.follow(process_id, until="waiting")
    show.call('process_resize {"rows": 40, "cols": 132}')
    await agent.call("process_resize", process_id=process_id, rows=40, cols=132)
    after, _ = await agent.follow(process_id, cursor=cursor)
    await agent.finish(process_id)
    show.proof("it began with 24 rows and 80 columns", "24 80" in before, before)
    show.proof("the program was told, and sees 40 rows and 132 columns", "40 132" in after, after)


async def reach_for_the_network(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Reach for the network")
    with _listener() as port:
        control = await asyncio.to_thread(_can_connect, port)
        show.proof(f"from outside the sandbox, 127.0.0.1:{port} answers (the control)", control)
        show.call('exec_command ["python3", "-c", "socket.create_connection(…)"]')
        tried = await agent.run(stage.project.python, "-c", _CONNECT, str(port))
        show.output(tried.output)
        refused = tried.output.count("refused by the kernel") == 2 and "connected" not in tried.output
        show.proof(
            "from inside, Python reaches neither this machine's loopback nor the internet", refused, tried.output
        )
        if shutil.which("curl", path="/usr/bin:/bin") is not None:
            curl = await agent.run("curl", "-sS", "-m", "5", f"http://127.0.0.1:{port}/")
            show.output(curl.output)
            show.proof("nor does curl", curl.code not in (0, None), curl.output)


@contextlib.contextmanager
def _listener() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port: int = listener.getsockname()[1]
        yield port


def _can_connect(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


async def reach_for_secrets(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Reach for what is not its own")
    own = await agent.run("cat", stage.project.readme)
    show.proof("cat shows a file of the workspace (the control)", own.code == 0 and bool(own.output), own.output)
    for what, path in (
        ("/etc/shadow", "/etc/shadow"),
        ("the appliance's token", str(stage.token_file)),
        ("the MCP socket", str(stage.socket)),
        ("a file of another workspace", str(stage.secret)),
    ):
        assert await asyncio.to_thread(os.path.lexists, path), path
        tried = await agent.run("cat", path)
        show.output(tried.output.replace(str(stage.base), "…"))
        show.proof(f"{what} is out of reach", tried.code not in (0, None), tried.output)
    for path, code in (("../other/plans.txt", "PATH_ESCAPE"), ("/etc/passwd", "PATH_ESCAPE")):
        show.call(f'read {{"path": "{path}"}}')
        seen = await _refusal(agent, path)
        show.proof(f"the file tools say {code}", seen == code, seen)
    pids = await agent.run("/bin/sh", "-c", "ls /proc | grep -c '^[0-9]'; kill -0 " + str(stage.server.pid))
    alone = int(pids.output.split()[0]) < 10 and pids.code != 0
    show.proof("it sees no process but its own, and cannot signal the appliance", alone, pids.output)


async def _refusal(agent: Agent, path: str) -> str:
    try:
        await agent.call("read", workspace_id="demo", path=path)
    except Refused as error:
        return error.code
    return "no refusal"


async def cancel_with_a_daemon(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Cancel a command that left a daemon behind")
    mark = f"86399.{os.urandom(4).hex().translate(str.maketrans('abcdef', '012345'))}"
    script = (
        f"( ( setsid sh -c 'trap \"\" TERM HUP; sleep {mark}; :' & ) & ); echo started; trap '' TERM; sleep {mark}; :"
    )
    show.call(f'exec_command ["sh", "-c", "{script}"]')
    process_id = await agent.start(["/bin/sh", "-c", script])
    await agent.follow(process_id, until="started")
    running = await _await_count(mark, lambda count: count >= 4)
    show.proof(f"{running} processes of it run, a double-forked daemon with its own session among them", running >= 4)
    try:
        await agent.call("exec_command", workspace_id="demo", command=["true"])
        busy = "no refusal"
    except Refused as error:
        busy = error.code
    show.proof("meanwhile the workspace is busy, and says so", busy == "WORKSPACE_BUSY", busy)
    show.call("terminate_process")
    await agent.call("terminate_process", process_id=process_id)
    ended = (await agent.finish(process_id)).status
    show.proof("it ended as terminated", ended["termination"] == "terminated", ended)
    left = await _await_count(mark, lambda count: count == 0)
    show.proof("nothing of it is left: no command, no daemon", left == 0, left)
    again = await agent.run("true")
    show.proof("the workspace is free again", again.code == 0, again.status)


async def _await_count(mark: str, enough: object) -> int:
    assert callable(enough)
    end = asyncio.get_running_loop().time() + GONE_S
    while True:
        count = await asyncio.to_thread(_holders, mark)
        if enough(count) or asyncio.get_running_loop().time() > end:
            return count
        await asyncio.sleep(0.05)


def _holders(mark: str) -> int:
    """Living processes of this machine with the mark in their command line, zombies left out by having none."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                count += mark.encode() in Path("/proc", name, "cmdline").read_bytes()
    return count


async def go_home(show: Narrator, stage: Stage, agent: Agent) -> None:
    show.scene("Go home")
    audited = sum('"event": "audit"' in line for line in stage.log)
    token = (await asyncio.to_thread(stage.token_file.read_text)).strip()
    show.say(f"The log has an audit line for each decision: {audited} of them.")
    show.proof("and the token is in none of its lines", audited > 0 and not any(token in line for line in stage.log))


SCENES = (
    look_around,
    find_and_read,
    run_the_tests,
    patch_and_run,
    resize_a_terminal,
    reach_for_the_network,
    reach_for_secrets,
    cancel_with_a_daemon,
    go_home,
)
