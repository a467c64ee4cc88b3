"""The tools there are, in the order they are listed. A tool is listed where the application says that it works.

Refuses to know: how tools are served.
"""

from __future__ import annotations

from typing import Any

from gateway.mcp.tool import Tool
from gateway.mcp.tools import (
    apply_patch,
    approval_create,
    approval_resolve,
    exec_command,
    find,
    grep,
    operation_resume,
    operation_status,
    process_resize,
    process_status,
    read,
    read_process,
    steer_claim_next,
    steer_complete,
    steer_status,
    terminate_process,
    work_finish,
    work_open,
    workspace_info,
    write_stdin,
)

ALL_TOOLS: tuple[Tool[Any], ...] = (
    workspace_info.TOOL,
    read.TOOL,
    find.TOOL,
    grep.TOOL,
    apply_patch.TOOL,
    operation_status.TOOL,
    exec_command.TOOL,
    read_process.TOOL,
    process_status.TOOL,
    write_stdin.TOOL,
    process_resize.TOOL,
    terminate_process.TOOL,
    approval_create.TOOL,
    approval_resolve.TOOL,
    operation_resume.TOOL,
    work_open.TOOL,
    steer_status.TOOL,
    steer_claim_next.TOOL,
    steer_complete.TOOL,
    work_finish.TOOL,
)


def listed(available: frozenset[str]) -> tuple[Tool[Any], ...]:
    """The tools that work, in the fixed order. Raises `ValueError` on a name that no tool here has."""
    unknown = available - {tool.name for tool in ALL_TOOLS}
    if unknown:
        raise ValueError(f"the application offers tools that have no module: {', '.join(sorted(unknown))}")
    return tuple(tool for tool in ALL_TOOLS if tool.name in available)
