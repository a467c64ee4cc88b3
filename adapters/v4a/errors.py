"""Refusals of the patch engine, as values with fields.

    PatchError            code, message, details
      InvalidPatch        code INVALID_PATCH, details.reason
      TooCostly           reason too_costly: a bound of this engine, named

It knows the public error codes by their names only; the helper turns a `PatchError` into the runner's error.
"""

from __future__ import annotations

from typing import Any


class PatchError(Exception):
    """A patch that is refused; nothing was written.

    `code`: a public error code. `message`: what failed, on what, what to do next; may quote the patch or the file,
    always short and valid Unicode. `details`: JSON values, never such text.
    """

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: dict[str, Any] = {key: value for key, value in details.items() if value is not None}


class InvalidPatch(PatchError):
    """The patch text is at fault: `details.reason` is one of the format's reasons."""

    def __init__(self, reason: str, message: str, **details: Any) -> None:
        super().__init__("INVALID_PATCH", message, reason=reason, **details)


class TooCostly(InvalidPatch):
    """A bound on work or memory was met before the patch was done. `limit` names it, `bound` is its value."""

    def __init__(self, limit: str, bound: int, what: str) -> None:
        super().__init__(
            "too_costly",
            f"the patch is too costly: {what} (limit {limit} = {bound}). Split it into smaller patches.",
            limit=limit,
            bound=bound,
        )
