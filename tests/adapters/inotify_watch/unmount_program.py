"""Run by test_loss in namespaces of its own: a file system is unmounted below a watched root.

Prints the epochs of the two resyncs that follow.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path

from adapters.inotify_watch.backend import InotifyWatchBackend


async def main(root: Path) -> None:
    (root / "mounted").mkdir()
    await asyncio.to_thread(subprocess.run, ["mount", "-t", "tmpfs", "none", str(root / "mounted")], check=True)
    backend = InotifyWatchBackend(first_delay_s=0.01)
    events = backend.subscribe("demo")
    await backend.watch("demo", str(root))
    await anext(events)
    await asyncio.to_thread(subprocess.run, ["umount", str(root / "mounted")], check=True)
    async with asyncio.timeout(10):
        for _ in range(2):
            event = await anext(events)
            assert event.kind == "resync_required"
            print(event.epoch)
    await backend.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder).resolve()))
