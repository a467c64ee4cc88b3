"""The demo's agent loop: an MCP client of the SDK's own, through `codespace connect` and the appliance's Unix socket.

Refuses to know: what is to be shown. Called by the scenes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from gateway.demo.narrator import DemoFailed

_WAIT_MS = 2_000


class Refused(Exception):
    """A tool error. `code`: as the interface lists them."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True)
class Finished:
    """`code`: of the command itself, None where a signal or the sandbox ended it."""

    output: str
    code: int | None
    status: dict[str, Any]


class Agent:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.revision = client.protocol_version

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self._client.list_tools()).tools]

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured result. Raises `Refused`."""
        result = await self._client.call_tool(tool, arguments)
        structured = result.structured_content
        if not isinstance(structured, dict):
            raise DemoFailed(f"{tool} answered without structured content: {result}")
        if result.is_error:
            raise Refused(structured["error"]["code"], structured["error"]["message"])
        return structured

    async def start(self, command: Sequence[str], *, tty: bool = False) -> str:
        arguments: dict[str, Any] = {"workspace_id": "demo", "command": list(command)}
        if tty:
            arguments["tty"] = True
        return str((await self.call("exec_command", **arguments))["process_id"])

    async def follow(
        self, process_id: str, show: Callable[[str], None] | None = None, until: str | None = None, cursor: int = 0
    ) -> tuple[str, int]:
        """Output to its end, or until `until` was seen; and where it stopped. `show` gets whole lines as they come."""
        text, line = "", ""
        while True:
            got = await self.call("read_process", process_id=process_id, cursor=cursor, wait_ms=_WAIT_MS)
            text, line, cursor = text + got["chunk"], line + got["chunk"], got["cursor"]
            if show is not None and "\n" in line:
                whole, _, line = line.rpartition("\n")
                show(whole)
            if got["eof"] or (until is not None and until in text):
                if show is not None and line:
                    show(line)
                return text, cursor

    async def finish(self, process_id: str, show: Callable[[str], None] | None = None) -> Finished:
        output, _ = await self.follow(process_id, show)
        while True:
            status = await self.call("process_status", process_id=process_id, wait_ms=_WAIT_MS)
            if status["state"] == "exited":
                return Finished(output, status.get("command_exit", {}).get("code"), status)

    async def run(self, *command: str, show: Callable[[str], None] | None = None) -> Finished:
        return await self.finish(await self.start(command), show)


@contextlib.asynccontextmanager
async def connected(socket: Path) -> AsyncIterator[Agent]:
    bridge = StdioServerParameters(
        command=sys.executable, args=["-X", "utf8", "-m", "gateway", "connect", "--socket", str(socket)]
    )
    failure: Exception | None = None
    async with Client(bridge) as client:
        try:
            yield Agent(client)
        except Exception as error:  # noqa: BLE001 - raised again below: the client's task group would wrap it
            failure = error
    if failure is not None:
        raise failure
