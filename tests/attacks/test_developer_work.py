"""What developers do all day still works in the sandbox, with the real programs; what must not is refused in words."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.harness import REPOSITORY, Finished, Place, SandboxDriver

pytestmark = [pytest.mark.covers("BOX-6"), pytest.mark.timeout(90)]
FROM_NOTHING = True
PYTHON = "/usr/bin/python3"
GIT = "git -c user.name=Agent -c user.email=agent@example.org -c advice.detachedHead=false"


def needs(program: str) -> pytest.MarkDecorator:
    """Programs outside /usr are not visible to a command."""
    found = shutil.which(program, path="/usr/bin:/usr/sbin:/usr/local/bin")
    return pytest.mark.skipif(found is None, reason=f"{program} is not installed below /usr")


def done(finished: Finished) -> str:
    """The output of a command that exited 0."""
    assert finished.code == 0, finished
    return finished.output


def python(sandbox: SandboxDriver, place: Place, program: str, **terms: Any) -> str:
    return done(sandbox.run(place.terms(**terms), [PYTHON, "-c", program]))


def owners(place: Place) -> set[int]:
    return {entry.lstat().st_uid for entry in [place.workspace, *place.workspace.rglob("*")]}


@needs("git")
@pytest.mark.covers("BOX-7")
def test_a_first_git_init_commit_and_everything_after_it(sandbox: SandboxDriver, place: Place) -> None:
    first = f"""
        printf one > file; mkdir -p sub; printf two > sub/file
        git init -q -b main .
        {GIT} add .
        {GIT} commit -q -m first
        git log --format=%s
    """
    assert done(sandbox.shell(place.terms(), first)) == "first\n"
    # From here on .git exists, so its protected names are covered.
    second = f"""
        printf three >> file; {GIT} commit -qam second
        git checkout -q -b topic; printf four >> sub/file; {GIT} commit -qam third
        git checkout -q main; {GIT} merge -q --no-edit topic
        printf five >> file; {GIT} stash -q; {GIT} stash pop -q; git checkout -q -- file
        git worktree add -q tree -b other
        cd tree; printf six > new; git add new; {GIT} commit -q -m fourth; cd ..
        git tag v1; git gc -q; git fsck --no-progress
        git log --all --format=%s | sort | tr '\\n' ' '
    """
    assert done(sandbox.shell(place.terms(), second)).splitlines()[-1] == "first fourth second third "
    assert owners(place) == {place.base.stat().st_uid}


@needs("git")
@pytest.mark.covers("BOX-7")
def test_git_says_why_it_cannot_change_protected_names(sandbox: SandboxDriver, place: Place) -> None:
    done(sandbox.shell(place.terms(), f"git init -q -b main . && {GIT} commit -q --allow-empty -m first"))
    before = (place.workspace / ".git/config").read_bytes()
    for command in ("git config core.hooksPath /tmp/evil", "git branch -m main trunk", "git remote add o /tmp/x"):
        finished = sandbox.run(place.terms(), ["/bin/sh", "-c", command])
        assert finished.code not in (0, None), command
        assert "config" in finished.output, finished
    assert (place.workspace / ".git/config").read_bytes() == before
    # The control: without protection the same command works.
    done(sandbox.shell(place.terms(protect=[]), "git config core.hooksPath /tmp/evil"))
    assert b"hooksPath" in (place.workspace / ".git/config").read_bytes()


def test_pip_installs_a_wheel_into_a_venv_without_network(sandbox: SandboxDriver, place: Place) -> None:
    wheel = place.workspace / "hello_agent-1.0-py3-none-any.whl"
    info = "hello_agent-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("hello_agent.py", "def main():\n    print('hello from the venv')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello-agent\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nhello = hello_agent:main\n")
        archive.writestr(f"{info}/RECORD", "")
    script = f"{PYTHON} -m venv venv && venv/bin/pip install -q --no-index ./{wheel.name} && venv/bin/hello"
    finished = sandbox.shell(place.terms(), script)
    if "ensurepip is not" in finished.output:
        pytest.skip("this machine's Python has no ensurepip: install python3-venv")
    assert "hello from the venv" in done(finished)


def test_multiprocessing_has_semaphores_and_shared_memory(sandbox: SandboxDriver, place: Place) -> None:
    (place.workspace / "work.py").write_text(
        "import multiprocessing as m\n"
        "from multiprocessing import shared_memory\n"
        "def square(n): return n * n\n"
        "if __name__ == '__main__':\n"
        "    with m.Pool(3) as pool: print(sum(pool.map(square, range(100))))\n"
        "    with m.Lock(): memory = shared_memory.SharedMemory(create=True, size=1 << 20)\n"
        "    memory.buf[0] = 7; print(memory.buf[0]); memory.close(); memory.unlink()\n"
    )
    assert done(sandbox.run(place.terms(), [PYTHON, "work.py"])) == "328350\n7\n"


def test_pytest_runs(sandbox: SandboxDriver, place: Place) -> None:
    packages = next((REPOSITORY / ".venv" / "lib").glob("python*/site-packages"), None)
    if packages is None or not os.path.exists(f"/usr/bin/{packages.parent.name}"):
        pytest.skip("no packages for an interpreter below /usr")
    (place.workspace / "test_it.py").write_text(
        "import multiprocessing\n"
        "def test_it(tmp_path):\n"
        "    (tmp_path / 'x').write_text('x')\n"
        "    assert multiprocessing.get_context('fork').Value('i', 4).value == 4\n"
    )
    terms = place.terms(mounts_read_only=[str(packages)], env={"PYTHONPATH": str(packages)})
    interpreter = f"/usr/bin/{packages.parent.name}"
    plain = ["-p", "no:cacheprovider", "-p", "no:asyncio", "--rootdir", "."]
    assert "1 passed" in done(sandbox.run(terms, [interpreter, "-m", "pytest", "-q", *plain]))


@needs("gcc")
@needs("make")
def test_make_and_gcc_build_a_program_that_runs(sandbox: SandboxDriver, place: Place) -> None:
    (place.workspace / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n')
    (place.workspace / "Makefile").write_text("hello: hello.c\n\t$(CC) -O1 -o $@ $<\n")
    assert done(sandbox.shell(place.terms(), "make -s hello && ./hello")) == "built\n"


@needs("node")
def test_node_runs_workers_and_children(sandbox: SandboxDriver, place: Place) -> None:
    (place.workspace / "main.js").write_text(
        "const {Worker, isMainThread, parentPort} = require('worker_threads');\n"
        "if (!isMainThread) { parentPort.postMessage(6 * 7); }\n"
        "else new Worker(__filename).on('message', (answer) => {\n"
        "  console.log(answer, require('child_process').execSync('echo child').toString().trim());\n"
        "  const server = require('net').createServer().listen(0, '127.0.0.1', () => server.close());\n"
        "});\n"
    )
    # V8 reserves far more address space than it uses.
    assert done(sandbox.shell(place.terms(), "node main.js")) == "42 child\n"


def test_locale_and_time_zone(sandbox: SandboxDriver, place: Place) -> None:
    program = (
        "import locale, time, sys; locale.setlocale(locale.LC_ALL, '');"
        "print(locale.getencoding().lower(), sys.stdout.encoding.lower(), '\u00e4\u20ac'.encode() != b'')"
    )
    assert python(sandbox, place, program) == "utf-8 utf-8 True\n"
    zones = "import zoneinfo, datetime as d; print(d.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris')))"
    if os.path.exists("/usr/share/zoneinfo/Europe/Paris"):
        assert python(sandbox, place, zones) == "2024-07-01 00:00:00+02:00\n"
    assert done(sandbox.shell(place.terms(env={"TZ": "UTC"}), "date +%Z")) == "UTC\n"


@needs("ps")
def test_ps_shows_the_command_and_nothing_of_the_machine(sandbox: SandboxDriver, place: Place) -> None:
    lines = done(sandbox.shell(place.terms(), "ps -eo pid,comm --no-headers; true")).splitlines()
    assert {line.split()[0] for line in lines[:2]} == {"1", "2"}
    assert len(lines) == 3


@needs("top")
def test_top_runs(sandbox: SandboxDriver, place: Place) -> None:
    assert "PID" in done(sandbox.shell(place.terms(), "TERM=dumb top -b -n 1"))


def test_unix_sockets_in_the_workspace(sandbox: SandboxDriver, place: Place) -> None:
    program = """
import socket, os
server = socket.create_server("s.sock", family=socket.AF_UNIX)
client = socket.socket(socket.AF_UNIX); client.connect("s.sock")
peer, _ = server.accept()
client.sendall(b"hello"); print(peer.recv(5).decode()); os.unlink("s.sock")
"""
    assert python(sandbox, place, program) == "hello\n"


def test_loopback_and_names_of_this_host(sandbox: SandboxDriver, place: Place) -> None:
    program = """
import socket
server = socket.create_server(("localhost", 0))
client = socket.create_connection(("localhost", server.getsockname()[1]), 5)
print(sorted({a[4][0] for a in socket.getaddrinfo("localhost", 1)} & {"127.0.0.1"}), socket.gethostname() != "")
"""
    assert python(sandbox, place, program) == "['127.0.0.1'] True\n"


def test_inotify_reports_changes_in_the_workspace(sandbox: SandboxDriver, place: Place) -> None:
    program = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(0)
assert libc.inotify_add_watch(watch, b".", 0x100) > 0
open("made", "w").close()
event = os.read(watch, 4096)
print(event[16:16 + struct.unpack_from("iIII", event)[3]].rstrip(b"\\0").decode())
"""
    assert python(sandbox, place, program) == "made\n"


@pytest.mark.covers("BOX-8")
def test_two_thousand_threads_run_where_the_limits_allow_them(sandbox: SandboxDriver, place: Place) -> None:
    program = """
import threading
threading.stack_size(65536)
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(2000)]
try:
    for thread in threads: thread.start()
    print(threading.active_count())
except RuntimeError as error:
    print(error)
stop.set()
for thread in threads:
    if thread.ident: thread.join()
"""
    assert python(sandbox, place, program, limits={"processes": 4096}) == "2001\n"
    # The control: with the default limit they do not all start.
    assert python(sandbox, place, program) == "can't start new thread\n"


def test_who_am_i_has_a_name_and_a_home_that_can_be_written(sandbox: SandboxDriver, place: Place) -> None:
    script = (
        'test "$(id -u)" -ne 0; test -n "$(id -un)"; echo x > "$HOME/x"; echo x > /tmp/x; mktemp -d > /dev/null; pwd'
    )
    assert done(sandbox.shell(place.terms(), script)) == f"{place.workspace}\n"


@pytest.mark.covers("PROC-2")
def test_a_terminal_has_a_name_a_size_and_a_foreground(sandbox: SandboxDriver, place: Place) -> None:
    program = (
        "import os, sys; print(os.ttyname(0), *os.get_terminal_size(), os.tcgetpgrp(0) == os.getpgrp(),"
        " open('/dev/tty').isatty(), os.environ['TERM'] != '')"
    )
    finished = sandbox.run(place.terms(), [PYTHON, "-c", program], tty=(24, 80))
    name, *rest = done(finished).split()
    assert name.startswith("/dev/")
    assert rest == ["80", "24", "True", "True", "True"]


@needs("gdb")
def test_a_debugger_is_refused_and_says_so(sandbox: SandboxDriver, place: Place) -> None:
    finished = sandbox.run(place.terms(), ["gdb", "-nx", "-batch", "-ex", "run", "/usr/bin/true"])
    assert "Operation not permitted" in finished.output, finished
    assert "exited normally" not in finished.output


@pytest.mark.parametrize("program", [pytest.param("sudo", marks=needs("sudo")), pytest.param("su", marks=needs("su"))])
def test_becoming_another_user_is_refused(sandbox: SandboxDriver, place: Place, program: str) -> None:
    argv = ["sudo", "-n", "id"] if program == "sudo" else ["su", "-s", "/bin/sh", "-c", "id", "root"]
    finished = sandbox.run(place.terms(), ["/bin/sh", "-c", '"$@" < /dev/null', "sh", *argv])
    assert finished.code not in (0, None)
    assert "uid=0" not in finished.output


def test_files_that_a_command_makes_belong_to_the_workspace_owner(sandbox: SandboxDriver, place: Place) -> None:
    (place.workspace / "given").write_text("x")
    sandbox.identity.own(place.workspace / "given")
    script = "echo more >> given; mkdir made; echo x > made/file; ln -s file made/link; chmod 600 made/file; rm given"
    done(sandbox.shell(place.terms(), script))
    assert owners(place) == {place.base.stat().st_uid}
    assert sorted(os.listdir(place.workspace)) == ["made"]


def test_running_programs_from_the_workspace(sandbox: SandboxDriver, place: Place) -> None:
    script = Path(place.workspace / "run.sh")
    script.write_text('#!/bin/sh\necho ran "$1"\n')
    script.chmod(0o755)
    sandbox.identity.own(script)
    assert done(sandbox.run(place.terms(), ["./run.sh", "--with spaces"])) == "ran --with spaces\n"
