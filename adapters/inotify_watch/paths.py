"""Which watch stands on which directory, while directories move.

Pure. Paths are relative; the root is the empty path. Called by `watcher`.
"""

from __future__ import annotations


class WatchedPaths:
    """Two maps that are kept as each other's inverse; a later claim on a path or a watch displaces the earlier."""

    def __init__(self) -> None:
        self._path_of: dict[int, str] = {}
        self._watch_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._path_of)

    def __contains__(self, watch: object) -> bool:
        return watch in self._path_of

    def path_of(self, watch: int) -> str | None:
        return self._path_of.get(watch)

    def put(self, watch: int, path: str) -> None:
        self.forget(watch)
        displaced = self._watch_of.get(path)
        if displaced is not None:
            self.forget(displaced)
        self._path_of[watch] = path
        self._watch_of[path] = watch

    def forget(self, watch: int) -> None:
        """No effect for a watch that is not there."""
        path = self._path_of.pop(watch, None)
        if path is not None:
            del self._watch_of[path]

    def below(self, path: str) -> list[int]:
        """The watches on a directory and everything in it."""
        prefix = path + "/"
        return [watch for watch, at in self._path_of.items() if at == path or at.startswith(prefix)]

    def move(self, old: str, new: str) -> None:
        """A directory was renamed, and what is in it with it."""
        moved = [(watch, new + self._path_of[watch][len(old) :]) for watch in self.below(old)]
        # Before any of them takes its new path: a scan that was ahead of the rename may have put some of them there.
        for watch, _ in moved:
            self.forget(watch)
        for watch, path in moved:
            self.put(watch, path)
