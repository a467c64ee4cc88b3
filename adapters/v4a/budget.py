"""Bounds on what one patch may cost, counted and never timed, so that the same patch always has the same answer.

A step is about ten nanoseconds of work on the machine this was measured on: one entry of a line table costs ten, a
line search a step for every ten lines it may have to compare. The bounds hold for hostile patches; ordinary ones stay
below a hundredth of them. Source: ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from adapters.v4a.errors import TooCostly


@dataclass(frozen=True)
class Limits:
    """`max_patch_bytes`: of the text as UTF-8. `max_files`: distinct names in one patch. `max_file_bytes`: of one
    file that is updated. `max_content_bytes`: of all files updated or written, old and new together. `max_lines`: of
    one such file. `max_steps`: of matching and rewriting in all. `max_name_bytes`: of all names in the patch and in the
    expected versions. `max_warning_bytes`: of all warnings as JSON, about; an answer must fit into a frame."""

    max_patch_bytes: int = 4 * 1024 * 1024
    max_files: int = 2_000
    max_file_bytes: int = 16 * 1024 * 1024
    max_content_bytes: int = 64 * 1024 * 1024
    max_lines: int = 8_000_000
    max_steps: int = 150_000_000
    max_name_bytes: int = 1024 * 1024
    max_warning_bytes: int = 2 * 1024 * 1024


class Budget:
    """What is left of the limits for one patch. Not shared between patches."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._steps = limits.max_steps
        self._content_bytes = limits.max_content_bytes
        self._warning_bytes = limits.max_warning_bytes

    def spend(self, steps: int) -> None:
        """Takes `steps` from what is left. Raises `TooCostly`."""
        self._steps -= steps
        if self._steps < 0:
            raise TooCostly("max_steps", self.limits.max_steps, "finding its lines takes too many comparisons")

    def hold(self, size_bytes: int) -> None:
        """Counts content that is kept in memory. Raises `TooCostly`."""
        self._content_bytes -= size_bytes
        if self._content_bytes < 0:
            limit = self.limits.max_content_bytes
            raise TooCostly("max_content_bytes", limit, "the files it changes are too large together")

    def warn(self, size_bytes: int) -> None:
        """Counts a warning. Raises `TooCostly`."""
        self._warning_bytes -= size_bytes
        if self._warning_bytes < 0:
            raise TooCostly("max_warning_bytes", self.limits.max_warning_bytes, "too many places are uncertain")

    def spend_search(self, lines: int, block: int) -> None:
        """One search of `block` lines within `lines` lines.

        CPython's substring search is linear for long needles in long texts and quadratic below that; its thresholds
        (Objects/stringlib/fastsearch.h) are kept here so that the charge covers the worst case of either.
        """
        if block == 1:
            work = lines
        elif block < 6 or lines < 2_500 or (block < 100 and lines < 30_000):
            work = lines * min(block, lines)
        else:
            work = lines * 3
        self.spend((work + block) // 10)
