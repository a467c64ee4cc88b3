"""A door before the engine's socket that holds one request until it is told: there a client can be ended in the middle.

Passes everything else through, hijacked connections too. Called by the tests of the wrapper.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

ENGINE = "/var/run/docker.sock"
HOLD_S = 60.0
"""A request that nobody releases goes on after this."""


class Door:
    """`path`: where it listens. The first request whose line holds `word` sets `reached`, and goes on once `release` is
    set."""

    def __init__(self, path: Path, word: str) -> None:
        self.path, self.word = path, word.encode()
        self.reached, self.release = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o666)
        self._listener.listen(16)
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as engine, contextlib.suppress(OSError):
            engine.connect(ENGINE)
            self._pump(client, engine)

    def _hold(self, data: bytes) -> bool:
        """Clients of the engine send a request, and await the answer before the next. True if this was the one."""
        if self.word not in data.partition(b"\r\n")[0] or self.reached.is_set():
            return False
        self.reached.set()
        self.release.wait(HOLD_S)
        return True

    def _pump(self, client: socket.socket, engine: socket.socket) -> None:
        """Until either is done. The request that was held is answered first, whoever is left to hear it."""
        awaited = False
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(engine, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    data = self._read(key.fileobj)
                    if key.fileobj is engine:
                        if not data:
                            return
                        awaited = False
                        client.sendall(data)
                    elif data:
                        awaited = self._hold(data) or awaited
                        engine.sendall(data)
                    elif awaited:
                        selector.unregister(client)
                    else:
                        return

    @staticmethod
    def _read(end: object) -> bytes:
        assert isinstance(end, socket.socket)
        try:
            return end.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def close(self) -> None:
        """Ends once every connection has ended."""
        self.release.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(HOLD_S)
            assert not thread.is_alive()


@contextlib.contextmanager
def door(path: Path, word: str) -> Iterator[Door]:
    opened = Door(path, word)
    try:
        yield opened
    finally:
        opened.close()
