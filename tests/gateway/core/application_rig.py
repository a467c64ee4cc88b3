"""An application on a temporary disk, with hands on all that it stands on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.application import Application
from gateway.errors import Code, ToolError
from gateway.liveness import LivenessDirectory
from gateway.registry import Guarded, load_registry
from tests.gateway.core.support import FakeLink, FakeRunner, RecordingAudit, quiet_log, write_registry

WRITE: dict[str, object] = {"profile": "workspace-write"}


async def soon(awaitable: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(awaitable, 30)


class Core:
    """An application on a temporary disk, with hands on all that it stands on."""

    def __init__(self, base: Path, workspaces: Mapping[str, Mapping[str, object]], **more: Any) -> None:
        self.base = base
        self.max_processes = more.pop("max_processes", 8)
        self.data: Path = more.pop("data", base / "data")
        self.more = more
        self.link = FakeLink()
        self.audit = RecordingAudit()
        self.write(workspaces)
        self.application = Application(
            version="1",
            load_registry=lambda: load_registry(self.base / "registry.json", Guarded(data_dir=str(self.data))),
            data_dir=self.data,
            deaths=LivenessDirectory(self.data / "liveness"),
            link=self.link,
            audit=self.audit,
            log=quiet_log(),
            max_processes=self.max_processes,
        )

    def root(self, name: str = "demo") -> Path:
        return self.base / "ws" / name

    def write(self, workspaces: Mapping[str, Mapping[str, object]]) -> None:
        entries = {}
        for name, entry in workspaces.items():
            if "root" not in entry:
                self.root(name).mkdir(parents=True, exist_ok=True)
            entries[name] = {"root": str(self.root(name)), **entry}
        write_registry(self.base / "registry.json", entries, **self.more)

    @property
    def runner(self) -> FakeRunner:
        assert self.link.fake is not None
        return self.link.fake

    async def exec(self, workspace_id: str = "demo", *argv: str, **more: Any) -> api_ids:
        dispatched = await soon(self.application.exec_command(workspace_id, argv or ("true",), **more))
        return dispatched.process_id, dispatched.dispatch_status

    async def refused(self, awaitable: Awaitable[Any], code: Code) -> ToolError:
        with pytest.raises(ToolError) as error:
            await soon(awaitable)
        assert error.value.code is code, str(error.value)
        return error.value

    async def is_free(self, workspace_id: str = "demo") -> bool:
        """Whether a command can start; one that did has ended again."""
        try:
            process_id, _ = await self.exec(workspace_id)
        except ToolError as error:
            if error.code is not Code.WORKSPACE_BUSY:
                raise
            return False
        self.runner.exit(process_id)
        return True


api_ids = tuple[str, str]


@asynccontextmanager
async def core(
    base: Path,
    workspaces: Mapping[str, Mapping[str, object]] | None = None,
    *,
    kind: type[Core] | None = None,
    **more: Any,
) -> AsyncIterator[Core]:
    one = (kind or Core)(base, workspaces or {"demo": WRITE, "other": WRITE, "ro": {}}, **more)
    await soon(one.application.start())
    try:
        yield one
    finally:
        await soon(one.application.close())
