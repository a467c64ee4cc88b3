"""`codespace doctor`: what this machine or container can enforce, as the real helper found it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.errors import RegistryRefused
from gateway.registry import load_registry
from gateway.settings import Settings
from runner.api import IsolationReport

if TYPE_CHECKING:
    from gateway.cli.app import Parts


def doctor(parts: Parts, *, as_json: bool, registry: Path | None) -> int:
    """Without a registry: the default terms. With one: every workspace's. Raises `OperatorError`.

    Returns 1 if a required protection is missing. A registry of the environment that is refused is, after the default
    terms. A workspace without a backend is named, and not probed: this machine is not where it would run.
    """
    settings = Settings.load(registry=registry)
    elsewhere: dict[str, str] = {}
    if settings.registry is None:
        reports = {"default": parts.isolation(None)}
    else:
        try:
            loaded = load_registry(settings.registry, parts.guarded(settings))
        except RegistryRefused:
            if registry is None:
                # Not asked about this registry, only set to use it: what the machine can do is worth saying first.
                print(_as_text("default", parts.isolation(None)), file=sys.stderr if as_json else sys.stdout)
            raise
        reports = {w.workspace_id: parts.isolation(w.terms()) for w in loaded if w.environment == "host"}
        elsewhere = {w.workspace_id: w.environment for w in loaded if w.environment != "host"}
    if as_json:
        nowhere = {name: {"available": False, "environment": kind} for name, kind in elsewhere.items()}
        print(json.dumps({name: _as_json(report) for name, report in reports.items()} | nowhere, indent=2))
    else:
        texts = [_as_text(name, report) for name, report in reports.items()]
        texts += [f"{name}: {kind} has no backend here: every tool is refused" for name, kind in elsewhere.items()]
        print("\n\n".join(texts))
    return 0 if all(_holds(report) for report in reports.values()) else 1


def _holds(report: IsolationReport) -> bool:
    return report.available and not any(p.required and p.state == "off" for p in report.protections)


def _as_json(report: IsolationReport) -> dict[str, object]:
    return {"ok": _holds(report), **report.model_dump(mode="json", exclude_none=True)}


def _as_text(name: str, report: IsolationReport) -> str:
    verdict = "commands run" if _holds(report) else "commands are refused: a required protection is missing"
    lines = [f"{name}: sandbox {report.command_sandbox}, network {report.network_enforcement}: {verdict}"]
    width = max((len(p.name) for p in report.protections), default=0)
    for p in report.protections:
        need = "required" if p.required else "optional"
        parts = [f"  {p.state:<8}  {p.name:<{width}}  {need}"]
        if p.errno is not None:
            parts.append(p.errno)
        if p.detail is not None:
            parts.append(p.detail)
        if p.remedy is not None and p.state != "active":
            parts.append(f"remedy: {p.remedy}")
        lines.append("  ".join(parts))
    return "\n".join(lines)
