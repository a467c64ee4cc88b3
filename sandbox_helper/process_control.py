"""What the helper asks of prctl(2), through python-prctl: the one module of the project that imports it.

python-prctl knows no ambient set; emptying the permitted and inheritable sets empties that too (capabilities(7)), and
the `NO_CAP_AMBIENT_RAISE` bit keeps it so. Refuses to know when a step is due. Called by the helper's set-up only.
"""

from __future__ import annotations

import signal

import prctl

from sandbox_helper import syscalls as sc

# Every bit of linux/securebits.h with its lock, KEEP_CAPS itself apart: root is no longer special, and ids that change
# bring nothing back.
_SECUREBITS = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80


def die_with_parent() -> None:
    """SIGKILL when the parent *thread* ends. Any change of ids or capabilities clears it. Raises OSError."""
    prctl.set_pdeathsig(signal.SIGKILL)


def become_undumpable() -> None:
    """/proc/PID and the memory belong to root from now on, and nobody traces the process. Raises OSError."""
    prctl.set_dumpable(0)


def become_dumpable() -> None:
    """Raises OSError."""
    prctl.set_dumpable(1)


def become_subreaper() -> None:
    """Orphans below this process become its children. Raises OSError."""
    prctl.set_child_subreaper(1)


def set_no_new_privs() -> None:
    """Raises OSError."""
    prctl.set_no_new_privs(1)


def no_new_privs() -> bool:
    return bool(prctl.get_no_new_privs())


def drop_bounding_set(last_capability: int) -> None:
    """Capabilities 0 to `last_capability` can never be had again. Needs CAP_SETPCAP. Raises OSError."""
    drop = prctl.capbset_drop
    for capability in range(last_capability + 1):
        drop(capability)


def lock_securebits() -> None:
    """Needs CAP_SETPCAP. Raises OSError."""
    # python-prctl refuses the two bits of the ambient set.
    sc.set_securebits(_SECUREBITS)


def last_capability() -> int:
    """The highest capability that this kernel knows. Raises OSError where there is none."""
    number = 0
    while _knows(number):
        number += 1
    if number == 0:
        raise OSError(22, "prctl: no capability is known to this kernel")
    return number - 1


def _knows(number: int) -> bool:
    try:
        prctl.capbset_read(number)
    except (OSError, ValueError):
        return False
    return True
