"""Fixtures and rules that all tests share: kernel features, leaks, blocking calls on the event loop.

A test that needs a kernel feature says `@pytest.mark.kernel("name")`; where it is missing the test is skipped with the
reason, and with CI set that skip is a failure, as is any other skip of a test so marked (or marked `engine` or
`browser`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from blockbuster import BlockBuster
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.kernel import OPTIONAL, PROBES, missing
from tests.leaks import holdings, left_over
from tests.privileges import ORDINARY_UID, run_as

IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")
T = TypeVar("T")

# The same examples in every run; CODESPACE_HYPOTHESIS=deep looks for new ones, and for longer.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("deep", max_examples=5_000, deadline=None, database=None)
hypothesis.settings.load_profile(os.environ.get("CODESPACE_HYPOTHESIS") or "same")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """A file stays in one process, and so do all attacks: they fill process tables and count what one uid may have."""

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/attacks" if file.startswith("tests/attacks/") else file

    return ByFile(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("kernel"):
        for feature in mark.args:
            if feature not in PROBES:
                pytest.fail(f"unknown kernel feature {feature!r}: add a probe to tests/kernel.py", pytrace=False)
            if reason := missing(feature):
                pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    features = {feature for mark in item.iter_markers("kernel") for feature in mark.args}
    marked = any(item.get_closest_marker(name) is not None for name in ("engine", "browser"))
    needs_more = marked or features - OPTIONAL
    if IN_CI and report.skipped and needs_more and not hasattr(report, "wasxfail") and not missing_optional(features):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where what it needs must be there: {report.longrepr}"
    return report  # type: ignore[return-value]


def missing_optional(features: set[str]) -> bool:
    """Whether one of the features is absent that the product does without."""
    return any(missing(feature) for feature in features & OPTIONAL)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """The whole run leaves no descriptor and no child of this process. Its last test gets the error."""
    before = holdings()
    yield
    found = left_over(before, holdings())
    if found:
        pytest.fail("the test run left:\n" + "\n".join(found), pytrace=False)


MAY_BLOCK: Mapping[str, frozenset[str]] = {
    # Has to fork on the loop's own thread, for the worker's parent-death signal.
    "gateway/worker_start.py": frozenset({"_spawn"}),
    # Looks once for its program, when the runner is joined.
    "adapters/patch_helper/engine.py": frozenset({"__init__"}),
}
"""File to functions that may block on an event loop, since they run before or after it serves anyone."""


@pytest.fixture(scope="session", autouse=True)
def no_blocking_call_on_the_loop() -> Iterator[None]:
    """A blocking call that code of ours makes on an event loop raises blockbuster.BlockingError there."""
    blockbuster = BlockBuster(["gateway", "runner", "adapters"])
    for function in blockbuster.functions.values():
        for file, names in MAY_BLOCK.items():
            function.can_block_in(file, names)
    blockbuster.activate()
    yield
    blockbuster.deactivate()


@pytest.fixture
def leak_check() -> Iterator[None]:
    """The test leaves no descriptor and no child of this process."""
    before = holdings()
    yield
    assert left_over(before, holdings()) == []


@pytest.fixture
def repository() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def shared(repository: Path) -> Path:
    """The folder of reference material beside the checkout; the test is skipped where it is absent."""
    folder = repository.parent / "shared"
    if not folder.is_dir():
        pytest.skip(f"no reference material beside this checkout: {folder.name} is missing")
    return folder


@pytest.fixture
def as_ordinary_user() -> Callable[..., Any]:
    """Runs a callable as an ordinary user in a child and returns its result; see tests.privileges.run_as."""

    def run(body: Callable[[], T], *, timeout_s: float = 15) -> T:
        return run_as(ORDINARY_UID, body, timeout_s=timeout_s)

    return run
