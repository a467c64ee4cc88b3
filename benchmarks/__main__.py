"""Runs the benchmarks of this package: `python -m benchmarks [--quick] [NAME ...]`. Exits 0 unless one cannot run."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import pkgutil
import sys
from types import ModuleType

import benchmarks
from benchmarks.measure import Options, keep, machine, render


def programs() -> dict[str, ModuleType]:
    """Module name to module, for every module that defines `measure`."""
    found = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name not in ("__main__", "measure"):
            loaded = importlib.import_module(f"benchmarks.{module.name}")
            if hasattr(loaded, "measure") and hasattr(loaded, "TITLE"):
                found[module.name] = loaded
    return found


def main() -> int:
    available = programs()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Each figure beside its reference.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(available)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(available)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    options = Options(quick=arguments.quick)
    for name in arguments.names or available:
        print(f"\n{name}: {available[name].TITLE}")
        tables = asyncio.run(available[name].measure(options))
        for table in tables:
            print(f"\n{render(table)}")
        print(f"  samples: {keep(name, tables, options)}")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
