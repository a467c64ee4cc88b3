"""What is loaded before something can be done, counted: by the sandbox helper, by the worker, by `codespace serve`.

The bounds leave a third of room for other versions of the libraries; a package that comes in by accident does not fit.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest

from adapters.linux_sandbox.client import library, program
from tests.fakes.worker_host import REPOSITORY

WAIT_S = 60
HELPER_AT_MOST, EARLY_AT_MOST, READY_AT_MOST, WORKER_AT_MOST = 125, 620, 1100, 460
"""Modules: 99, 492, 864 and 355 when this was written, with Python 3.11."""
SLOW_FOR_A_HELPER = {
    "argparse", "asyncio", "dataclasses", "inspect", "logging", "pathlib", "pydantic", "pyroute2", "tempfile",
    "typing_extensions",
}  # fmt: skip
SERVES = {"httptools", "jinja2", "mcp", "mcp_types", "rich", "sse_starlette", "uvicorn"}
"""What only requests need. The runner starts before any of it is loaded."""


def packages(modules: list[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def loaded_by(code: str) -> list[str]:
    """The modules that a fresh interpreter has after `code`."""
    command = [sys.executable, "-X", "utf8", "-c", f"{code}\nimport sys\nprint(*sorted(sys.modules))"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=REPOSITORY, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


@pytest.mark.kernel("namespaces")
@pytest.mark.timeout(90)
def test_the_helper_loads_little_before_it_serves() -> None:
    *interpreter, main = program()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        number = theirs.fileno()
        command = [*interpreter, "-X", "importtime", main, "serve", "--fd", str(number), "--library", library()]
        with subprocess.Popen(command, stderr=subprocess.PIPE, pass_fds=[number], env={}, text=True) as helper:
            theirs.close()
            ours.settimeout(WAIT_S)
            assert b'"hello"' in ours.recv(1 << 16)
            ours.shutdown(socket.SHUT_RDWR)
            _, log = helper.communicate(timeout=WAIT_S)
    modules = re.findall(r"(?m)^import time: .*\| +(\S+)$", log)
    assert packages(modules) & SLOW_FOR_A_HELPER == set()
    assert "sandbox_helper.child" in modules
    assert len(modules) <= HELPER_AT_MOST, modules


QUICK = """
from gateway.cli.quick import quick_loading
import gateway.__main__
with quick_loading():
    import gateway.cli.serve
import gateway.application, gateway.liveness, gateway.registry, gateway.version, gateway.worker_process
"""
"""What `codespace serve` has loaded when it starts the runner."""


@pytest.mark.timeout(90)
def test_the_runner_starts_before_what_serves_requests_is_loaded() -> None:
    modules = loaded_by(QUICK)
    assert packages(modules) & SERVES == set()
    assert "gateway.worker_start" in modules
    assert len(modules) <= EARLY_AT_MOST, len(modules)


@pytest.mark.timeout(90)
def test_an_appliance_that_serves_has_loaded_no_more_than_it_did() -> None:
    modules = loaded_by(QUICK + "import gateway.appliance\ngateway.appliance._load()")
    assert packages(modules) >= {"mcp", "uvicorn"}
    assert "rich" not in packages(modules)
    assert len(modules) <= READY_AT_MOST, len(modules)


@pytest.mark.timeout(90)
def test_the_worker_loads_nothing_that_serves_requests() -> None:
    modules = loaded_by("import runner.__main__")
    assert packages(modules) & (SERVES | {"pyroute2", "structlog", "typer", "uvloop"}) == set()
    assert len(modules) <= WORKER_AT_MOST, len(modules)
