"""A gateway to be killed: `python -m tests.gateway.core.crash_program BASE RUN`, with real runner and patch helper.

Applies patch after patch to BASE/ws/demo, each counting its files up by one to N under the key RUN-N, and says `ready`
before the first.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gateway.application import Application
from gateway.liveness import LivenessDirectory
from gateway.registry import Guarded, load_registry
from gateway.worker_process import BackOff, WorkerLink
from tests.gateway.core.support import RecordingAudit, quiet_log

FILES = 20


def application(base: Path) -> tuple[Application, WorkerLink]:
    """Real but for what logs; not started."""
    deaths = LivenessDirectory(base / "data" / "liveness")
    link = WorkerLink(quiet_log(), max_processes=2, deaths=deaths, back_off=BackOff(0.0, 0.0, 0.0))
    made = Application(
        version="1",
        load_registry=lambda: load_registry(base / "registry.json", Guarded(data_dir=str(base / "data"))),
        data_dir=base / "data",
        deaths=deaths,
        link=link,
        audit=RecordingAudit(),
        log=quiet_log(),
        max_processes=2,
    )
    return made, link


def values(root: Path) -> set[str]:
    """What the files say; one value if the tree is whole."""
    return {(root / f"f{number}").read_text() for number in range(FILES)}


def step(before: int) -> str:
    """A patch from `before` to the next number, in all files, one of them anew and one under another name."""
    sections = [f"*** Update File: f{number}\n@@\n-{before}\n+{before + 1}\n" for number in range(FILES)]
    moved = f"*** Update File: m{before}\n*** Move to: m{before + 1}\n@@\n-{before}\n+{before + 1}\n"
    return "*** Begin Patch\n" + "".join(sections) + moved + "*** End Patch\n"


async def main(base: Path, run: str) -> None:
    gateway, _ = application(base)
    await gateway.start()
    number = int(values(base / "ws" / "demo").pop())
    print("ready", flush=True)
    while True:
        await gateway.apply_patch("demo", step(number), operation_key=f"{run}-{number + 1}")
        number += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
