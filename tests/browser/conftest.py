"""Fixtures of the browser tests. A module has one Chromium and one appliance; each test has a browser context."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.rig import CHROMIUM, WAIT_S, Agent, Appliance, Tab, appliance, chromium, watch
from tests.kernel import missing

Visit = Callable[..., Tab]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not os.path.exists(CHROMIUM):
        pytest.skip(
            f"no Chromium: {CHROMIUM} is missing; Debian's package is chromium, and `make test` as root adds it"
        )
    if reason := missing("namespaces"):
        pytest.skip(f"commands cannot be run: {reason}")
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Appliance]:
    """A module's `WORKSPACE` is the registry entry of `demo`."""
    with appliance(**getattr(request.module, "WORKSPACE", {})) as made:
        yield made


@pytest.fixture
def visit(browser: Browser, served: Appliance) -> Iterator[Visit]:
    """Makes a tab in a context of its own: `visit(path, color_scheme=…)`, opened and logged in, or None for neither."""
    tabs: list[Tab] = []

    def visited(path: str | None = "/", **context: Any) -> Tab:
        made = browser.new_context(**context)
        made.set_default_timeout(WAIT_S * 1000)
        tabs.append(watch(made.new_page(), served))
        if path is not None:
            tabs[-1].open(path)
        return tabs[-1]

    yield visited
    for tab in tabs:
        tab.page.context.close()
    troubles = [trouble for tab in tabs for trouble in tab.troubles if not tab.lost_is_expected]
    assert troubles == []


@pytest.fixture
def agent(served: Appliance) -> Iterator[Callable[[Callable[[Agent], Any]], Agent]]:
    """Starts a scripted agent."""
    agents: list[Agent] = []

    def started(script: Callable[[Agent], Any]) -> Agent:
        agents.append(Agent(served.program, script))
        return agents[-1]

    yield started
    for one in agents:
        one.stop()
