"""One command through the helper's own `run --plan`, for a terminal: the plan, the command line and its clean-up.

The caller starts the program (with ptyprocess where it wants a terminal) and waits for it. Refuses to start anything.
Called by the command line's `exec`, after the same probe that every launch makes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from adapters.linux_sandbox import placeholders
from adapters.linux_sandbox.client import library, program
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.api import WorkspaceTerms
from sandbox_helper.protocol import SET_UP_FAILED, Once, once_value

__all__ = ["SET_UP_FAILED", "OneCommand", "prepare"]


class OneProxy(Protocol):
    """A managed proxy for one command. `control_fd`: its socket. `message_fd`: what to send there with the listeners.
    Both can be inherited."""

    message_fd: int

    @property
    def control_fd(self) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class OneCommand:
    """`argv`: to execute with an empty environment and with `pass_fds`, which keep their numbers. `listeners`:
    kinds of what an `enabled` network needs a proxy for, which `with_proxy` adds; without it the start fails. `close`
    once it is over.

    The program's exit status is the command's, 128 + n for a signal, or SET_UP_FAILED with a JSON line on its standard
    error: {"failed": {"stage", "errno", "path", "message"}}.
    """

    argv: tuple[str, ...]
    plan_fd: int
    terms: WorkspaceTerms
    listeners: tuple[str, ...] = ()
    proxy: OneProxy | None = None

    @property
    def pass_fds(self) -> tuple[int, ...]:
        if self.proxy is None:
            return (self.plan_fd,)
        return self.plan_fd, self.proxy.control_fd, self.proxy.message_fd

    def with_proxy(self, start: Callable[[WorkspaceTerms, Sequence[str]], OneProxy]) -> OneCommand:
        """`start`: makes a proxy of the terms and the kinds of listeners; blocks, on the thread that lives as long as
        the command, and raises LaunchFailed. The same command where its network is not `enabled`."""
        if not self.listeners:
            return self
        proxy = start(self.terms, self.listeners)
        bridge = ("--bridge", str(proxy.control_fd), "--hand-over", str(proxy.message_fd))
        return replace(self, argv=(*self.argv, *bridge), proxy=proxy)

    def close(self) -> None:
        """Once the program is over: closes descriptors, ends the proxy, removes placeholders from the workspace."""
        os.close(self.plan_fd)
        if self.proxy is not None:
            self.proxy.close()
        if self.terms.sandbox == "required":
            placeholders.sweep(self.terms.root, self.terms.protect)


async def prepare(
    launcher: LinuxSandboxLauncher,
    terms: WorkspaceTerms,
    argv: Sequence[str],
    tty_size: tuple[int, int] | None,
) -> OneCommand:
    """`tty_size`: (rows, columns) for a terminal of the command's own. The caller holds the workspace's lock.

    Raises SandboxUnavailable, LaunchFailed.
    """
    plan = await launcher.plan_for(terms, terminal=tty_size is not None)
    listeners = tuple(listener.kind for listener in plan.listeners)
    fd = await asyncio.to_thread(_hold, once_value(Once(plan, tuple(argv), tty_size)))
    return OneCommand(await asyncio.to_thread(_command_line, fd), fd, terms, listeners)


def _command_line(fd: int) -> tuple[str, ...]:
    return (*program(), "run", "--plan", str(fd), "--library", library())


def _hold(data: bytes) -> int:
    # Inheritable: ptyprocess keeps descriptors open, but leaves close-on-exec as it is.
    fd = os.memfd_create("codespace-plan", 0)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
