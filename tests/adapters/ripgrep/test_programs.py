"""The program underneath: what it is given, how it ends, and what happens when it does not behave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.ripgrep.search import RipgrepSearch
from runner.api import ErrorCode, GrepFiles, RunnerError, WorkspaceRef
from tests.adapters.filesystem.swapper import SECRET, make_bait, swapping
from tests.adapters.ripgrep.conftest import MakeSearch, Searched
from tests.adapters.ripgrep.test_search import FILLER
from tests.leaks import holdings, left_over


@pytest.mark.covers("FS-1", "FS-6")
async def test_no_byte_from_outside_is_found_while_directories_and_links_are_exchanged(searched: Searched) -> None:
    make_bait(searched.root, searched.outside)
    found: set[str] = set()
    with swapping(searched.root):
        for _ in range(60):
            page = await searched.grep("needle", context=1)
            found.update(match.path for match in page.matches)
            assert SECRET not in page.model_dump_json()
    assert {"real/file.txt", "deep/real/sub/file.txt", "plain.txt"} & found


@pytest.mark.covers("FS-1", "FS-6")
async def test_the_program_is_given_no_path_into_the_workspace(
    searched: Searched, make_search: MakeSearch, program_script: Callable[[str], str], tmp_path: Path
) -> None:
    searched.put("small", "needle\n")
    searched.put("large", "needle\n" + FILLER)
    log = tmp_path / "arguments"
    searched.search = make_search(program=program_script(f'printf "%s\\n" "$@" >>{log}; pwd >>{log}; env >>{log}'))
    await searched.grep("needle")
    words = log.read_text().split("\n")
    assert "--no-config" in words
    assert not [word for word in words if str(searched.root) in word]
    assert [word for word in words if word.startswith("/proc/self/fd/")]
    assert not [word for word in words if word.startswith("RIPGREP")]


@pytest.mark.covers("FS-6")
async def test_a_configuration_file_of_the_operator_has_no_say(
    searched: Searched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rc").write_text("--ignore-case\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(tmp_path / "rc"))
    searched.put("a", "needle\n")
    searched.put(".ignore", "a\n")
    assert await searched.hits("NEEDLE") == []
    assert await searched.hits("needle") == [("a", 1)]


@pytest.mark.covers("FS-6")
async def test_without_the_program_grep_is_unavailable_and_says_so(
    searched: Searched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("adapters.ripgrep.program.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    search = RipgrepSearch()
    assert not search.available
    with pytest.raises(RunnerError) as caught:
        await search.grep_files(GrepFiles(workspace=searched.workspace, pattern="a"))
    assert caught.value.code is ErrorCode.RUNNER_UNAVAILABLE
    await search.close()


def waiting_program(program_script: Callable[[str], str], fifo: Path) -> str:
    """Waits for ever on a text that holds `hang`, after it has written its process id to a FIFO."""
    os.mkfifo(fifo)
    return program_script(f"case $text in *hang*) echo $$ >{fifo}; exec sleep 1000;; esac")


async def its_pid(fifo: Path) -> int:
    return int(await asyncio.wait_for(asyncio.to_thread(fifo.read_text), 10))


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.covers("FS-6")
async def test_cancelling_a_search_ends_its_program_and_leaves_no_zombie(
    searched: Searched, make_search: MakeSearch, program_script: Callable[[str], str], tmp_path: Path
) -> None:
    searched.put("a", "hang\n")
    searched.search = make_search(program=waiting_program(program_script, tmp_path / "fifo"))
    search = asyncio.create_task(searched.grep("hang"))
    pid = await its_pid(tmp_path / "fifo")
    assert is_alive(pid)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert not is_alive(pid)


@pytest.mark.covers("FS-6")
async def test_closing_ends_a_search_that_runs_and_its_program(
    searched: Searched, make_search: MakeSearch, program_script: Callable[[str], str], tmp_path: Path
) -> None:
    searched.put("a", "hang\n")
    searched.search = make_search(program=waiting_program(program_script, tmp_path / "fifo"))
    search = asyncio.create_task(searched.grep("hang"))
    pid = await its_pid(tmp_path / "fifo")
    await searched.search.close()
    with pytest.raises(RunnerError):
        await search
    assert not is_alive(pid)


@pytest.mark.covers("FS-6")
async def test_a_page_that_runs_out_of_time_gives_what_is_done_and_a_cursor(
    searched: Searched, make_search: MakeSearch, program_script: Callable[[str], str]
) -> None:
    searched.put("a", "needle\n")
    searched.put("b", "needle hang\n")
    script = program_script("case $text in *hang*) exec sleep 1000;; esac")
    searched.search = make_search(program=script, max_batch_files=1, deadline_s=2)
    page = await searched.grep("needle")
    assert [match.path for match in page.matches] == ["a"]
    assert page.truncated
    with pytest.raises(RunnerError, match="'b'") as caught:
        await searched.grep("needle", cursor=page.next_cursor)
    assert caught.value.code is ErrorCode.FILE_OPERATION_FAILED


@pytest.mark.covers("FS-6")
async def test_a_file_that_ends_the_program_is_named_and_the_others_are_searched(
    searched: Searched, make_search: MakeSearch, program_script: Callable[[str], str]
) -> None:
    searched.put("a", "needle\n")
    searched.put("b", "needle poison\n")
    searched.put("c", "poison\n" + FILLER)
    searched.put("d", "needle\n")
    searched.search = make_search(program=program_script("case $text in *poison*) kill -9 $$;; esac"))
    page = await searched.grep("needle")
    assert [match.path for match in page.matches] == ["a", "d"]
    assert page.unreadable == ("b", "c")
    assert not page.truncated


@pytest.mark.covers("FS-6")
async def test_many_searches_at_once_all_get_their_own_answer(searched: Searched) -> None:
    for number in range(20):
        searched.put(f"f{number:02d}", f"needle{number:02d}\n")
    answers = await asyncio.gather(*(searched.hits(f"needle{number:02d}") for number in range(20)))
    assert answers == [[(f"f{number:02d}", 1)] for number in range(20)]


@pytest.mark.covers("FS-6")
async def test_a_search_leaves_no_descriptor_and_no_child(searched: Searched) -> None:
    searched.put("large", "needle\n" + FILLER)
    searched.put("small", "needle\n" * 100)
    await searched.grep("needle")
    before = holdings()
    for limit in (1, 5, 1000):
        await searched.grep("needle", limit=limit)
    with contextlib.suppress(RunnerError):
        await searched.grep("a(")
    assert left_over(before, holdings()) == []


@pytest.mark.covers("FS-6")
@pytest.mark.parametrize("pool", ["rg_0", "rg_1", "grep"])
async def test_a_search_that_gets_no_thread_leaves_no_descriptor_and_nothing_to_do(
    searched: Searched, make_search: MakeSearch, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """The kernel's refusal of just this thread cannot be had: it would refuse the program before."""
    for number in range(20):
        searched.put(str(number), "needle\n" + FILLER)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(pool):
            raise RuntimeError("can't start new thread")
        start(thread)

    searched.search = make_search(max_batch_files=5)
    before = holdings()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await searched.grep("needle")
    root = str(searched.root)
    assert [line for line in left_over(before, holdings()) if root in line and not line.endswith(root)] == []
    assert len(await searched.hits("needle")) == 20


async def test_a_root_that_is_missing_is_an_error(searched: Searched) -> None:
    request = GrepFiles(workspace=WorkspaceRef(workspace_id="w", root=str(searched.root / "nope")), pattern="a")
    with pytest.raises(RunnerError) as caught:
        await searched.search.grep_files(request)
    assert caught.value.code is ErrorCode.FILE_OPERATION_FAILED
