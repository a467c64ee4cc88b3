"""Endpoints for the tests of the transports. Parametrize `opened` indirectly with arguments of `serving.endpoints`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.appliance import Endpoints
from tests.gateway.transport.serving import endpoints


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[Endpoints]:
    """Bound outside the loop, since binding blocks."""
    with endpoints(**getattr(request, "param", {})) as made:
        yield made
