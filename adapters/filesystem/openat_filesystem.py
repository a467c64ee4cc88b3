"""`runner.ports.FileSystem` on openat2: reads and finds below held root descriptors.

It decides nothing about permission: the gateway has. The runner's service calls it in its thread pool, joined in
`runner.__main__`.
"""

from __future__ import annotations

import os
import stat

from adapters.filesystem.beneath import Method, choose_opener, reopen_for_reading
from adapters.filesystem.errors import path_error, special_file
from adapters.filesystem.finding import MAX_ENTRIES, find_page
from adapters.filesystem.paths import parse_path
from adapters.filesystem.reading import read_content
from adapters.filesystem.roots import Roots
from runner.api import FileContent, FindFiles, FindPage, ReadFile


class OpenatFileSystem:
    """Blocking and thread-safe. `method`: forces one way to open (tests); by default the kernel is asked.

    `max_entries`: directory entries that one find looks at before it gives a cursor.
    """

    def __init__(self, *, method: Method | None = None, max_entries: int = MAX_ENTRIES) -> None:
        self._opener = choose_opener(method)
        self._roots = Roots(self._opener)
        self._max_entries = max_entries

    def read_file(self, request: ReadFile) -> FileContent:
        """The file's text (base64 where it is not UTF-8), its size, and the version of the whole of it.

        A file that changes meanwhile is read again, up to three times if it is small; content, size and version always
        come from one pass over one inode. Safe to repeat. Raises `RunnerError`: PATH_ESCAPE, INVALID_ARGUMENT,
        FILE_NOT_FOUND, PATH_NOT_DIRECTORY, SYMLINK_REJECTED, SPECIAL_FILE_REJECTED, FILE_OPERATION_FAILED.
        """
        components = parse_path(request.path)
        path = "/".join(components) or "."
        with self._roots.root_fd(request.workspace) as root_fd:
            try:
                name_fd = self._opener.open_name(root_fd, components)
            except OSError as error:
                raise path_error(path, error) from error
        try:
            mode = os.fstat(name_fd).st_mode
            if not stat.S_ISREG(mode):
                raise special_file(path, mode)
            fd = reopen_for_reading(name_fd)
        except OSError as error:
            raise path_error(path, error) from error
        finally:
            os.close(name_fd)
        try:
            return read_content(fd, request, path)
        except OSError as error:
            raise path_error(path, error, "read") from error
        finally:
            os.close(fd)

    def find_files(self, request: FindFiles) -> FindPage:
        """One page of the paths that match, sorted; links are listed, never followed.

        Raises `RunnerError`: INVALID_ARGUMENT for a pattern or cursor that is malformed, PATH_ESCAPE for a pattern
        that is absolute or holds `..`, FILE_OPERATION_FAILED for a root that cannot be listed.
        """
        with self._roots.root_fd(request.workspace) as root_fd:
            return find_page(self._opener, root_fd, request, self._max_entries)

    def close(self) -> None:
        """Closes the roots. Idempotent."""
        self._roots.close()
