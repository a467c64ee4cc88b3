"""The registry file: bytes to a strict model, and a complaint that names the key. Pure but for one bounded read.

Refuses to know: what is on the disk beside the file itself; `registry` checks roots and mounts. Called by `registry`.
"""

from __future__ import annotations

import difflib
import errno
import ipaddress
import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from gateway.errors import RegistryRefused

MAX_REGISTRY_BYTES = 1024 * 1024
"""Ours: a registry of some thousand workspaces is below it."""
MAX_LIST = 256
MAX_LIMIT = 2**31 - 1
ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DESTINATION_FORMS = "is not a host, *.domain, address or CIDR block with no host bits set, with or without :port"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# --- values -----------------------------------------------------------------------------------------------------------
def _encodable(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is not valid Unicode") from None
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("is not an absolute path")
    return text


def _protected_name(text: str) -> str:
    if text.startswith("/") or any(part in ("", ".", "..") for part in text.split("/")):
        raise ValueError("is not a plain name relative to the root (no leading or trailing /, no . or ..)")
    return text


def _destination(text: str) -> str:
    """Checks one destination and gives it back in lower case. Forms: INTERFACE, registry file."""
    host, port = _split_port(text.lower())
    if port is not None and not (port.isascii() and port.isdigit()):
        raise ValueError(_DESTINATION_FORMS)
    if port is not None and (len(port) > 5 or not 1 <= int(port) <= 65535):
        raise ValueError("has a port that is not between 1 and 65535")
    try:
        ipaddress.ip_network(host, strict=True)
        return text.lower()
    except ValueError:
        pass
    name = host.removeprefix("*.")
    labels = name.split(".")
    numeric = labels[-1].isdigit()
    if "/" in host or numeric or len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(_DESTINATION_FORMS)
    return text.lower()


def _split_port(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ValueError("has brackets that hold no IPv6 address")
        return host, rest[1:] if rest else None
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host, port
    return text, None


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"has a name that no shell can use: {name[:64]!r}")
    return value


Text = Annotated[str, Field(max_length=4096), AfterValidator(_encodable)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
ProtectedName = Annotated[Text, AfterValidator(_protected_name)]
Destination = Annotated[Text, AfterValidator(_destination)]
Limit = Annotated[int, Field(ge=0, le=MAX_LIMIT)]


class _Closed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class LimitsEntry(_Closed):
    """0 means no limit, but for `output_retained_kb`: what is retained lies in the runner's memory."""

    timeout_s: Limit = 30
    cpu_s: Limit = 0
    memory_mb: Limit = 2048
    processes: Limit = 256
    open_files: Limit = 1024
    file_size_mb: Limit = 1024
    output_retained_kb: Annotated[int, Field(ge=1, le=64 * 1024)] = 256


class EnvironmentEntry(_Closed):
    kind: Literal["host", "linux-container"]


class WorkspaceEntry(_Closed):
    root: AbsolutePath
    profile: Literal["read-only", "workspace-write"] = "read-only"
    network: Literal["restricted", "enabled"] = "restricted"
    approvals: Literal["off", "confirm"] = "off"
    environment: str = "host"
    sandbox: Literal["required", "off"] = "required"
    limits: LimitsEntry = LimitsEntry()
    network_allow: Annotated[list[Destination], Field(max_length=MAX_LIST)] = []
    network_deny: Annotated[list[Destination], Field(max_length=MAX_LIST)] = []
    protect: Annotated[list[ProtectedName], Field(max_length=MAX_LIST)] = [".git/hooks", ".git/config"]
    mounts_read_only: Annotated[list[AbsolutePath], Field(max_length=MAX_LIST)] = []
    env: Annotated[dict[str, Text], Field(max_length=MAX_LIST), AfterValidator(_variables)] = {}


class RegistryFile(_Closed):
    environments: dict[str, EnvironmentEntry] = {}
    workspaces: dict[str, WorkspaceEntry]


# --- reading ----------------------------------------------------------------------------------------------------------
def read_registry_file(path: Path) -> RegistryFile:
    """Reads and validates. Raises `RegistryRefused` naming file, key and remedy, and nothing else."""
    return parse_registry(str(path), _read(path))


def parse_registry(name: str, data: bytes) -> RegistryFile:
    """`name` ends in .json or .toml and is used in complaints. Raises `RegistryRefused`, whatever the bytes are."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise RegistryRefused(name, "", f"byte {error.start} is not UTF-8", "save the file as UTF-8") from None
    document = _document(name, text)
    if not isinstance(document, dict):
        raise RegistryRefused(name, "", "the file is not an object", 'write {"workspaces": {…}}')
    try:
        file = RegistryFile.model_validate(document)
    except ValidationError as error:
        _complain(name, error)
    for section in ("environments", "workspaces"):
        for entry_id in getattr(file, section):
            if not ID.fullmatch(entry_id):
                raise RegistryRefused(
                    name,
                    f"{section}.{entry_id[:80]}",
                    "the id does not fit",
                    "use up to 64 of a-z 0-9 . _ -, beginning with a letter or a digit",
                )
    return file


def _read(path: Path) -> bytes:
    name = str(path)
    try:
        # O_NONBLOCK: a FIFO in the file's place must not hold up the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "?")
        raise RegistryRefused(name, "", f"cannot be opened ({code})", "name a file that this user can read") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RegistryRefused(name, "", "is not a regular file", "name a JSON or TOML file")
        if status.st_mode & stat.S_IWOTH:
            raise RegistryRefused(name, "", "everyone may write it", f"chmod o-w {name}")
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(MAX_REGISTRY_BYTES + 1)
    except OSError as error:
        raise RegistryRefused(name, "", f"cannot be read ({error.strerror})", "try again, or copy the file") from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_REGISTRY_BYTES:
        raise RegistryRefused(name, "", f"is larger than {MAX_REGISTRY_BYTES} bytes", "split the appliance in two")
    return data


class _Twice(ValueError):
    """A key that a JSON object holds twice: which of the two counts is anyone's guess."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [key for key, _ in pairs]
        raise _Twice(next(key for key in names if names.count(key) > 1))
    return found


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _document(name: str, text: str) -> object:
    suffix = Path(name).suffix.lower()
    try:
        if suffix == ".json":
            document: object = json.loads(text, object_pairs_hook=_object, parse_constant=_not_json)
            return document
        if suffix == ".toml":
            return tomllib.loads(text)
    except _Twice as error:
        raise RegistryRefused(
            name, str(error)[:80], "the key appears twice in one object", "keep one of them"
        ) from None
    except (ValueError, RecursionError) as error:
        kind = suffix[1:].upper()
        problem = "nests too deeply" if isinstance(error, RecursionError) else f"is not {kind} ({str(error)[:200]})"
        raise RegistryRefused(name, "", problem, "correct the syntax") from None
    raise RegistryRefused(name, "", "the name ends in neither .json nor .toml", "rename the file to say what it is")


# --- complaining ------------------------------------------------------------------------------------------------------
def _complain(name: str, error: ValidationError) -> NoReturn:
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    key = ".".join(location)[:200]
    if first["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"remove it; known here: {', '.join(known)}"
        raise RegistryRefused(name, key, "unknown key", remedy) from None
    if first["type"] == "missing":
        raise RegistryRefused(name, key, "the key is missing", f"add {location[-1]}") from None
    problem = str(first["msg"]).removeprefix("Value error, ")
    problem = problem[:1].lower() + problem[1:]
    remedy = "correct the value"
    if first["type"] in ("string_type", "int_type", "bool_type", "list_type", "dict_type"):
        remedy = "correct the type: no conversions are made"
    raise RegistryRefused(name, key, problem, remedy) from None


def _known_keys(location: list[str]) -> list[str]:
    models: dict[int, type[BaseModel]] = {0: RegistryFile, 2: WorkspaceEntry, 3: LimitsEntry}
    model = EnvironmentEntry if location[:1] == ["environments"] else models.get(len(location), RegistryFile)
    return list(model.model_fields)
