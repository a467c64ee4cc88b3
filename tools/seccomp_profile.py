#!/usr/bin/env python3
"""Makes `image/seccomp.json` from the container engine's default profile and the declared departures from it.

    tools/seccomp_profile.py                    writes it
    tools/seccomp_profile.py --check            exit 1 if the file is not what would be written
    tools/seccomp_profile.py --without mount    prints it without one addition, for the test that proves the need

Runs alone, with the standard library. Refuses to know what the calls do: `image/seccomp/departures.json` has the
reasons. `make lint` calls it with --check.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

IMAGE = Path(__file__).resolve().parents[1] / "image"


def profile(default: dict[str, Any], replaced: set[str], added: list[str]) -> dict[str, Any]:
    """`default` without the refusing rules for `replaced`, then one rule that permits `added`.

    Pure. Raises ValueError where a departure has no effect: a rule to replace that the default lacks, or an addition
    that the default permits anyway to a process without capabilities.
    """
    rules = default["syscalls"]
    kept = [rule for rule in rules if not _refuses(rule, replaced)]
    gone = {name for rule in rules if _refuses(rule, replaced) for name in rule["names"]}
    if gone != replaced:
        raise ValueError(f"the default has no refusing rule for {sorted(replaced - gone)}")
    free = {name for rule in kept if _unconditional(rule) for name in rule["names"]}
    if idle := sorted(free & set(added)):
        raise ValueError(f"the default permits {idle} anyway")
    extra = [{"names": added, "action": "SCMP_ACT_ALLOW"}] if added else []
    return {**default, "syscalls": [*kept, *extra]}


def _refuses(rule: dict[str, Any], names: set[str]) -> bool:
    """Whether the rule is one of refusal and about these calls alone."""
    return rule["action"] != "SCMP_ACT_ALLOW" and set(rule["names"]) <= names


def _unconditional(rule: dict[str, Any]) -> bool:
    return rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args") and not rule.get("includes")


def rendered(without: str | None = None) -> str:
    """The profile as text, ending in a newline. `without`: one addition to leave out. Raises ValueError, OSError."""
    default = json.loads((IMAGE / "seccomp" / "engine-default.json").read_text())
    departures = json.loads((IMAGE / "seccomp" / "departures.json").read_text())
    replaced, added = dict(departures["replaced"]), dict(departures["added"])
    if without is not None:
        if without not in added:
            raise ValueError(f"{without} is no addition: choose from {', '.join(added)}")
        del added[without]
        replaced.pop(without, None)
    return json.dumps(profile(default, set(replaced), list(added)), indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes image/seccomp.json.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--without", metavar="CALL", help="print the profile without one addition")
    options = parser.parse_args()
    target = IMAGE / "seccomp.json"
    try:
        text = rendered(options.without)
        if options.without is not None:
            sys.stdout.write(text)
        elif not options.check:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            print(f"error: out of date: {target}: run tools/seccomp_profile.py", file=sys.stderr)
            return 1
    except (ValueError, OSError) as error:
        print(f"error: no profile: {error}: correct image/seccomp/departures.json", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
