"""Everything once more as an ordinary user, in a process that was never root: the image runs so."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.privileges import ORDINARY_UID

HERE = Path(__file__).parent
NOT_AGAIN = (
    "not three_hundred and not by_all_three_protocols and not forty_commands and not breaks_off and not a_hundred"
    " and not unprepared"
)
"""Long, or about nothing that an identity changes; what runs both ways runs with prepared sandboxes here."""


@pytest.mark.skipif(os.geteuid() != 0, reason="this run is an ordinary user's already")
@pytest.mark.timeout(300)
@pytest.mark.covers("BOX-1", "BOX-4", "BOX-6", "BOX-7", "NET-1", "IMG-1")
async def test_the_same_tests_pass_for_an_ordinary_user() -> None:
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", NOT_AGAIN, str(HERE),
        cwd=HERE.parents[2], user=ORDINARY_UID, group=ORDINARY_UID, extra_groups=[],
        env={**os.environ, "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await run.communicate()
    assert run.returncode == 0, output.decode()
    assert b" passed" in output
