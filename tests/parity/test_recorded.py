"""The recorded outcomes of the pinned upstream engine: the same as ours, or different by a rule of the product."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.parity import upstream
from tests.parity.compare import explain, ours
from tests.parity.generator import Case
from tests.parity.recorded import load


@pytest.mark.covers("BND-2", "PATCH-1")
def test_recorded_outcomes_of_the_pinned_upstream_differ_by_product_rules_alone() -> None:
    outcomes = load()
    found = Counter(explain(case, ours(case), theirs) for _, case, theirs in outcomes)
    assert found[None] == 0
    # Most cases are the same, and the rules are all met.
    assert found["same"] > len(outcomes) // 2
    assert len(found) > 5


@pytest.mark.covers("BND-2")
def test_a_difference_that_no_rule_explains_is_found() -> None:
    case = Case({"f": b"a\n"}, "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch")
    mine = ours(case)
    theirs = upstream.Upstream("ok", None, {"f": b"b\n"})
    assert explain(case, mine, theirs) == "same"
    assert explain(case, mine, replace(theirs, files={"f": b"c\n"})) is None
    assert explain(case, mine, replace(theirs, kind="lines_not_found")) is None
    assert (
        explain(case, replace(mine, kind="invalid_hunk", line=2), replace(theirs, kind="invalid_hunk", line=3)) is None
    )
