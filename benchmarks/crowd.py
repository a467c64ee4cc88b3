"""Many clients in one thread, so that they take little of the processors: over MCP by hand, or as bare child processes.

An `McpCrowd` has one keep-alive connection a client; each client runs a command in its own workspace, waits for the
observed exit, and begins again. A `SpawnCrowd` does the same with programs of the host, for a reference. Refuses to
know: what is compared. Used by `clients`.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.callers import META
from gateway.cli.unix_http import request_headers

STALLED_S = 60.0
WAIT_MS = 30_000
COMMAND = ("/bin/true",)


@dataclass
class Run:
    """`latencies_ms`: from the request to the observed exit, one a command. `seconds`: of the whole run."""

    seconds: float = 0.0
    latencies_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Commands a second."""
        return len(self.latencies_ms) / self.seconds


def _request(tool: str, arguments: dict[str, Any]) -> bytes:
    params = {"name": tool, "arguments": arguments, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {"Host": "localhost", "Content-Length": str(len(body)), **request_headers("tools/call", params)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body


class _Client:
    def __init__(self, address: Path, workspace_id: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(address))
        self.sock.setblocking(False)
        self._exec = _request("exec_command", {"workspace_id": workspace_id, "command": list(COMMAND)})
        self._data = bytearray()
        self._dispatched = False
        self._began = 0.0

    def begin(self) -> None:
        self._dispatched = False
        self._began = time.perf_counter()
        self.sock.sendall(self._exec)

    def take(self) -> float | None:
        """Milliseconds once the command was seen to exit. Raises `RuntimeError` where it was not."""
        piece = self.sock.recv(1 << 16)
        if not piece:
            raise RuntimeError("the server hung up")
        self._data += piece
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self._data[:end]).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if len(self._data) < end + 4 + length:
            return None
        result = json.loads(self._data[end + 4 : end + 4 + length])["result"]
        del self._data[: end + 4 + length]
        said = result["structuredContent"]
        if result["isError"]:
            raise RuntimeError(f"refused: {said}")
        if not self._dispatched:
            self._dispatched = True
            self.sock.sendall(_request("process_status", {"process_id": said["process_id"], "wait_ms": WAIT_MS}))
            return None
        if said.get("exit_code") != 0:
            raise RuntimeError(f"{COMMAND[0]} was not seen to exit with 0: {said}")
        return (time.perf_counter() - self._began) * 1000


class McpCrowd:
    """One client a workspace. `close()` ends the connections."""

    def __init__(self, address: Path, workspace_ids: Sequence[str]) -> None:
        self._clients = [_Client(address, workspace_id) for workspace_id in workspace_ids]

    def run(self, each: int) -> Run:
        """`each` commands of every client. Raises `RuntimeError` for any error, or where nothing happens any more."""
        run = Run()
        left = dict.fromkeys(self._clients, each)
        with selectors.DefaultSelector() as selector:
            for client in self._clients:
                selector.register(client.sock, selectors.EVENT_READ, client)
            began = time.perf_counter()
            for client in self._clients:
                client.begin()
            while left:
                ready = selector.select(STALLED_S)
                if not ready:
                    raise RuntimeError(f"no answer in {STALLED_S:g} s")
                for key, _ in ready:
                    took = key.data.take()
                    if took is None:
                        continue
                    run.latencies_ms.append(took)
                    left[key.data] -= 1
                    if left[key.data]:
                        key.data.begin()
                    else:
                        del left[key.data]
            run.seconds = time.perf_counter() - began
        return run

    def close(self) -> None:
        for client in self._clients:
            client.sock.close()


class SpawnCrowd:
    """`clients` programs at a time, started with posix_spawn and reaped by pidfd."""

    def __init__(self, argv: Sequence[str], clients: int) -> None:
        self._argv = list(argv)
        self._clients = clients

    def run(self, each: int) -> Run:
        """As many as `clients` times `each`. Raises `RuntimeError` where one fails."""
        run = Run()
        waiting = self._clients * each
        with selectors.DefaultSelector() as selector:

            def begin() -> None:
                nonlocal waiting
                waiting -= 1
                at = time.perf_counter()
                pid = os.posix_spawn(self._argv[0], self._argv, {}, setsid=True)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, at))

            began = time.perf_counter()
            for _ in range(self._clients):
                begin()
            while selector.get_map():
                ready = selector.select(STALLED_S)
                if not ready:
                    raise RuntimeError(f"no end of {self._argv[0]} in {STALLED_S:g} s")
                for key, _ in ready:
                    pid, at = key.data
                    _, status = os.waitpid(pid, 0)
                    run.latencies_ms.append((time.perf_counter() - at) * 1000)
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    if status:
                        raise RuntimeError(f"{self._argv[0]} ended with {os.waitstatus_to_exitcode(status)}")
                    if waiting:
                        begin()
            run.seconds = time.perf_counter() - began
        return run
