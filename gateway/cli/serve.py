"""`codespace serve` and `codespace stdio`: an appliance in this process."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from gateway import logging
from gateway.appliance import Appliance, Endpoints, open_endpoints
from gateway.audit import LogAudit
from gateway.http.limits import raise_descriptor_limit
from gateway.http.token import read_token
from gateway.image import check_container
from gateway.metrics import Metrics
from gateway.settings import Settings
from gateway.version import version

if TYPE_CHECKING:
    from gateway.cli.app import Parts


def serve(
    parts: Parts,
    *,
    registry: Path | None,
    socket: Path | None,
    http: str | None,
    token_file: Path | None,
    data_dir: Path | None,
    runner: str | None,
) -> int:
    """Returns 0 after an ordered shutdown. Raises `OperatorError`."""
    check_container()
    settings = Settings.load(
        registry=registry, socket=socket, http=http, token_file=token_file, data_dir=data_dir, runner=runner
    )
    settings.require_registry()
    token = None if settings.token_file is None else read_token(settings.token_file)
    with open_endpoints(
        settings.socket_path(), settings.http, token, settings.allow_uids, settings.allow_hosts
    ) as endpoints:
        _run(parts, settings, endpoints, secrets=[] if token is None else [token])
    return 0


def stdio(parts: Parts, *, registry: Path | None, data_dir: Path | None, runner: str | None) -> int:
    """Returns 0 after the end of input. Raises `OperatorError`."""
    check_container()
    _run(parts, Settings.load(registry=registry, data_dir=data_dir, runner=runner), None, secrets=[])
    return 0


def _run(parts: Parts, settings: Settings, endpoints: Endpoints | None, *, secrets: list[str]) -> None:
    log = logging.configure(settings.log_level, secrets=secrets)
    metrics = Metrics()
    raise_descriptor_limit()
    if os.geteuid() == 0:
        log.warning("running_as_root", remedy="give the appliance a user of its own")

    async def live() -> None:
        audit = LogAudit(log, metrics)
        application = parts.application(settings, audit, log)
        appliance = Appliance(application, version=version(), metrics=metrics, log=log)
        collecting = asyncio.ensure_future(_collect_once(appliance.serving))
        try:
            if endpoints is None:
                await appliance.stdio()
            else:
                await appliance.serve(endpoints)
        finally:
            collecting.cancel()
            audit.flush()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(live())


async def _collect_once(serving: asyncio.Event) -> None:
    """Cycles are collected from now on, among what is made from now on: what was loaded stays anyway."""
    await serving.wait()
    gc.freeze()
    gc.enable()
