"""Runs the benchmarks of this package: `python -m benchmarks [--quick] [NAME ...]`. Exits 0 unless one cannot run.

A whole run draws its pictures and writes its figures into `docs/benchmarks/`; a quick one draws none.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import benchmarks
from benchmarks.measure import Kept, Options, keep, machine, read_kept, render
from benchmarks.page import publish

PROGRAMS = ("codex", "srt")


def programs() -> dict[str, ModuleType]:
    """Module name to module, for every module that defines `measure`."""
    found = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name not in ("__main__", "measure", "pictures"):
            loaded = importlib.import_module(f"benchmarks.{module.name}")
            if hasattr(loaded, "measure") and hasattr(loaded, "TITLE"):
                found[module.name] = loaded
    return found


def main() -> int:
    available = programs()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Each figure beside its reference.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(available)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, and no pictures")
    parser.add_argument("--draw", nargs="+", metavar="FILE", help="measure nothing: draw these files of results/")
    for name in PROGRAMS:
        parser.add_argument(f"--{name}", metavar="FILE", help="that program, for `others`")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(available)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    if arguments.draw:
        draw([read_kept(Path(file)) for file in arguments.draw])
        return 0
    print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    given = {name: getattr(arguments, name) for name in PROGRAMS if getattr(arguments, name)}
    options = Options(quick=arguments.quick, programs=given)
    kept = []
    for name in arguments.names or available:
        title = available[name].TITLE
        print(f"\n{name}: {title}")
        tables = asyncio.run(available[name].measure(options))
        for table in tables:
            print(f"\n{render(table)}")
        path = keep(name, title, tables, options)
        kept.append(read_kept(path))
        print(f"  samples: {path}")
        sys.stdout.flush()
    if not options.quick:
        draw(kept)
    return 0


def draw(kept: list[Kept]) -> None:
    from benchmarks.pictures import draw as picture  # matplotlib takes a second to load, and is needed here alone

    for path in publish(kept, picture):
        print(f"written: {path}")


if __name__ == "__main__":
    sys.exit(main())
