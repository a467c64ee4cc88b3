"""Loads the parts of an appliance faster than an import statement alone. Called by the commands that serve."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quick_loading() -> Iterator[None]:
    """For imports in its body. Afterwards cycles are not collected: whoever serves switches that on again.

    What is loaded stays, so looking for garbage meanwhile finds none. structlog would load rich where that is
    installed, for tracebacks on a terminal, which takes as long as structlog itself; the log here is JSON.
    """
    gc.disable()
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["rich"]
