"""A runner without a service: starts commands through the real launcher, as the uid that it was started with.

A program, so that tests can have it under another uid. JSON lines on stdin and stdout, one answer a request, in order;
end of input ends what runs. With `--prepared` every command finds a sandbox that waits for it. It refuses to know what
is being tested. Started by `tests.attacks.harness`.

    {"op": "launch", "key", "terms": WorkspaceTerms, "argv", "tty"}  ->  {"pid", "isolation"} or {"failed": {...}}
    {"op": "wait", "key"}                                            ->  {"output": base64, "exit": ManagedExit}
    {"op": "expect", "key", "text"}                                  ->  {"seen": whether before the output's end}
    {"op": "send", "key", "data": text}                              ->  {}
    {"op": "signal", "key", "number"}, {"op": "kill", "key"}         ->  {}
    {"op": "report", "terms": WorkspaceTerms or null}                ->  {"report": IsolationReport}
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from adapters.egress_proxy.client import EgressProxy
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.api import WorkspaceTerms
from runner.ports import LaunchFailed, LaunchRequest, LaunchUncertain, ManagedProcess, SandboxUnavailable
from tests.adapters.linux_sandbox.prepared import PreparedLauncher

MAX_OUTPUT_BYTES = 64 * 1024 * 1024


class Running:
    """One started command, drained from the moment it runs."""

    def __init__(self, process: ManagedProcess) -> None:
        self.process = process
        self._output = bytearray()
        self._ended = asyncio.Event()
        self._more = asyncio.Event()
        os.set_blocking(process.output_fd, False)
        asyncio.get_running_loop().add_reader(process.output_fd, self._drain)

    def _drain(self) -> None:
        while True:
            try:
                chunk = os.read(self.process.output_fd, 1 << 16)
            except BlockingIOError:
                return
            except OSError:  # EIO: the last slave of a terminal is closed
                chunk = b""
            if not chunk:
                asyncio.get_running_loop().remove_reader(self.process.output_fd)
                self._ended.set()
                self._more.set()
                return
            self._output += chunk
            self._more.set()
            if len(self._output) > MAX_OUTPUT_BYTES:
                self.process.kill()

    async def expect(self, text: str) -> dict[str, Any]:
        while (seen := text.encode() in self._output) is False and not self._ended.is_set():
            self._more.clear()
            await self._more.wait()
        return {"seen": seen, "output": "" if seen else self._output.decode("utf-8", "replace")}

    async def finish(self) -> dict[str, Any]:
        ended = await self.process.wait()
        self._drain_rest()
        await asyncio.wait_for(self._ended.wait(), 10)
        self.process.close()
        return {"output": base64.b64encode(self._output).decode(), "exit": asdict(ended)}

    def _drain_rest(self) -> None:
        if not self._ended.is_set():
            self._drain()


class Driver:
    def __init__(self, *, prepared: bool) -> None:
        # As a gateway does it; nobody reads the other end here.
        self._liveness = os.pipe()
        launcher = PreparedLauncher if prepared else LinuxSandboxLauncher
        self.launcher = launcher(liveness_fd=self._liveness[1], proxy=EgressProxy())
        self.running: dict[str, Running] = {}

    async def launch(self, request: dict[str, Any]) -> dict[str, Any]:
        key = str(request["key"])
        size = request["tty"]
        wanted = LaunchRequest(
            process_id=f"proc_{key}",
            terms=WorkspaceTerms.model_validate(request["terms"]),
            argv=tuple(request["argv"]),
            tty_size=None if size is None else (int(size[0]), int(size[1])),
        )
        try:
            process = await self.launcher.launch(wanted)
        except LaunchFailed as failure:
            return {"failed": {"stage": failure.stage, "errno": failure.errno, "message": failure.message}}
        except SandboxUnavailable as failure:
            return {"failed": {"stage": failure.feature, "errno": failure.errno, "message": failure.message}}
        except LaunchUncertain as failure:
            return {"failed": {"stage": "uncertain", "errno": None, "message": str(failure)}}
        self.running[key] = Running(process)
        return {"pid": process.pid, "isolation": process.isolation.model_dump(mode="json")}

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = request["op"]
        if operation == "launch":
            return await self.launch(request)
        if operation == "report":
            terms = None if request["terms"] is None else WorkspaceTerms.model_validate(request["terms"])
            return {"report": (await self.launcher.report(terms)).model_dump(mode="json")}
        running = self.running[str(request["key"])]
        if operation == "wait":
            return await self.running.pop(str(request["key"])).finish()
        if operation == "expect":
            return await asyncio.wait_for(running.expect(str(request["text"])), 30)
        if operation == "send":
            assert running.process.stdin_fd is not None
            os.write(running.process.stdin_fd, str(request["data"]).encode())
        elif operation == "signal":
            running.process.signal_tree(signal.Signals(int(request["number"])))
        elif operation == "kill":
            running.process.kill()
        else:
            raise ValueError(f"no operation {operation!r}")
        return {}

    async def close(self) -> None:
        for running in self.running.values():
            running.process.kill()
        for running in self.running.values():
            await running.finish()
        await self.launcher.close()


async def main() -> None:
    driver = Driver(prepared="--prepared" in sys.argv)
    await driver.launcher.start()
    requests = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    try:
        while line := await requests.readline():
            sys.stdout.write(json.dumps(await driver.answer(json.loads(line))) + "\n")
            sys.stdout.flush()
    finally:
        await driver.close()


if __name__ == "__main__":
    asyncio.run(main())
