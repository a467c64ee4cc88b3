"""What the runner and the proxy say to each other on their private SEQPACKET socket: one JSON object a message.

From the runner: `config` first, then `serve` with the descriptors of one command. From the proxy: `hello`, then for
each `serve` either `serving` or `refused`, and `counts` (all of them, each time). Both ends parse strictly. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSION = 1
MAX_MESSAGE_BYTES = 400 * 1024
MAX_LISTENERS = 200
"""The kernel passes at most 253 descriptors with one message."""
KINDS = ("proxy", "transparent", "names_udp", "names_tcp")


class WireError(ValueError):
    """A message that is not of this protocol."""


@dataclass(frozen=True)
class Config:
    """`names`: for tests, a resolver of these names alone, name to addresses; None asks the machine's own."""

    names: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Serve:
    """One command. With it go its pidfd, then one listening socket of its network for each of `listeners` (KINDS)."""

    id: int
    workspace_id: str
    process_id: str
    allow: tuple[str, ...]
    deny: tuple[str, ...]
    listeners: tuple[str, ...]


def encode(value: Mapping[str, Any]) -> bytes:
    """Raises WireError for a message beyond MAX_MESSAGE_BYTES."""
    message = json.dumps(value, separators=(",", ":")).encode()
    if len(message) > MAX_MESSAGE_BYTES:
        raise WireError(f"{len(message)} bytes are more than a message holds ({MAX_MESSAGE_BYTES})")
    return message


def config_message(config: Config) -> bytes:
    names = None if config.names is None else {name: list(found) for name, found in config.names.items()}
    return encode({"config": {"version": VERSION, "names": names}})


def serve_message(serve: Serve) -> bytes:
    """Raises WireError."""
    return encode({"serve": {**serve.__dict__}})


def decode(message: bytes) -> tuple[str, Any]:
    """(what, value) of a message of either side: an object with one member. Raises WireError."""
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        raise WireError("a message is not JSON") from None
    if not isinstance(value, dict) or len(value) != 1:
        raise WireError("a message is not an object with one member")
    return next(iter(value.items()))


def parse_config(value: Any) -> Config:
    """Raises WireError."""
    item = _object(value, "config", {"version", "names"})
    if item["version"] != VERSION:
        raise WireError("the runner speaks another version; install matching ones")
    if item["names"] is None:
        return Config()
    if not isinstance(item["names"], dict):
        raise WireError("config.names is no object")
    return Config({name: _texts(found, "config.names") for name, found in item["names"].items()})


def parse_serve(value: Any) -> Serve:
    """Raises WireError."""
    item = _object(value, "serve", set(Serve.__dataclass_fields__))
    if type(item["id"]) is not int:
        raise WireError("serve.id is no number")
    for name in ("workspace_id", "process_id"):
        if not isinstance(item[name], str):
            raise WireError(f"serve.{name} is no text")
    listeners = _texts(item["listeners"], "serve.listeners")
    if not 1 <= len(listeners) <= MAX_LISTENERS or not set(listeners) <= set(KINDS):
        raise WireError("serve.listeners are of no known kind, or too many")
    allow, deny = _texts(item["allow"], "serve.allow"), _texts(item["deny"], "serve.deny")
    return Serve(item["id"], item["workspace_id"], item["process_id"], allow, deny, listeners)


def _object(value: Any, where: str, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise WireError(f"{where} does not have exactly {', '.join(sorted(names))}")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise WireError(f"{where} is no list of texts")
    return tuple(value)
