"""`codespace holds`, `work`, `ps` and `logs` against a real appliance, with hostile text on the way."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from gateway.__main__ import Joined
from gateway.cli.app import command_line
from gateway.cli.console import run
from gateway.cli.inbox_client import shown, shown_lines
from tests.program import ROOT, Program, Refused, running_program

HOSTILE = "\x1b]0;owned\x07 <b>x</b> \u202e"


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Cli = Callable[..., Done]


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    with running_program(approvals="confirm") as started:
        yield started


@pytest.fixture
def cli(program: Program, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line in this process, on the socket of the real program."""
    monkeypatch.setenv("CODESPACE_SOCKET", str(program.folder / "mcp.sock"))

    def run_here(*arguments: str) -> Done:
        capfd.readouterr()
        status = run(command_line(Joined()), arguments)
        sys.stdout.flush()
        return Done(status, *capfd.readouterr())

    return run_here


def held(program: Program, *command: str) -> str:
    with pytest.raises(Refused) as refused:
        program.call("exec_command", workspace_id="demo", command=list(command))
    assert refused.value.code == "APPROVAL_REQUIRED"
    return refused.value.approval_id or ""


@pytest.mark.covers("APPR-3", "APPR-4")
def test_a_person_grants_and_denies_from_a_shell(program: Program, cli: Cli) -> None:
    yes, no = held(program, "printf", "%s\\n", HOSTILE), held(program, "false")
    listed = cli("holds", "list", "--workspace", "demo")
    assert [line.split()[:2] for line in listed.lines[1:3]] == [[no, "pending"], [yes, "pending"]]
    shown_hold = cli("holds", "show", yes)
    assert "printf" in shown_hold.out
    assert "\x1b" not in shown_hold.out
    assert cli("holds", "grant", yes).out == f"{yes} granted\n"
    assert cli("holds", "deny", no).out == f"{no} denied\n"
    again = cli("holds", "grant", no)
    assert (again.status, again.out) == (1, "")
    assert "is denied" in again.err
    assert [hold["approval_id"] for hold in json.loads(cli("holds", "list", "--json").out)] == [yes]

    process_id = program.call("operation_resume", approval_id=yes)["exec_command"]["process_id"]
    assert program.ended(process_id)["command_exit"] == {"code": 0}
    row = next(line for line in cli("ps").lines if process_id in line)
    assert "exited" in row
    assert "\x1b" not in row
    assert cli("logs", process_id, "-f").out == f"{HOSTILE}\n"
    assert {hold["approval_id"] for hold in json.loads(cli("holds", "list", "--all", "--json").out)} >= {yes, no}
    unknown = cli("logs", "proc_x")
    assert (unknown.status, "PROCESS_NOT_FOUND" in unknown.err) == (1, True)


def test_control_characters_of_an_output_do_nothing_to_a_terminal(program: Program, cli: Cli) -> None:
    approval_id = held(program, "printf", "a\\tb\\n\\033[31mred\\033[0m\\n")
    cli("holds", "grant", approval_id)
    process_id = program.call("operation_resume", approval_id=approval_id)["exec_command"]["process_id"]
    program.ended(process_id)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "gateway", "logs", process_id, "--socket", str(program.folder / "mcp.sock")]
    subprocess.run(command, cwd=ROOT, stdout=theirs, timeout=20, check=True)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 4096):
            seen += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert b"\x1b" not in seen
    assert "\\x1b[31mred\\x1b[0m" in seen.decode()


@pytest.mark.covers("WORK-2")
def test_a_person_writes_to_an_agent_and_stops_it_from_a_shell(program: Program, cli: Cli) -> None:
    work_id = program.call("work_open", workspace_id="demo", title=HOSTILE)["work_id"]
    row = next(line for line in cli("work", "list").lines if work_id in line)
    assert shown(HOSTILE) in row
    added = cli("work", "add", work_id, HOSTILE, "--delivery", "next_checkpoint")
    assert "queued" in added.out
    assert "\x1b" not in added.out
    draft = cli("work", "add", work_id, "later", "--draft", "--note").out.split()[0]
    assert cli("work", "queue", draft).out == f"{draft} queued: later\n"
    assert cli("work", "cancel", draft).out == f"{draft} cancelled: later\n"
    late = cli("work", "queue", draft)
    assert (late.status, "is cancelled" in late.err) == (1, True)
    intents = json.loads(cli("work", "show", work_id, "--json").out)
    assert [(i["body"], i["kind"], i["state"]) for i in intents] == [
        (HOSTILE, "follow_up", "queued"),
        ("later", "note", "cancelled"),
    ]
    stopped = cli("work", "stop", work_id, "--reason", "wrong branch")
    assert stopped.out.startswith("0 command(s) ended; notice int_")
    assert program.call("steer_claim_next", work_id=work_id)["item"]["content"] == "wrong branch"
    bad = cli("work", "add", work_id, "x", "--delivery", "now")
    assert (bad.status, "delivery" in bad.err) == (1, True)
    assert cli("work", "show", "nope").status == 1


def test_text_from_elsewhere_is_shown_and_does_nothing() -> None:
    assert shown(HOSTILE) == "\\x1b]0;owned\\x07 <b>x</b> \\u202e"
    assert shown("a\nb\x9bc") == "a\\nb\\x9bc"
    assert shown_lines("a\tb\n\x1b[2J\n") == "a\tb\n\\x1b[2J\n"
    assert shown("grün 日本 \U0001f600") == "grün 日本 \U0001f600"
