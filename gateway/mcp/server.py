"""The MCP server: one object for every transport and both protocol eras.

Lists the tools that work, checks arguments, calls the application, packs results and errors. Refuses to know: how
requests arrive (`gateway.http`, `gateway.mcp.stdio`), what a tool does (`gateway.mcp.tools`). Joined in
`gateway.__main__`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import mcp.types as types
import structlog
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from starlette.requests import Request

from gateway.application import Application
from gateway.errors import ToolError, internal, new_error_id
from gateway.mcp.input_required import hold_of, input_required, is_repeated, offered_to
from gateway.mcp.tool import Tool
from gateway.metrics import Metrics

INSTRUCTIONS = (
    "CodeSpace runs commands and edits files in registered workspaces, inside a sandbox. Start with workspace_info. "
    "Paths are relative to a workspace. A lost response is not a failed execution: look before you repeat a call."
)

Context = ServerRequestContext[Any, Any]
P = TypeVar("P")


@functools.cache
def described(tool: Tool[Any]) -> types.Tool:
    """As MCP lists it. Made once a program, since schemas take a while: not to be changed."""
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema(),
        output_schema=tool.output_schema(),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.hints.read_only,
            destructive_hint=tool.hints.destructive,
            idempotent_hint=tool.hints.idempotent,
            open_world_hint=False,
        ),
    )


class ToolServer:
    """`sdk` is what transports serve. `local_peer`: who calls where a request names nobody (standard input)."""

    def __init__(
        self,
        application: Application,
        tools: Sequence[Tool[Any]],
        *,
        version: str,
        metrics: Metrics,
        log: structlog.typing.FilteringBoundLogger,
        local_peer: str,
    ) -> None:
        self._application = application
        self._tools: Mapping[str, Tool[Any]] = {tool.name: tool for tool in tools}
        self._list = types.ListToolsResult(tools=[described(tool) for tool in tools])
        schemas = {tool.name: tool.input_schema for tool in self._list.tools}
        self._metrics = metrics
        self._log = log
        self._local_peer = local_peer
        self._changes: set[asyncio.Task[BaseModel]] = set()
        self.on_sdk_call: Callable[[Request, str], None] | None = None
        """Told of each call over HTTP that comes through the SDK, with the protocol version of its session."""
        self.sdk: Server[Any] = Server(
            "codespace",
            version=version,
            title="CodeSpace",
            instructions=INSTRUCTIONS,
            on_list_tools=self._on_list_tools,
            on_call_tool=self._on_call_tool,
            # Without it the SDK would run tools/list for each call to look for header parameters; ours have none.
            get_tool_input_schema=schemas.get,
        )

    async def _on_list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        self._tell(context)
        return self._list

    async def _on_call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        tool = self._tools.get(params.name)
        if tool is None:
            known = ", ".join(self._tools)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name[:80]!r}; the tools are: {known}")
        self._tell(context)
        answer = await self._answer(tool, params.arguments, self._peer(context), _as_dict, hold_of(params))
        if not isinstance(answer, ToolError):
            return success(answer)
        asked = None
        if not is_repeated(params) and offered_to(context.protocol_version, context.session.client_capabilities):
            asked = input_required(tool.name, answer)
        return asked or failure(answer)

    async def direct(self, name: str, arguments: Mapping[str, Any], peer: str | None) -> str | ToolError:
        """The call of a transport that packs answers itself: the structured result as compact JSON, or the error.

        Raises `KeyError` where there is no such tool.
        """
        return await self._answer(self._tools[name], arguments, peer or self._local_peer, _as_json)

    def has(self, name: str) -> bool:
        return name in self._tools

    def may_ask(self, name: str) -> bool:
        """A call of it may be held, and so be answered by an input request, which `direct` has no form for."""
        return self._tools[name].resume is not None

    async def _answer(
        self,
        tool: Tool[Any],
        arguments: Mapping[str, Any] | None,
        peer: str,
        pack: Callable[[BaseModel], P],
        approval_id: str | None = None,
    ) -> P | ToolError:
        began = time.perf_counter()
        code = "OK"
        with structlog.contextvars.bound_contextvars(peer=peer, tool=tool.name):
            try:
                return pack(await self._run(tool, arguments, approval_id))
            except ToolError as error:
                code = error.code.value
                return error
            except Exception:  # noqa: BLE001 - the outermost handler: the caller learns an id, the log has the rest
                wrapped = internal(new_error_id())
                code = wrapped.code.value
                self._log.exception("tool_failed", error_id=wrapped.details["error_id"])
                return wrapped
            finally:
                self._metrics.tool_called(tool.name, code, time.perf_counter() - began)

    async def _run(self, tool: Tool[Any], arguments: Mapping[str, Any] | None, approval_id: str | None) -> BaseModel:
        if tool.hints.read_only:
            return await tool.run(self._application, arguments)
        # A caller that goes away takes along neither the end of what it began to change nor the audit line of it.
        work = tool.run(self._application, arguments, approval_id)
        task = asyncio.get_running_loop().create_task(work, name=tool.name)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._unheard)
            raise

    def _unheard(self, task: asyncio.Task[BaseModel]) -> None:
        """Nobody waits for this call any more: a fault of ours is said here or nowhere."""
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ToolError):
            self._log.error("tool_failed", tool=task.get_name(), exc_info=error)

    def _tell(self, context: Context) -> None:
        if self.on_sdk_call is not None and isinstance(context.request, Request):
            self.on_sdk_call(context.request, context.protocol_version)

    def _peer(self, context: Context) -> str:
        request = context.request
        if isinstance(request, Request) and request.client is not None:
            return f"{request.client.host}:{request.client.port}"
        return self._local_peer


def _as_dict(answer: BaseModel) -> dict[str, Any]:
    return answer.model_dump(mode="json", exclude_none=True)


def _as_json(answer: BaseModel) -> str:
    return answer.model_dump_json(exclude_none=True)


def success(structured: dict[str, Any]) -> types.CallToolResult:
    """The result as structured content and, for clients that read text alone, as compact JSON."""
    text = json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=structured)


def failure(error: ToolError) -> types.CallToolResult:
    """isError with `{"error": …}` as structured content and the message as text (TOOL-2)."""
    return types.CallToolResult(
        content=[types.TextContent(text=error.message)], structured_content=error.to_structured(), is_error=True
    )
