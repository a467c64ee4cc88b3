"""Each import contract is seen to bite, and each package runs without the ones it must not know."""

from __future__ import annotations

import configparser
import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("gateway", "runner", "sandbox_helper", "adapters")

# Contract, file that breaks it, line that breaks it.
PLANTED = [
    ("gateway-adapters", "gateway/planted.py", "import adapters.filesystem"),
    ("gateway-adapters", "gateway/use_cases/planted.py", "import sandbox_helper"),
    ("runner-adapters", "runner/planted.py", "import adapters.v4a"),
    ("runner-helper", "runner/planted.py", "import sandbox_helper.protocol"),
    ("runner-gateway", "runner/planted.py", "import gateway"),
    ("adapters-gateway", "adapters/filesystem/planted.py", "import gateway"),
    ("helper-alone", "sandbox_helper/planted.py", "import runner.api"),
    ("helper-alone", "sandbox_helper/planted.py", "import adapters"),
    ("runner-private", "gateway/planted.py", "import runner.ports"),
    ("runner-private", "gateway/planted.py", "import runner.processes"),
    ("runner-private", "adapters/v4a/planted.py", "import runner.wire"),
    ("helper-private", "adapters/linux_sandbox/planted.py", "import sandbox_helper.seccomp"),
    ("helper-private", "adapters/filesystem/planted.py", "import sandbox_helper.protocol"),
    ("model-sdks", "adapters/v4a/planted.py", "import openai"),
]


def contracts() -> set[str]:
    """Names of the contracts in .importlinter."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    return {section.rsplit(":", 1)[1] for section in parser.sections() if section.startswith("importlinter:contract:")}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages and the contracts, in a folder of their own."""
    root = tmp_path_factory.mktemp("packages")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", root)
    return root


def lint(root: Path, contract: str) -> subprocess.CompletedProcess[str]:
    """lint-imports for one contract. PYTHONPATH puts the copy before the installed project."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo", "--contract", contract]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "COLUMNS": "200"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.covers("BND-1")
def test_every_contract_has_a_planted_violation() -> None:
    assert {contract for contract, _, _ in PLANTED} == contracts()


@pytest.mark.covers("BND-1", "BOX-2")
@pytest.mark.parametrize(("contract", "path", "line"), PLANTED)
def test_a_contract_is_kept_here_and_broken_by_the_planted_import(
    copied: Path, contract: str, path: str, line: str
) -> None:
    # A module to import, in case the real one is not there.
    target = copied / (line.removeprefix("import ").replace(".", "/") + ".py")
    stand_in = "openai" not in line and not target.exists() and not target.with_suffix("").is_dir()
    planted = copied / path
    if stand_in:
        target.write_text("")
    try:
        planted.write_text("")
        kept = lint(copied, contract)
        planted.write_text(line + "\n")
        broken = lint(copied, contract)
    finally:
        planted.unlink()
        if stand_in:
            target.unlink()
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "1 broken" in broken.stdout
    assert path.removesuffix(".py").replace("/", ".") in broken.stdout


IMPORT_ALL = """
import importlib, pkgutil, sys
package, *blocked = sys.argv[1:]

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if any(name == prefix or name.startswith(prefix + ".") for prefix in blocked):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
count = 0
for module in pkgutil.walk_packages([package], package + "."):
    if module.name.rsplit(".", 1)[1] != "__main__":
        importlib.import_module(module.name)
        count += 1
print(count)
"""

# Package, what it must be importable without.
BLOCKED = [
    ("gateway", ["adapters", "sandbox_helper", "runner.ports", "runner.service", "runner.worker", "runner.processes"]),
    ("runner", ["gateway", "adapters", "sandbox_helper"]),
    ("sandbox_helper", ["gateway", "runner", "adapters", "pydantic", "pyroute2", "asyncio", "dataclasses"]),
    (
        "adapters",
        ["gateway", "runner.service", "runner.worker", "runner.processes", "runner.wire", "sandbox_helper.server"],
    ),
]


@pytest.mark.covers("BND-1", "BOX-2")
@pytest.mark.parametrize(("package", "blocked"), BLOCKED)
def test_a_package_imports_with_its_forbidden_neighbours_blocked(package: str, blocked: list[str]) -> None:
    command = [sys.executable, "-c", IMPORT_ALL, package, *blocked]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 0


@pytest.mark.covers("BND-1")
def test_the_blocking_bites() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, "gateway", "runner.api"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode != 0
    assert "runner.api is blocked" in result.stderr


def locked(name: str) -> dict[str, Version]:
    """Package to version, as one of the lock files pins it."""
    found: dict[str, Version] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line[:1].isalnum():
            requirement = Requirement(line.rstrip("\\").strip())
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            found[requirement.name.lower().replace("_", "-")] = Version(pin.version)
    return found


@pytest.mark.parametrize(("lock", "extras"), [("runtime.txt", ["ripgrep"]), ("dev.txt", ["ripgrep", "dev"])])
def test_the_lock_pins_every_declared_dependency_within_its_range(lock: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(line for extra in extras for line in project["optional-dependencies"][extra]),
    ]
    pins = locked(lock)
    for line in declared:
        requirement = Requirement(line)
        pin = pins.get(requirement.name.lower().replace("_", "-"))
        assert pin is not None, f"{line} is not in requirements/{lock}: run make lock"
        assert requirement.specifier.contains(pin), f"{line}: {pin} is locked: run make lock"


def test_this_environment_is_the_locked_one() -> None:
    for name, pin in locked("runtime.txt").items():
        assert Version(importlib.metadata.version(name)) == pin, f"{name}: run make setup"
