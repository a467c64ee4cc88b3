"""From the start of the program to an appliance that is ready, beside an interpreter that imports the MCP SDK alone.

Ready is what the log says, when both sockets answer and the runner has made its first sandbox.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.callers import environment
from benchmarks.measure import Bound, Contender, Options, Table, interleave

TITLE = "start of the appliance"
SAMPLES = 30
WAIT_S = 60
OURS, REFERENCE = "ours, serve to ready", "python -c 'import mcp'"


def serve_until_ready(base: Path) -> float:
    """Milliseconds. Raises `RuntimeError` where it ended instead."""
    began = time.perf_counter()
    command = [sys.executable, "-X", "utf8", "-m", "gateway", "serve", "--registry", str(base / "registry.json")]
    command += ["--data-dir", str(base / "data"), "--socket", str(base / "run" / "mcp.sock")]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=pipe, env=environment()) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if b'"event": "ready"' in line:
                took = (time.perf_counter() - began) * 1000
                process.send_signal(signal.SIGTERM)
                process.stderr.read()
                process.wait(WAIT_S)
                return took
    raise RuntimeError(f"the appliance did not come up: {b''.join(said)[-1000:]!r}")


def import_sdk() -> float:
    """Milliseconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mcp"], check=True, timeout=WAIT_S, env=environment())
    return (time.perf_counter() - began) * 1000


async def measure(options: Options) -> list[Table]:
    base = Path(tempfile.mkdtemp(prefix="codespace-bench-", dir="/var/tmp"))
    try:
        (base / "run").mkdir(mode=0o700)
        (base / "ws").mkdir()
        entry = {"root": str(base / "ws"), "profile": "workspace-write"}
        (base / "registry.json").write_text(json.dumps({"workspaces": {"bench": entry}}))

        async def ours() -> float:
            return await asyncio.to_thread(serve_until_ready, base)

        async def reference() -> float:
            return await asyncio.to_thread(import_sdk)

        contenders = [Contender(REFERENCE, reference), Contender(OURS, ours)]
        samples = await interleave(contenders, options.samples(SAMPLES), warm_up=1)
    finally:
        shutil.rmtree(base)
    return [Table("program start to ready", "ms", samples, [Bound(OURS, REFERENCE, 1.5)])]
