"""The attack corpus once more from a command whose network is `enabled`: the way out opens nothing else."""

from __future__ import annotations

import pytest

from tests.attacks import corpus
from tests.attacks.harness import Place, SandboxDriver
from tests.requirements import ATTACK_GAPS

pytestmark = [corpus.needs_corpus, pytest.mark.timeout(120)]


@pytest.mark.covers("NET-2", "BOX-1", "BOX-6", "BOX-7")
def test_every_probe_meets_its_target_with_a_proxy_beside_it(sandbox: SandboxDriver, place: Place) -> None:
    terms = {**corpus.terms(place), "network": "enabled", "network_allow": ["allowed.example"]}
    with corpus.bait(sandbox.identity, place) as bait:
        finished = sandbox.run(terms, [corpus.PYTHON, str(bait.program), *bait.arguments, "--max-files", "8192"])
    differences = [line for line in corpus.judge(finished.output).splitlines() if " as required" not in line]
    unmet = {line.split(":")[0] for line in differences}
    assert unmet == set(ATTACK_GAPS), (differences, finished.output)
