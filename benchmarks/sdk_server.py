"""The reference: a bare server of the MCP SDK with one tool that does nothing. A program, started by `servers`.

    python -m benchmarks.sdk_server --uds PATH | --tcp-fd N | --stdio

It is the SDK at its fastest: low-level server, JSON answers in place of event streams, uvloop and httptools, no checks
of host or origin, no log, and the tool's schema at hand, so that no call lists the tools first. It knows nothing of
ours.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from typing import Any

import mcp.types as types
import uvicorn
import uvloop
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

TOOL = "empty"
_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
Context = ServerRequestContext[Any, Any]


async def _list(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name=TOOL, input_schema=_SCHEMA)])


async def _call(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[])


def make_server() -> Server[Any]:
    return Server(
        "empty", version="0", on_list_tools=_list, on_call_tool=_call, get_tool_input_schema={TOOL: _SCHEMA}.get
    )


async def serve_http(uds: str | None, tcp_fd: int | None) -> None:
    app = make_server().streamable_http_app(
        json_response=True, transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    config = uvicorn.Config(
        app, uds=uds, http="httptools", log_config=None, access_log=False, ws="none", timeout_keep_alive=300
    )
    sockets = None if tcp_fd is None else [socket.socket(fileno=tcp_fd)]
    await uvicorn.Server(config).serve(sockets=sockets)


async def serve_stdio() -> None:
    server = make_server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sdk_server")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--uds", metavar="PATH")
    how.add_argument("--tcp-fd", metavar="N", type=int, help="a listening socket")
    how.add_argument("--stdio", action="store_true")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve_stdio() if arguments.stdio else serve_http(arguments.uds, arguments.tcp_fd))


if __name__ == "__main__":
    main()
