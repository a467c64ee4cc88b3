"""Binds the listening sockets: one Unix socket, and TCP if asked for.

The Unix socket has mode 0660 from birth and never replaces a living one. Looking, binding and replacing happen under a
short-lived lock file beside it, and a socket only gets its public name once it listens; so what has the name and
refuses a connection is dead, and two programs that start at once cannot both win. Refuses to know: HTTP, MCP, who may
connect. Raises `gateway.errors.OperatorError` alone. Called by the start of `serve`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import ConfigurationError, StartFailed

SOCKET_MODE = 0o660
BACKLOG = 512
_SUN_PATH_BYTES = 107
"""sockaddr_un.sun_path holds 108 bytes with the final NUL (unix(7))."""


@dataclass(frozen=True)
class UnixListener:
    """A listening socket with its public name. `close` takes the name away only while it is still ours."""

    sock: socket.socket
    path: Path
    identity: tuple[int, int]

    def close(self) -> None:
        """Idempotent; does not end accepted connections."""
        self.sock.close()
        with contextlib.suppress(OSError):
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with _turn(directory, self.path.name):
                    found = os.stat(self.path.name, dir_fd=directory, follow_symlinks=False)
                    if (found.st_dev, found.st_ino) == self.identity:
                        os.unlink(self.path.name, dir_fd=directory)
            finally:
                os.close(directory)


def bind_unix(path: Path, allow_uids: Collection[int]) -> UnixListener:
    """Binds and listens on `path`, made absolute. A missing directory is made with mode 0700.

    Raises `ConfigurationError` for a path that cannot be served, `StartFailed` for one that is taken or fails to bind.
    """
    path = Path(os.path.abspath(path))
    if len(os.fsencode(path)) > _SUN_PATH_BYTES:
        raise ConfigurationError(
            "cannot listen",
            str(path),
            f"a socket path holds at most {_SUN_PATH_BYTES} bytes; choose a shorter --socket",
        )
    directory = _open_directory(path.parent, allow_uids)
    try:
        with _turn(directory, path.name):
            _refuse_taken(directory, path)
            return _bind_and_name(directory, path)
    except OSError as error:
        raise _failed(path, error) from error
    finally:
        os.close(directory)


@contextlib.contextmanager
def _turn(directory: int, name: str) -> Iterator[None]:
    """One program at a time looks at and changes this name. Held for a few system calls; leaves no file.

    Not a lock on the directory itself: that one may be held for long, as a data directory's is.
    """
    lock_name = f".{name[:200]}.lock"
    while True:
        lock = os.open(lock_name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The one before us may have removed the file that we opened: then the lock is on nothing.
            if not _is_named(lock, lock_name, directory):
                continue
            try:
                yield
            finally:
                os.unlink(lock_name, dir_fd=directory)
            return
        finally:
            os.close(lock)


def _is_named(descriptor: int, name: str, directory: int) -> bool:
    try:
        named = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), named)


def _open_directory(directory: Path, allow_uids: Collection[int]) -> int:
    """Raises `ConfigurationError` where somebody else could put a socket of his own in the place of ours."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(directory, error) from error
    found = os.fstat(descriptor)
    problem = None
    if found.st_uid not in {0, os.geteuid(), *allow_uids}:
        problem = (
            f"it belongs to uid {found.st_uid}; choose a directory of your own, or add the uid to CODESPACE_ALLOW_UIDS"
        )
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        problem = "everybody may write to it; take the permission away with chmod o-w, or choose another --socket"
    if problem is not None:
        os.close(descriptor)
        raise ConfigurationError("cannot listen in this directory", str(directory), problem)
    return descriptor


def _refuse_taken(directory: int, path: Path) -> None:
    """Returns if the name is free or holds a dead socket. It is our turn."""
    try:
        found = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StartFailed("cannot listen", str(path), "something that is no socket has this name; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(f"/proc/self/fd/{directory}/{path.name}")
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # its backlog is full: alive
    raise StartFailed(
        "cannot listen", str(path), "another program serves this socket; stop it, or choose another with --socket"
    )


def _bind_and_name(directory: int, path: Path) -> UnixListener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Short whatever the public name is, and nobody else's during our turn.
    temporary = f".cs{os.getpid()}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        with _umask(0o777 & ~SOCKET_MODE):
            sock.bind(f"/proc/self/fd/{directory}/{temporary}")
        sock.listen(BACKLOG)
        found = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
        os.rename(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        sock.close()
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    return UnixListener(sock, path, (found.st_dev, found.st_ino))


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPv6]:PORT`. Raises `ConfigurationError`."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(
            "cannot listen", text, "give --http as HOST:PORT, such as 127.0.0.1:8765 or [::1]:8765"
        )
    return host, int(port)


def bind_tcp(address: str, *, has_token: bool) -> list[socket.socket]:
    """Listens on every address that the host part names.

    Raises `ConfigurationError` for an address that is not loopback when there is no token (NETIF-2), `StartFailed` when
    the port is taken or the address is not of this machine.
    """
    host, port = parse_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigurationError("cannot listen", address, f"the host is not known ({error.strerror})") from error
    except UnicodeError:  # what no name can be, IDNA refuses before anybody is asked
        raise ConfigurationError("cannot listen", address, "the host is no name: write one, or an address") from None
    targets = list(dict.fromkeys((family, sockaddr) for family, _, _, _, sockaddr in found))
    open_to_others = [str(sa[0]) for _, sa in targets if not ipaddress.ip_address(str(sa[0]).split("%")[0]).is_loopback]
    if open_to_others and not has_token:
        raise ConfigurationError(
            "refusing to listen without a token",
            address,
            f"{open_to_others[0]} can be reached by others; give --token-file, or listen on 127.0.0.1",
        )
    bound: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, sockaddr in targets:
            try:
                bound.append(_bind_one(family, sockaddr))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                missing = error  # a name such as localhost may have an IPv6 address that this machine lacks
        if not bound and missing is not None:
            raise missing
    except OSError as error:
        for sock in bound:
            sock.close()
        raise _failed(address, error) from error
    return bound


def _bind_one(family: int, sockaddr: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by what is accepted (tcp(7)): a client whose machine is gone is noticed within two minutes, also
        # where nothing is due to be read or written.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _failed(on: Path | str, error: OSError) -> StartFailed:
    name = errno.errorcode.get(error.errno or 0, "error")
    remedies = {
        errno.EADDRINUSE: "the port is in use; stop the program that has it, or choose another",
        errno.EADDRNOTAVAIL: "this machine does not have that address",
        errno.EACCES: "permission denied; choose a place or port that this user may use",
        errno.EPERM: "permission denied; choose a place or port that this user may use",
        errno.EROFS: "the file system is read-only; choose another --socket",
        errno.ENOTDIR: "a part of the path is no directory; choose another --socket",
        errno.ENOSPC: "the disk is full; make room",
    }
    return StartFailed(f"cannot listen ({name})", str(on), remedies.get(error.errno or 0, error.strerror or str(error)))
