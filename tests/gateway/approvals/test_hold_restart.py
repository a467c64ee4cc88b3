"""The real program, ended between the steps of a hold: the next one answers as the last would have.

The same calls are made three times: to a program that is left alone, to one that gets SIGTERM between every two of
them, and to one that gets SIGKILL there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.program import Program, Refused, running_program

PATCH = "*** Begin Patch\n*** Add File: made\n+marker-of-the-patch\n*** End Patch\n"
OTHER = PATCH.replace("made", "never")
RAN = ["sh", "-c", "echo ran >> ran"]
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "patch": ("apply_patch", {"patch": PATCH}),
    "command": ("exec_command", {"command": RAN}),
    "denied patch": ("apply_patch", {"patch": OTHER}),
    "denied command": ("exec_command", {"command": ["sh", "-c", "echo ran >> never"]}),
    "opened patch": ("apply_patch", {"patch": PATCH.replace("made", "made-2")}),
    "opened command": ("exec_command", {"command": ["sh", "-c", "echo ran >> ran-2"]}),
}
"""Lives of a hold, by name. Those that begin with `opened` begin with `approval_create`."""


@dataclass
class Story:
    """One telling. `between`: what happens between two steps. `told`: every answer, ids replaced by their order."""

    program: Program
    between: Callable[[], None]
    told: list[tuple[str, str, Any]] = field(default_factory=list)
    holds: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def tell(self, step: str, act: Callable[[str], Any]) -> None:
        for life in CALLS:
            self.told.append((step, life, self._plain(act(life))))

    def ask(self, tool: str, /, **arguments: Any) -> Any:
        """The answer, or the error's code and hold."""
        try:
            return self.program.call(tool, **arguments)
        except Refused as refused:
            return {"code": refused.code, "approval_id": refused.approval_id, "state": refused.details.get("state")}

    def _plain(self, value: Any) -> Any:
        """Ids and times differ from one telling to the next, which id is which does not."""
        if isinstance(value, dict):
            return {key: self._plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if isinstance(value, str) and value.partition("_")[0] in ("apr", "op", "proc"):
            return self._names.setdefault(value, f"{value.partition('_')[0]} {len(self._names)}")
        return value

    # --- the steps ----------------------------------------------------------------------------------------------------
    def call(self, life: str) -> Any:
        tool, arguments = CALLS[life]
        answer = self.ask(tool, workspace_id="demo", **arguments)
        assert answer["code"] == "APPROVAL_REQUIRED"
        return answer

    def open(self, life: str) -> Any:
        tool, arguments = CALLS[life]
        if life.startswith("opened"):
            answer = self.ask("approval_create", tool=tool, arguments={"workspace_id": "demo", **arguments})
        else:
            answer = self.call(life)
        self.holds[life] = answer["approval_id"]
        return answer

    def decide(self, life: str) -> Any:
        decision = "deny" if life.startswith("denied") else "grant"
        return self.ask("approval_resolve", approval_id=self.holds[life], decision=decision)

    def resume(self, life: str) -> Any:
        answer = self.ask("operation_resume", approval_id=self.holds[life])
        if "exec_command" in answer and life not in self.results:
            self.program.ended(answer["exec_command"]["process_id"])
        assert self.results.setdefault(life, answer) == answer, "another resume, another answer"
        return answer

    def conflict(self, life: str) -> Any:
        answer = self.ask("operation_resume", approval_id=self.holds[life])
        assert answer["code"] == "APPROVAL_CONFLICT"
        return answer


def tell(ends: signal.Signals | None) -> list[tuple[str, str, Any]]:
    with running_program(approvals="confirm") as program:
        story = Story(program, lambda: None if ends is None else program.restart(ends))
        story.tell("open", story.open)
        story.between()
        story.tell("the same call", story.call)
        story.tell("resume while pending", story.conflict)
        story.between()
        story.tell("decide", story.decide)
        story.between()
        story.tell("decide again", story.decide)
        story.tell("the same call once decided", story.call)
        story.between()
        story.tell("resume", story.resume)
        story.between()
        story.tell("resume again", story.resume)
        story.tell("the same call once it is over", story.call)
        files = {path.name: path.read_text() for path in program.workspace.iterdir()}
    marker = "marker-of-the-patch\n"
    assert files == {"made": marker, "made-2": marker, "ran": "ran\n", "ran-2": "ran\n"}
    return story.told


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[str, str, Any]]:
    return tell(None)


@pytest.mark.timeout(180)
@pytest.mark.covers("APPR-1", "APPR-2", "APPR-3", "APPR-4", "APPR-5", "APPR-6")
@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_program_that_ends_between_any_two_steps_changes_no_answer(
    ends: signal.Signals, undisturbed: list[tuple[str, str, Any]]
) -> None:
    assert tell(ends) == undisturbed
    said = {(step, life): answer for step, life, answer in undisturbed}
    # That the answers are the right ones, and told apart.
    assert said["open", "patch"]["approval_id"] == said["the same call", "patch"]["approval_id"]
    assert said["open", "opened command"]["approval_id"] == said["the same call", "opened command"]["approval_id"]
    assert said["decide", "command"]["state"] == "granted"
    assert said["decide again", "command"]["code"] == "APPROVAL_CONFLICT"
    assert said["resume", "denied patch"]["code"] == "APPROVAL_CONFLICT"
    for life in ("patch", "command", "opened patch", "opened command"):
        assert said["resume", life]["state"] == "consumed"
        assert said["the same call once decided", life]["approval_id"] == said["open", life]["approval_id"]
        assert said["the same call once it is over", life]["approval_id"] != said["open", life]["approval_id"]
