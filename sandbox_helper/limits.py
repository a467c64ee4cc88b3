"""Resource limits by setrlimit(2): soft and hard alike, so that a command can only lower them.

Set after the user namespace was entered, so that the process count is the sandbox's own. Memory is bounded as private
writable memory: an address-space limit would break runtimes that reserve far more than they use. Refuses to know the
registry. Called for the command's process, just before exec.
"""

from __future__ import annotations

import resource

from sandbox_helper.protocol import Limits

_MB = 1024 * 1024


def apply(limits: Limits) -> None:
    """0 keeps what was inherited, with the soft limit raised to the hard one; a lower inherited limit stays.

    Raises OSError.
    """
    for kind, wanted in (
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_DATA, limits.memory_mb * _MB),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_FSIZE, limits.file_size_mb * _MB),
    ):
        hard = resource.getrlimit(kind)[1]
        if wanted and (hard == resource.RLIM_INFINITY or wanted < hard):
            hard = wanted
        _set(kind, hard)
    # The kernel pipes a core to a program outside unless the limit is 1 or 0 (core(5)); 0 for a file.
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
        _set(kind, 0)


def _set(kind: int, value: int) -> None:
    try:
        resource.setrlimit(kind, (value, value))
    except ValueError as error:
        raise OSError(22, f"setrlimit {kind}: {error}") from error


def core_off() -> None:
    """For processes of the helper's own. Raises OSError."""
    _set(resource.RLIMIT_CORE, 0)
