"""Every probe of the attack corpus from inside a real sandbox, and each of them outside as its positive control."""

from __future__ import annotations

import json
import re

import pytest

from tests.attacks import corpus
from tests.attacks.harness import Identity, Place, SandboxDriver, identities, make_place
from tests.requirements import ATTACK_GAPS

pytestmark = [corpus.needs_corpus, pytest.mark.timeout(120)]

CONTROL_MAY_NEED = {
    "user": {"F17", "F19", "P17", "K11", "K14", "K20", "K21"},
    "root": {"P17", "K14", "K20"},
}
"""Probes whose control needs root, a capability or a kernel feature: `na` with its reason is accepted for these."""


@pytest.mark.covers("BOX-1", "BOX-6", "BOX-7", "BOX-8", "NET-1")
def test_every_probe_meets_its_target(sandbox: SandboxDriver, place: Place) -> None:
    with corpus.bait(sandbox.identity, place) as bait:
        finished = sandbox.run(
            corpus.terms(place), [corpus.PYTHON, str(bait.program), *bait.arguments, "--max-files", "8192"]
        )
    differences = [line for line in corpus.judge(finished.output).splitlines() if " as required" not in line]
    unmet = {line.split(":")[0] for line in differences}
    # A gap that is closed has to leave the list, so it never claims too much.
    assert unmet == set(ATTACK_GAPS), (differences, finished.output)


@pytest.mark.covers("BOX-7")
def test_the_probes_find_an_unconfined_command_open(sandbox: SandboxDriver, place: Place) -> None:
    """The same run with the sandbox switched off: what confines above is the sandbox, not the machine."""
    with corpus.bait(sandbox.identity, place) as bait:
        finished = sandbox.run(corpus.terms(place, sandbox="off"), [corpus.PYTHON, str(bait.program), *bait.arguments])
    opened = set(re.findall(r"^([A-Z]\d\d)\|OPEN", finished.output, re.MULTILINE))
    assert {"F01", "F03", "F07", "F08", "F09", "P02", "P07", "P10", "P22", "P26", "N17", "N19", "N21"} <= opened


@pytest.mark.covers("BOX-7")
@pytest.mark.parametrize("identity", identities(), ids=lambda identity: identity.name)
def test_every_probe_can_succeed_outside(identity: Identity) -> None:
    with make_place(identity) as place:
        states = corpus.control(identity, place)
    targets = json.loads(corpus.TARGETS.read_text())
    assert set(states) >= set(targets)
    blocked = {name: state for name, state in states.items() if state.startswith("blocked")}
    assert blocked == {}
    untried = {name for name, state in states.items() if state.startswith("na ")}
    assert untried <= CONTROL_MAY_NEED[identity.name], states
