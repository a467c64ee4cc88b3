"""The corpus and the posture through the whole program: MCP, gateway, worker and helper, in both runner modes."""

from __future__ import annotations

import pytest

from tests.attacks import corpus, declared
from tests.attacks.appliance import serving
from tests.attacks.harness import Identity, identities, make_place
from tests.requirements import ATTACK_GAPS

pytestmark = pytest.mark.timeout(180)
each_identity = pytest.mark.parametrize("identity", identities(), ids=lambda identity: identity.name)
each_runner = pytest.mark.parametrize("runner", ["uds", "in-process"])


@corpus.needs_corpus
@pytest.mark.covers("BOX-7", "UDS-3")
@each_identity
@each_runner
def test_every_probe_meets_its_target_through_exec_command(identity: Identity, runner: str) -> None:
    with make_place(identity) as place, corpus.bait(identity, place) as bait:
        terms = {
            "protect": list(corpus.PROTECTED),
            "mounts_read_only": [str(place.tools)],
            "limits": {"timeout_s": 120},
        }
        with serving(identity, place, terms, runner) as appliance:
            argv = [corpus.PYTHON, str(bait.program), *bait.arguments, "--max-files", "8192"]
            output = appliance.output_of(appliance.execute("place", argv))
    differing = [line for line in corpus.judge(output).splitlines() if " as required" not in line]
    assert {line.split(":")[0] for line in differing} == set(ATTACK_GAPS), (differing, output)


@pytest.mark.covers("BOX-1", "BOX-6", "UDS-3")
@each_identity
@each_runner
def test_a_command_of_the_program_is_exactly_what_is_declared(identity: Identity, runner: str) -> None:
    with (
        make_place(identity) as place,
        serving(identity, place, declared.prepare(identity, place), runner) as appliance,
    ):
        for terminal in (False, True):
            process_id = appliance.execute("place", declared.COMMAND, tty=terminal)
            (init,) = appliance.managed_children()
            for observer in declared.OBSERVERS:
                found = declared.observe(identity, place, appliance.runner_pid, init, observer)
                declared.check(identity, terminal, observer, found)
            appliance.call("terminate_process", process_id=process_id)
            appliance.output_of(process_id)
            assert appliance.managed_children() == []
