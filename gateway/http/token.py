"""Reads the bearer token, and compares what is shown with it. Refuses to know: how it is sent. Called by the start of
`serve`, and by what stands before the routes."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

from gateway.errors import ConfigurationError

_MOST_BYTES = 4096


class Gate:
    """What one listener asks its callers for. Compares, and never tells."""

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()

    @property
    def needed(self) -> bool:
        """Whether callers must show a token."""
        return self._token is not None

    def admits(self, shown: bytes) -> bool:
        """Takes as long for a wrong token as for the right one, whatever their lengths."""
        if self._token is None:
            return True
        return hmac.compare_digest(hashlib.sha256(shown).digest(), hashlib.sha256(self._token).digest())

    def seal(self, name: str) -> str:
        """Only this name with this token gives it, and it gives neither away. For session names, which are random."""
        return hmac.new(name.encode(), b"codespace console seal" + (self._token or b""), "sha256").hexdigest()


def read_token(path: Path) -> str:
    """The one line of the file, without its line end: printable ASCII without spaces.

    Raises `ConfigurationError` for a file that is missing, empty, no regular file, of another owner, or open to others.
    """
    what = "cannot use the token file"
    try:
        # O_NONBLOCK: opening a FIFO must not hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(what, str(path), f"{error.strerror}; make it and write the token in it") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(what, str(path), "it is no regular file")
        if found.st_uid not in (0, os.geteuid()):
            raise ConfigurationError(what, str(path), f"it belongs to uid {found.st_uid}; chown it to this user")
        if found.st_mode & 0o027:
            mode = stat.S_IMODE(found.st_mode)
            raise ConfigurationError(what, str(path), f"others may read it (mode {mode:04o}); chmod 0600 it")
        raw = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    try:
        token = raw.decode("ascii").rstrip("\r\n")
    except UnicodeDecodeError:
        token = " "
    if len(raw) > _MOST_BYTES or not token or not token.isprintable() or " " in token:
        raise ConfigurationError(
            what,
            str(path),
            "it must hold one line of printable ASCII without spaces, such as from: openssl rand -hex 32",
        )
    return token
