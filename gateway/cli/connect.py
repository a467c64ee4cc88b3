"""`codespace connect`: MCP on standard input and output, carried to a running appliance's Unix socket.

Each line is one JSON-RPC message and becomes one POST to /mcp; the answer is written back as one line, as the appliance
sent it. Both protocol eras: one with `initialize` gets its session and version headers, one without gets the headers
that repeat its body. Requests run side by side, each on a connection of its own. The appliance answers with plain JSON
and starts no conversation itself, so no event stream is opened.

Refuses to know: tools. Never sends a message twice (TOOL-3): an answer that was lost is reported as lost.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

from gateway.cli.unix_http import (
    PROTOCOL_VERSION_KEY,
    UnixConnection,
    cannot_connect,
    header_value,
    problem_of,
    request_headers,
)

MAX_LINE_BYTES = 8 * 1024 * 1024
MAX_IN_FLIGHT = 64
"""More requests wait until one is answered. The appliance's long polls end by themselves."""

_PARSE_ERROR, _INVALID_REQUEST, _INTERNAL_ERROR = -32700, -32600, -32603


def connect(path: Path) -> int:
    """Returns 0 at the end of input, once every request has its answer. Raises `OperatorError` if nothing listens."""
    bridge = Bridge(path, sys.stdout.buffer)
    try:
        bridge.open()
    except OSError as error:
        raise cannot_connect(path, error) from None
    bridge.carry(sys.stdin.buffer)
    return 0


class Bridge:
    """One client. `carry` runs on the calling thread; each request waits for its answer on a thread of its own."""

    def __init__(self, path: Path, out: BinaryIO) -> None:
        self._path = path
        self._out = out
        self._write_turn = threading.Lock()
        self._idle: list[UnixConnection] = []
        self._idle_turn = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_IN_FLIGHT)
        self._under_way: dict[str, UnixConnection] = {}
        self._changed = threading.Condition()
        self._session: dict[str, str] = {}
        self._cancelled: set[str] = set()

    def open(self) -> None:
        """Makes the first connection. Raises `OSError`."""
        connection = UnixConnection(self._path, None)
        connection.connect()
        self._idle.append(connection)

    def carry(self, source: BinaryIO) -> None:
        """Until the end of input, then until everything is answered."""
        while line := source.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := source.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                self._refuse(None, _INVALID_REQUEST, f"a message is over {MAX_LINE_BYTES} bytes; send less at once")
            elif line.strip():
                self._take(line.strip())
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way)
        self._end_session()

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse(None, _PARSE_ERROR, "the line is not JSON")
            return
        if not isinstance(message, dict):
            self._refuse(None, _INVALID_REQUEST, "the line is not one JSON-RPC 2.0 message")
            return
        method = message.get("method")
        if not isinstance(method, str):
            if self._session:  # an answer to something the appliance asked for
                self._exchange(line, message, UnixConnection(self._path, None))
        elif "id" not in message:
            self._notify(method, line, message)
        elif type(message["id"]) not in (int, str):
            # The appliance could take it for a notification, and whoever sent it would wait for ever.
            self._refuse(None, _INVALID_REQUEST, "the id of a request is a string or a whole number")
        elif method == "initialize":
            # In line: what follows needs the session that the answer names.
            self._exchange(line, message, self._connection())
        else:
            self._begin(line, message)

    def _notify(self, method: str, line: bytes, message: dict[str, Any]) -> None:
        if self._session:
            self._exchange(line, message, self._connection())
        elif method == "notifications/cancelled":
            # Over HTTP this era cancels by closing the connection of the request.
            params = message.get("params")
            if isinstance(params, dict):
                self._hang_up(_key(params.get("requestId")))

    def _begin(self, line: bytes, message: dict[str, Any]) -> None:
        self._slots.acquire()
        connection = self._connection()
        key = _key(message["id"])
        with self._changed:
            self._under_way[key] = connection

        def work() -> None:
            try:
                self._exchange(line, message, connection)
            finally:
                with self._changed:
                    if self._under_way.get(key) is connection:
                        del self._under_way[key]
                    self._cancelled.discard(key)
                    self._changed.notify_all()
                self._slots.release()

        threading.Thread(target=work, daemon=True).start()

    def _exchange(self, line: bytes, message: dict[str, Any], connection: UnixConnection) -> None:
        """Sends one message and writes what comes back. Says what went wrong as the answer to that message."""
        request_id = message.get("id") if "method" in message else None
        try:
            if connection.sock is None:
                connection.connect()
        except OSError as error:
            self._failed(message, str(cannot_connect(self._path, error)))
            return
        try:
            connection.request("POST", "/mcp", line, self._headers(message))
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            if _key(request_id) not in self._cancelled:
                self._failed(
                    message,
                    f"the answer was lost ({type(error).__name__}); the call may have been carried out: look before "
                    "you repeat it",
                )
            return
        if message.get("method") == "initialize":
            self._note_session(response, body)
        self._give_back(connection)
        if response.status == 202 or "id" not in message or "method" not in message:
            return
        self._answer(message, response.status, body)

    def _answer(self, message: dict[str, Any], status: int, body: bytes) -> None:
        try:
            decoded = json.loads(body)
        except (ValueError, RecursionError):
            decoded = None
        if isinstance(decoded, dict) and decoded.get("jsonrpc") == "2.0" and decoded.get("id") == message["id"]:
            # A line end can only be between tokens: inside a string JSON writes it as an escape.
            self._write(body.replace(b"\r", b" ").replace(b"\n", b" "))
        else:
            self._failed(message, problem_of(status, body))

    def _headers(self, message: dict[str, Any]) -> dict[str, str]:
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        if isinstance(meta, dict) and PROTOCOL_VERSION_KEY in meta and message.get("method") != "initialize":
            headers = request_headers(str(message.get("method")), params)
            headers["MCP-Protocol-Version"] = header_value(str(meta[PROTOCOL_VERSION_KEY]))
            return headers
        return {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **self._session,
        }

    def _note_session(self, response: http.client.HTTPResponse, body: bytes) -> None:
        try:
            version = json.loads(body)["result"]["protocolVersion"]
        except (ValueError, KeyError, TypeError):
            return
        self._session = {"MCP-Protocol-Version": str(version)}
        session_id = response.getheader("Mcp-Session-Id")
        if session_id is not None:
            self._session["Mcp-Session-Id"] = session_id

    def _end_session(self) -> None:
        if "Mcp-Session-Id" not in self._session:
            return
        connection = UnixConnection(self._path, 2.0)
        try:
            connection.request("DELETE", "/mcp", headers=self._session)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # the appliance ends idle sessions by itself
        finally:
            connection.close()

    # connections
    def _connection(self) -> UnixConnection:
        """An idle one that is still open, or a new one that is not connected yet."""
        with self._idle_turn:
            while self._idle:
                connection = self._idle.pop()
                if not _is_readable(connection.sock):
                    return connection
                connection.close()  # readable without a request: the appliance closed it
        return UnixConnection(self._path, None)

    def _give_back(self, connection: UnixConnection) -> None:
        if connection.sock is None:
            return
        with self._idle_turn:
            self._idle.append(connection)

    def _hang_up(self, key: str) -> None:
        with self._changed:
            connection = self._under_way.get(key)
            if connection is None:
                return
            self._cancelled.add(key)
            sock = connection.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # answered meanwhile

    # output
    def _failed(self, message: dict[str, Any], text: str) -> None:
        if "id" in message and "method" in message:
            self._refuse(message["id"], _INTERNAL_ERROR, text)
        else:
            print(f"error: {text}", file=sys.stderr, flush=True)

    def _refuse(self, request_id: Any, code: int, text: str) -> None:
        answer = {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}
        self._write(json.dumps(answer).encode())

    def _write(self, line: bytes) -> None:
        with self._write_turn:
            try:
                self._out.write(line + b"\n")
                self._out.flush()
            except (OSError, ValueError):
                # The client is gone. The main thread may sit in a read that never ends, so the process ends here.
                os._exit(0)


def _key(request_id: object) -> str:
    """1 and "1" are two ids."""
    return json.dumps(request_id)


def _is_readable(sock: socket.socket | None) -> bool:
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
