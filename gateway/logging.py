"""JSON log lines on standard error, with secrets redacted (NETIF-3).

One line, one object: `timestamp`, `level`, `event`, and fields. What the libraries log through `logging` comes out the
same way. Refuses to know: what is logged. `configure` is called once, by `gateway.__main__`, since a process has one
standard error.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection
from typing import TextIO

import anyio
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

REDACTED = "[redacted]"
LEVELS = ("debug", "info", "warning", "error")

_SECRET_KEY = re.compile(r"token|authorization|secret|password|passwd|cookie|credential|api_?key", re.IGNORECASE)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{4,}")
# Libraries whose own chatter is of no use to an operator below this level.
_QUIET = dict.fromkeys(("mcp", "sse_starlette", "uvicorn", "asyncio"), logging.WARNING)


SESSION_ENDED = (anyio.ClosedResourceError, anyio.BrokenResourceError)
"""What the SDK's streams raise where a message of a session meets its end."""
_SESSIONS_LOG = "mcp.server.streamable_http"


def _is_news(record: logging.LogRecord) -> bool:
    """A client that goes away while its messages, or one message's body, are under way is no error, and no news."""
    if not record.exc_info:
        return True
    from starlette.requests import ClientDisconnect  # for records of a server alone: commands start without it

    return not isinstance(record.exc_info[1], (*SESSION_ENDED, ClientDisconnect))


class Redactor:
    """Replaces values under secret-sounding keys, credentials of an Authorization header, and the known secrets.

    `secrets`: literal values that must never be written, such as the bearer token.
    """

    def __init__(self, secrets: Collection[str] = ()) -> None:
        self._secrets = tuple(secret for secret in secrets if secret)

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        return {key: self._value(key, value) for key, value in event.items()}

    def _value(self, key: str, value: object) -> object:
        if _SECRET_KEY.search(key) and isinstance(value, str | bytes):
            return REDACTED
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {str(k): self._value(str(k), v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._value("", item) for item in value]
        return value

    def text(self, value: str) -> str:
        for secret in self._secrets:
            value = value.replace(secret, REDACTED)
        return _BEARER.sub(rf"\1 {REDACTED}", value)


def configure(level: str, *, secrets: Collection[str] = (), stream: TextIO | None = None) -> FilteringBoundLogger:
    """Sets up this process's log and returns the logger of the gateway. `level`: one of `LEVELS`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    finish: list[Processor] = [Redactor(secrets), structlog.processors.JSONRenderer(default=str)]
    out = stream if stream is not None else sys.stderr
    structlog.configure(
        processors=[*shared, *finish],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, number))
    sessions = logging.getLogger(_SESSIONS_LOG)
    sessions.removeFilter(_is_news)
    sessions.addFilter(_is_news)
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger
