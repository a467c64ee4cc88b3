"""Compares the engine with the pinned upstream one: `python -m tests.parity [--count N] [--seed S] [--record FILE]`.

With CODEX_BIN (the upstream program; `npm pack` the package that adapters/v4a/UPSTREAM names) it generates N cases and
runs both. Without, it compares the recorded ones. Exits 1 for any difference that is not a product rule.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.parity import upstream
from tests.parity.compare import explain, ours
from tests.parity.generator import make_case
from tests.parity.recorded import RECORDED, load, save


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.parity", description=__doc__)
    arguments.add_argument("--count", type=int, default=5_000, help="cases to generate (default 5000)")
    arguments.add_argument("--seed", type=int, default=0, help="of the first case; the others follow")
    arguments.add_argument("--record", action="store_true", help=f"write the outcomes of the cases to {RECORDED.name}")
    options = arguments.parse_args()
    program = os.environ.get("CODEX_BIN")
    if program:
        if upstream.version_of(program) != upstream.pinned_version():
            print(
                f"error: {program} is {upstream.version_of(program)}: the pin is {upstream.pinned_version()}: give that"
            )
            return 2
        seeds = range(options.seed, options.seed + options.count)
        cases = [make_case(seed) for seed in seeds]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            outcomes = list(zip(seeds, cases, pool.map(lambda case: upstream.run(program, case), cases), strict=True))
        if options.record:
            save(outcomes)
    else:
        print("CODEX_BIN is not set: comparing with the recorded outcomes of upstream", upstream.pinned_version())
        outcomes = load()
    found: Counter[str] = Counter()
    for seed, case, theirs in outcomes:
        mine = ours(case)
        rule = explain(case, mine, theirs)
        found[rule or "DIFFERENT"] += 1
        if rule is None:
            print(f"--- seed {seed}\nfiles {case.files}\n{case.patch}\nours   {mine}\ntheirs {theirs}")
    for name, count in found.most_common():
        print(f"{count:6} {name}")
    return 1 if found["DIFFERENT"] else 0


if __name__ == "__main__":
    sys.exit(main())
