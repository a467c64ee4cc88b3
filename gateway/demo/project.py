"""What the demo works on: a copy of this repository where there is a checkout, else a small project made for it.

Refuses to know: the appliance. Called by the stage.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "build", "dist", ".hypothesis"
)
SUITES = (
    "tests/adapters/v4a",
    *(f"tests/gateway/transport/test_{name}.py" for name in ("tools", "tcp", "unix_socket", "stdio", "logging")),
)
"""Fast, and at home in a sandbox: pure logic, and servers on Unix sockets and loopback."""
_SYSTEM = ("/usr", "/bin", "/lib")


@dataclass(frozen=True)
class Project:
    """`mounts`: what its tests need beside the system, for `mounts_read_only`. `python`: an interpreter that exists in
    the sandbox. `tests`: the command that runs them. `readme`: a file to read. `sources`: a glob to find."""

    what: str
    mounts: tuple[str, ...]
    python: str
    tests: tuple[str, ...]
    readme: str
    sources: str


def make_project(root: Path, *, small: bool) -> Project:
    """Fills `root`, which does not exist yet. Blocks on the disk."""
    if not small and (_CHECKOUT / "pyproject.toml").is_file() and importlib.util.find_spec("pytest") is not None:
        return _copy_of_this_repository(root)
    return _small_project(root)


def _copy_of_this_repository(root: Path) -> Project:
    shutil.copytree(_CHECKOUT, root, ignore=_LEFT_OUT, symlinks=True)
    environment = Path(sys.prefix).resolve()
    interpreter = Path(sys.base_prefix).resolve()
    outside = [environment] + ([] if str(interpreter).startswith(_SYSTEM) else [interpreter])
    python = str(environment / "bin" / "python3")
    return Project(
        what="a copy of this repository",
        mounts=tuple(str(path) for path in outside if not str(path).startswith(_SYSTEM)),
        python=python,
        tests=(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SUITES),
        readme="README.md",
        sources="gateway/**/*.py",
    )


def _small_project(root: Path) -> Project:
    (root / "shop").mkdir(parents=True)
    (root / "shop" / "__init__.py").touch()
    (root / "README.md").write_text("# shop\n\nAdds up prices, in cents.\n")
    (root / "shop" / "till.py").write_text(
        "def total(prices: list[int], discount: int = 0) -> int:\n    return sum(prices) * (100 - discount) // 100\n"
    )
    (root / "test_till.py").write_text(
        "import unittest\n\nfrom shop.till import total\n\n\nclass Till(unittest.TestCase):\n"
        "    def test_nothing_costs_nothing(self) -> None:\n        self.assertEqual(total([]), 0)\n\n"
        "    def test_a_discount_is_taken_off(self) -> None:\n        self.assertEqual(total([100, 300], 10), 360)\n"
    )
    return Project(
        what="a small project made for this",
        mounts=(),
        python="/usr/bin/python3",
        tests=("/usr/bin/python3", "-B", "-m", "unittest", "-v"),
        readme="README.md",
        sources="**/*.py",
    )
