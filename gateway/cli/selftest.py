"""`codespace selftest`: the attack probes inside the real sandbox, and a control that shows that each can succeed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from gateway.cli.app import Parts

State = Literal["blocked", "open", "untried"]


class Tried(Protocol):
    """One probe. `state`: inside. `control`: the same outside, where `open` proves that it can succeed; `excused`: it
    could not, for a reason of this machine's. `expected`: refused with the errno that was meant. `holds`: blocked, and
    the control raises no doubt."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def errno(self) -> str | None: ...
    @property
    def detail(self) -> str: ...
    @property
    def expected(self) -> bool: ...
    @property
    def control(self) -> State: ...
    @property
    def control_detail(self) -> str: ...
    @property
    def excused(self) -> bool: ...
    @property
    def holds(self) -> bool: ...


def selftest(parts: Parts, *, as_json: bool) -> int:
    """Returns 1 if a probe is open or could not be tried, or if a control failed. Raises `OperatorError`."""
    found = parts.selftest()
    if as_json:
        print(json.dumps({"ok": _whole(found), **_counts(found), "probes": [_as_json(t) for t in found]}, indent=2))
    else:
        print("\n".join([*(_as_line(t, found) for t in found), _summary(found)]))
    return 0 if _whole(found) else 1


def _whole(found: Sequence[Tried]) -> bool:
    return bool(found) and all(t.holds for t in found)


def _counts(found: Sequence[Tried]) -> dict[str, int]:
    states = Counter(t.state for t in found)
    return {
        "blocked": states["blocked"],
        "open": states["open"],
        "untried": states["untried"],
        "controls_open": sum(t.control == "open" for t in found),
        "controls_excused": sum(t.excused for t in found),
        "controls_failed": sum(_control_failed(t) for t in found),
    }


def _control_failed(t: Tried) -> bool:
    return t.control != "open" and not t.excused


def _as_json(t: Tried) -> dict[str, object]:
    record: dict[str, object] = {"id": t.name, "kind": t.kind, "state": t.state, "as_meant": t.expected}
    optional = {"errno": t.errno, "detail": t.detail or None}
    control = {"state": t.control, "excused": t.excused, **({"detail": t.control_detail} if t.control_detail else {})}
    return record | {name: value for name, value in optional.items() if value is not None} | {"control": control}


def _as_line(t: Tried, found: Sequence[Tried]) -> str:
    width = max(len(other.name) for other in found)
    said = [part for part in (t.errno, t.detail) if part]
    if t.state == "blocked" and not t.expected:
        said.append("refused, but not by what was meant to")
    if t.excused:
        said.append(f"no control here: {t.control_detail}")
    elif _control_failed(t):
        said.append(f"CONTROL FAILED: {t.control} outside as well: {t.control_detail}".rstrip(": "))
    state = "OPEN" if t.state == "open" else t.state
    return f"{state:<8}  {t.kind:<10}  {t.name:<{width}}  {', '.join(said)}".rstrip()


def _summary(found: Sequence[Tried]) -> str:
    n = _counts(found)
    return (
        f"{len(found)} probes: {n['blocked']} blocked, {n['open']} open, {n['untried']} untried; controls: "
        f"{n['controls_open']} succeeded outside, {n['controls_excused']} could not be tried here, "
        f"{n['controls_failed']} failed"
    )
