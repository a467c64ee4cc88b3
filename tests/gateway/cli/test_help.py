"""The command line's own words: help texts as recorded, and how bad usage is said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.__main__ import Joined
from gateway.cli.app import command_line
from gateway.cli.console import run

HELP = Path(__file__).parents[2] / "data" / "help"
COMMANDS = (
    *("", "serve", "stdio", "connect", "call", "exec", "doctor", "selftest", "demo", "registry", "registry check"),
    *("holds", "holds list", "holds show", "holds grant", "holds deny"),
    *("work", "work list", "work show", "work add", "work queue", "work cancel", "work stop", "ps", "logs"),
)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def codespace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The program in this process: what is asked of it here ends before anything is started."""
    for name in list(os.environ):
        if name.startswith(("CODESPACE_", "XDG_")) and name != "CODESPACE_REGOLD":
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")

    def run_here(*arguments: str, **environment: str) -> Done:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        status = run(command_line(Joined()), arguments)
        return Done(status, *capsys.readouterr())

    return run_here


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_as_recorded(codespace: Callable[..., Done], command: str) -> None:
    """CODESPACE_REGOLD=1 records anew."""
    done = codespace(*command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    recorded = HELP / f"{command.replace(' ', '_') or 'codespace'}.txt"
    if os.environ.get("CODESPACE_REGOLD"):
        recorded.write_text(done.stdout)
    assert done.stdout == recorded.read_text()


def test_the_version_is_the_package_s(codespace: Callable[..., Done]) -> None:
    done = codespace("--version")
    assert (done.returncode, done.stdout) == (0, "codespace 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "error: bad usage: Missing command: see codespace --help"),
        (("frob",), "error: bad usage: No such command 'frob': see codespace --help"),
        (("registry",), "error: bad usage: Missing command: see codespace registry --help"),
        (("serve", "--no-such-flag"), "error: bad usage: No such option: --no-such-flag: see codespace serve --help"),
        (("call",), "error: bad usage: Missing argument 'TOOL': see codespace call --help"),
        (("exec", "demo"), "error: bad usage: Missing argument 'ARGV': see codespace exec --help"),
        (("serve",), "error: no registry given: --registry: name the registry file, or set CODESPACE_REGISTRY"),
        (("serve", "--registry", "/x"), "error: no socket given and XDG_RUNTIME_DIR is not set: --socket: "),
        (("serve", "--http", "8080"), "error: bad setting '8080': --http: write it as HOST:PORT"),
        (("serve", "--runner", "x"), "error: bad setting 'x': --runner: choose uds or in-process"),
        (("serve", "--registry", "/x", "--token-file", "/nope"), "error: cannot use the token file: /nope: "),
        (("registry", "check", "/nope"), "error: registry refused: cannot be opened (ENOENT): /nope: "),
        (("doctor", "--registry", "/nope"), "error: registry refused: cannot be opened (ENOENT): /nope: "),
        (("exec", "--registry", "/nope", "w", "--", "true"), "error: registry refused: cannot be opened (ENOENT): "),
    ],
)
def test_bad_usage_exits_2_and_says_what_to_do(
    codespace: Callable[..., Done], arguments: tuple[str, ...], said: str
) -> None:
    done = codespace(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(said)


def test_a_bad_setting_in_the_environment_names_the_variable(codespace: Callable[..., Done]) -> None:
    done = codespace("serve", CODESPACE_MAX_PROCESSES="many")
    assert done.returncode == 2
    assert "error: bad setting 'many': CODESPACE_MAX_PROCESSES: give a whole number" in done.stderr


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "gateway", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == ""
        assert program.wait(15) in (0, 1)


def test_help_call_and_connect_load_neither_the_sdk_nor_the_server() -> None:
    """They start for each call of a shell or an agent host, so they stay light."""
    script = (
        "import sys; sys.argv = ['codespace', 'call', 'x', '--socket', '/nope']\n"
        "from gateway.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'mcp', 'uvicorn', 'starlette', 'asyncio'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=15, check=False)
    assert done.stdout == "[]\n"
