"""`codespace demo`: the agent loop against a temporary workspace, narrated and checked."""

from __future__ import annotations

import asyncio
import sys

from gateway.cli.console import Failed
from gateway.demo.agent import Refused, connected
from gateway.demo.narrator import DemoFailed, Narrator
from gateway.demo.scenes import SCENES
from gateway.demo.stage import set_up

LIMIT_S = 180.0
"""It takes well under a minute; a machine on which it hangs must not hang with it."""


def demo(*, small: bool) -> int:
    """Returns 0 when every check holds. Raises `OperatorError` (status 1) at the first that does not."""
    try:
        asyncio.run(_play(Narrator(sys.stdout), small))
    except DemoFailed as error:
        raise Failed("the demo failed", "a check", str(error)) from None
    except TimeoutError:
        raise Failed("the demo failed", f"{LIMIT_S:g} s are over", "look at what it was doing last") from None
    except Refused as error:
        raise Failed("the demo failed", "a tool call was refused", str(error)) from None
    return 0


async def _play(show: Narrator, small: bool) -> None:
    async with asyncio.timeout(LIMIT_S):
        show.say("CodeSpace: an agent works in a sandbox. Everything below happens, and every ✓ was checked.")
        async with set_up(small=small) as stage:
            show.say(f"Workspace: {stage.project.what}. Appliance: codespace serve, pid {stage.server.pid}.")
            async with connected(stage.socket) as agent:
                for scene in SCENES:
                    await scene(show, stage, agent)
            status = await stage.stop()
            show.proof("the appliance shut down in order", status == 0, f"status {status}: {stage.log[-3:]}")
        show.end()
