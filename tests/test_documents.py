"""The documents against the code: names, tables and numbers that must not drift apart."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gateway.errors import Code
from gateway.http.door import MAX_BODY_BYTES
from gateway.http.inbox_api import ENDPOINTS
from gateway.mcp.catalogue import ALL_TOOLS
from gateway.registry_file import LimitsEntry, WorkspaceEntry
from gateway.settings import Settings
from gateway.steering import CLAIMABLE
from runner import api
from runner.processes.table import FINISHED_TTL_S, MAX_FINISHED

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def first_cells(text: str, header: str) -> list[str]:
    """Contents of backticks in the first column of the table whose header line starts with `header`."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(header))
    found: list[str] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found += re.findall(r"`([^`]+)`", line.split(" |")[0])
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_and_target_that_a_document_names_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    folders = "adapters|benchmarks|deploy|docs|gateway|image|requirements|runner|sandbox_helper|tests|tools"
    paths = re.findall(rf"`((?:{folders})/[A-Za-z0-9_./-]*|[A-Z][A-Z]+\.md|Makefile|pyproject\.toml)`", text)
    no_files = {"tools/list", "tools/call"} | {"benchmarks/results/"}  # the protocol's methods; made by a run
    assert [path for path in paths if path not in no_files and not (ROOT / path).exists()] == []
    modules = re.findall(rf"`((?:{folders})(?:\.[a-z_0-9]+)+)`", text)
    missing = [name for name in modules if not module_exists(name)]
    assert missing == []
    targets = set(re.findall(r"^([a-z]+):", text_of("Makefile"), flags=re.MULTILINE))
    named = re.findall(r"(?:`|    )make ([a-z]+)", text)
    assert [target for target in named if target not in targets] == []


def module_exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or something that a module defines."""
    path = ROOT.joinpath(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    owner, _, name = dotted.rpartition(".")
    source = ROOT.joinpath(*owner.split(".")).with_suffix(".py")
    return source.is_file() and re.search(rf"\b{name}\b", source.read_text(encoding="utf-8")) is not None


@pytest.mark.covers("TOOL-1")
def test_the_page_for_agents_lists_every_tool_in_order() -> None:
    assert first_cells(text_of("docs/agents.md"), "| tool | does |") == [tool.name for tool in ALL_TOOLS]


@pytest.mark.covers("TOOL-2")
def test_the_page_for_agents_explains_every_code_that_its_tools_answer() -> None:
    listed = first_cells(text_of("docs/agents.md"), "| code | what to do |")
    not_answered = {"INTENT_ALREADY_CLAIMED", "INTENT_REVISION_CONFLICT"}  # the inbox answers them, no tool
    assert len(listed) == len(set(listed))
    assert set(listed) == {code.value for code in Code} - not_answered - {"CHECK_ONLY_CONFLICT"}


@pytest.mark.covers("WORK-2")
def test_the_page_of_the_inbox_lists_every_endpoint_in_order() -> None:
    served = [f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS]
    assert first_cells(text_of("docs/inbox.md"), "| endpoint | does |") == served
    assert first_cells(text_of("docs/inbox.md"), "| `delivery` | the agent can claim it |") == list(CLAIMABLE)


def test_the_page_for_operators_lists_every_registry_key_limit_and_setting() -> None:
    text = text_of("docs/operators.md")
    assert sorted(first_cells(text, "| key | default |")) == sorted(WorkspaceEntry.model_fields)
    lines = [f"| `{name}` | {value} |" for name, value in LimitsEntry().model_dump().items()]
    assert [line for line in lines if line not in text] == []
    variables = set(re.findall(r"`(CODESPACE_[A-Z_]+)`", text.partition("## Settings")[2].partition("\n## ")[0]))
    assert variables == {f"CODESPACE_{name.upper()}" for name in Settings.model_fields}


def test_the_numbers_of_the_documents_are_those_of_the_code() -> None:
    readme, agents = text_of("README.md"), text_of("docs/agents.md")
    limits = LimitsEntry()
    commands = (
        f"{Settings.model_fields['max_processes'].default} running at once, {limits.timeout_s} s each, "
        f"{limits.processes} processes, {limits.memory_mb // 1024} GiB, {limits.open_files:,} open files, "
        f"{limits.file_size_mb // 1024} GiB a file"
    ).replace(",0", " 0")
    assert commands in readme
    assert f"| output kept | {limits.output_retained_kb} KiB a command" in readme
    assert f"| finished commands remembered | {MAX_FINISHED}, for {FINISHED_TTL_S / 60:.0f} minutes" in readme
    assert f"{FINISHED_TTL_S / 60:.0f} minutes after its end, or when {MAX_FINISHED} later ones" in agents
    mebibyte = 1024 * 1024
    expected = {
        "request body": f"{MAX_BODY_BYTES // mebibyte} MiB",
        "argv, all arguments together": f"{api.MAX_ARGV_BYTES // 1024} KiB",
        "patch text": f"{api.MAX_PATCH_BYTES // mebibyte} MiB",
        "`write_stdin` data": f"{api.MAX_STDIN_BYTES // mebibyte} MiB",
        "content of one `read`": f"{api.READ_LIMIT_BYTES // mebibyte} MiB, then `truncated`",
        "`version`": f"files up to {api.VERSION_LIMIT_BYTES // mebibyte // 1024} GiB",
        "`wait_ms`": f"{api.MAX_WAIT_MS:,}".replace(",", " "),
    }
    assert [name for name, value in expected.items() if f"| {name} | {value} |" not in agents] == []


def test_the_page_of_dependencies_has_a_line_for_each_declared_package() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    declared = [*project["dependencies"], *sum(project["optional-dependencies"].values(), start=[])]  # noqa: RUF017
    names = {re.split(r"[<>=\[ ]", line)[0] for line in declared}
    rows = [line.split("|")[1] for line in text_of("docs/dependencies.md").splitlines() if line.startswith("| ")]
    listed = {name.strip().removesuffix(" (extra)") for row in rows for name in row.split(",")}
    assert names - listed == set()
    assert listed - names == {"package", "---"}
