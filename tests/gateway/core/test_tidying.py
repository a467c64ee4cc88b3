"""Workspaces are tidied after a crash: before they serve, and never under a command that may still be alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import api
from runner.api import ErrorCode, RunnerError
from tests.gateway.core.application_rig import WRITE, Core, core, soon
from tests.gateway.core.support import FakeRunner

pytestmark = pytest.mark.covers("BOX-7")
DEFAULT = (".git/hooks", ".git/config")


def tidied(runner: FakeRunner) -> set[tuple[str, tuple[str, ...]]]:
    return {
        (request.workspace.root, request.protect)
        for _, request in runner.requests
        if isinstance(request, api.TidyWorkspace)
    }


def place(it: Core, name: str, protect: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    return str(it.root(name)), protect


async def test_every_workspace_with_protected_names_is_tidied_before_it_serves(tmp_path: Path) -> None:
    entries: dict[str, dict[str, object]] = {"demo": WRITE, "mine": {"protect": [".codex"]}, "bare": {"protect": []}}
    async with core(tmp_path, entries) as it:
        assert {root for root, _ in tidied(it.runner)} == {str(it.root("demo")), str(it.root("mine"))}
        assert place(it, "mine", (".codex",)) in tidied(it.runner)
        assert {frozenset(protect) for root, protect in tidied(it.runner) if root == str(it.root())} == {
            frozenset(DEFAULT)
        }


async def test_a_new_workspace_is_tidied_at_the_reload_that_brings_it(tmp_path: Path) -> None:
    async with core(tmp_path, {"demo": WRITE}) as it:
        it.write({"demo": WRITE, "late": {"protect": [".codex"]}})
        assert place(it, "late", (".codex",)) not in tidied(it.runner)
        await soon(it.application.reload())
        assert place(it, "late", (".codex",)) in tidied(it.runner)


async def test_a_root_is_left_alone_until_the_commands_of_a_lost_runner_are_proved_dead(tmp_path: Path) -> None:
    async with core(tmp_path, {"busy": WRITE, "idle": WRITE}) as it:
        await it.exec("busy")
        lost = it.link.lose()
        successor = FakeRunner("run-2")
        it.link.up(successor)
        await soon(successor.asked_for("tidy_workspace").wait())
        assert {root for root, _ in tidied(successor)} == {str(it.root("idle"))}
        successor.asked.clear()
        it.link.prove_dead(lost)
        await soon(successor.asked_for("tidy_workspace").wait())
        assert {root for root, _ in tidied(successor)} == {str(it.root("idle")), str(it.root("busy"))}


async def test_a_workspace_that_cannot_be_tidied_keeps_no_other_from_serving(tmp_path: Path) -> None:
    async with core(tmp_path, {"demo": WRITE, "next": WRITE}) as it:
        lost = it.link.lose()
        successor = FakeRunner("run-2")
        successor.answers["tidy_workspace"] = RunnerError(ErrorCode.INTERNAL, "the disk is gone")
        it.link.up(successor)
        it.link.prove_dead(lost)
        assert await it.is_free("demo")
        assert {root for root, _ in tidied(successor)} == {str(it.root("demo")), str(it.root("next"))}
