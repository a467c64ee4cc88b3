"""Settings of one start: flags, then `CODESPACE_*` in the environment, then defaults.

The only place that reads the environment. Refuses to know: what is in the registry, whether an address can be bound.
Called by the command line and by `gateway.__main__`.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gateway.errors import ConfigurationError
from gateway.registry import Guarded
from runner.api import DEFAULT_PREPARED_SANDBOXES

MAX_RUNNING_PROCESSES = 1024
"""Upper bound of `max_processes`: each takes descriptors and threads of control in the runner. Ours."""

MAX_PREPARED_SANDBOXES = 64
"""Upper bound of `prepared_sandboxes`: each takes some megabytes, seven descriptors and a process. Ours."""

_PACKAGES = ("gateway", "runner", "adapters", "sandbox_helper")
_REMEDIES = {
    "registry": "give the path of a JSON or TOML file",
    "socket": "give the path of the Unix socket",
    "http": "write it as HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, with a port from 0 to 65535",
    "token_file": "give the path of a file that holds the token",
    "data_dir": "give the path of a directory",
    "runner": "choose uds or in-process",
    "max_processes": f"give a whole number from 1 to {MAX_RUNNING_PROCESSES}",
    "prepared_sandboxes": f"give a whole number from 0 to {MAX_PREPARED_SANDBOXES}",
    "allow_uids": "give user ids separated by commas, such as 0,1000",
    "allow_hosts": "give host names separated by commas",
    "log_level": "choose debug, info, warning or error",
}


class HttpAddress(str):
    """`HOST:PORT`, checked; `host` without the brackets of an IPv6 address."""

    host: str
    port: int

    def __new__(cls, text: str) -> HttpAddress:
        """Raises `ValueError` for anything that is not HOST:PORT with a port from 0 to 65535."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address needs brackets")
        if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError("not HOST:PORT")
        self = super().__new__(cls, text)
        self.host = host
        self.port = int(port)
        return self


class Settings(BaseSettings):
    """All settings, typed. Paths are absolute. `allow_uids`: peers of the Unix socket, own uid and 0 by default.

    `allow_hosts`: names accepted in Host beside the loopback ones. `prepared_sandboxes`: how many may wait for a
    command.
    """

    model_config = SettingsConfigDict(
        env_prefix="CODESPACE_", env_ignore_empty=True, extra="forbid", frozen=True, arbitrary_types_allowed=True
    )

    registry: Path | None = None
    socket: Path | None = None
    http: HttpAddress | None = None
    token_file: Path | None = None
    data_dir: Path | None = None
    runner: Literal["uds", "in-process"] = "uds"
    max_processes: Annotated[int, Field(ge=1, le=MAX_RUNNING_PROCESSES)] = 8
    prepared_sandboxes: Annotated[int, Field(ge=0, le=MAX_PREPARED_SANDBOXES)] = DEFAULT_PREPARED_SANDBOXES
    allow_uids: Annotated[frozenset[int], NoDecode] = Field(default_factory=lambda: frozenset({0, os.getuid()}))
    allow_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("registry", "socket", "token_file", "data_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and "\0" in str(value):
            raise ValueError("a path holds no NUL")
        return value if value is None else Path(os.path.abspath(value))

    @field_validator("http", mode="before")
    @classmethod
    def _address(cls, value: object) -> object:
        return HttpAddress(value) if isinstance(value, str) else value

    @field_validator("allow_uids", mode="before")
    @classmethod
    def _uids(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) < 2**32 - 1 for part in parts):
            raise ValueError("not a list of user ids")
        return frozenset(int(part) for part in parts)

    @field_validator("allow_hosts", mode="before")
    @classmethod
    def _hosts(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        parts = tuple(part.strip().lower() for part in value.split(","))
        if not all(part and not set(part) & set(" /\\@") for part in parts):
            raise ValueError("not a list of host names")
        return parts

    @field_validator("log_level", mode="before")
    @classmethod
    def _level(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @classmethod
    def load(cls, **flags: Any) -> Settings:
        """Flags that are None were not given. Raises `ConfigurationError` naming the flag or the variable."""
        given = {name: value for name, value in flags.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else "settings"
            where = "--" + name.replace("_", "-") if name in given else f"CODESPACE_{name.upper()}"
            shown = str(first.get("input"))[:80]
            raise ConfigurationError(
                f"bad setting {shown!r}", where, _REMEDIES.get(name, "see `codespace serve --help`")
            ) from None

    def require_registry(self) -> Path:
        """Raises `ConfigurationError` where none was given."""
        if self.registry is None:
            raise ConfigurationError(
                "no registry given", "--registry", "name the registry file, or set CODESPACE_REGISTRY"
            )
        return self.registry

    def socket_path(self) -> Path:
        """The MCP socket: as given, else `$XDG_RUNTIME_DIR/codespace/mcp.sock`. Raises `ConfigurationError`."""
        if self.socket is not None:
            return self.socket
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        if not runtime.startswith("/"):
            raise ConfigurationError(
                "no socket given and XDG_RUNTIME_DIR is not set", "--socket", "name the socket, or set CODESPACE_SOCKET"
            )
        return Path(runtime, "codespace", "mcp.sock")

    def data_path(self) -> Path:
        """The data directory: as given, else `$XDG_STATE_HOME/codespace`, where the XDG base directory specification
        makes `~/.local/state` of an absent variable. Raises `ConfigurationError` where there is no home either."""
        if self.data_dir is not None:
            return self.data_dir
        state = os.environ.get("XDG_STATE_HOME", "")
        if state.startswith("/"):
            return Path(state, "codespace")
        home = os.environ.get("HOME", "")
        if not home.startswith("/"):
            raise ConfigurationError(
                "no data directory given, and neither XDG_STATE_HOME nor HOME is set",
                "--data-dir",
                "name the directory, or set CODESPACE_DATA_DIR",
            )
        return Path(home, ".local", "state", "codespace")

    def guarded(self) -> Guarded:
        """What no workspace may hold, as far as these settings name it. Raises nothing: a socket or data directory
        that is not named and has no default is not guarded, and not used either."""
        private: list[tuple[str, str]] = []
        if self.token_file is not None:
            private.append(("the token", str(self.token_file)))
        data: str | None = None
        try:
            private.append(("the MCP socket", str(self.socket_path())))
        except ConfigurationError:
            pass
        try:
            data = str(self.data_path())
        except ConfigurationError:
            pass
        return Guarded(private=tuple(private), data_dir=data, homes=home_directories(), program=program_directories())


def program_directories() -> tuple[str, ...]:
    """Where the code lies that this program runs: its packages, the environment they are in, the interpreter's own."""
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = [os.path.join(beside, package) for package in _PACKAGES]
    return (*found, *dict.fromkeys(prefix for prefix in (sys.prefix, sys.base_prefix) if prefix != "/"))


def home_directories() -> tuple[str, ...]:
    """Homes of people on this machine: the account's own, root's, those of ordinary users, and `$HOME`. Canonical,
    `/` and directories that do not exist left out, since system accounts name such."""
    own = os.getuid()
    found = {entry.pw_dir for entry in pwd.getpwall() if entry.pw_uid in (0, own) or 1000 <= entry.pw_uid < 65534}
    found.add(os.environ.get("HOME", ""))
    return tuple(
        sorted({os.path.realpath(home) for home in found if home.startswith("/") and os.path.isdir(home)} - {"/"})
    )
