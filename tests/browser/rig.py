"""Chromium, an appliance for it to look at, and an agent that works there meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from gateway.cli.unix_http import UnixConnection
from tests.gateway.transport.serving import modern_call
from tests.program import Program, Refused, running_program

CHROMIUM = "/usr/bin/chromium"
WAIT_S = 30
ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = Path(os.environ.get("CODESPACE_SCREENSHOTS") or ROOT / "build" / "screenshots")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
T = TypeVar("T")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """With a folder of its own for whatever it and its driver leave."""
    folder = tempfile.mkdtemp(prefix="cs")
    kept = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = folder
    try:
        with sync_playwright() as playwright:
            expect.set_options(timeout=WAIT_S * 1000)
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM,
                args=list(FLAGS),
                timeout=2 * WAIT_S * 1000,
                env={**os.environ, "HOME": folder},
            )
            try:
                yield browser
            finally:
                browser.close()
    finally:
        if kept is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = kept
        shutil.rmtree(folder, ignore_errors=True)


def call(program: Program, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Structured content of one tool call over the Unix socket. Raises Refused for a tool error."""
    body, headers = modern_call(tool, arguments)
    connection = UnixConnection(program.folder / "mcp.sock", 2 * WAIT_S)
    try:
        connection.request("POST", "/mcp", body, headers)
        result = json.loads(connection.getresponse().read())["result"]
    finally:
        connection.close()
    content: dict[str, Any] = result["structuredContent"]
    if result.get("isError"):
        raise Refused(content["error"])
    return content


class Appliance:
    """The real program on TCP with a token. Its calls are made on a thread, since a browser's loop is this one's."""

    def __init__(self, program: Program, token: Path) -> None:
        self.program = program
        self.token_file = token
        (ready,) = [line for line in program.log if line["event"] == "ready"]
        (self.address,) = ready["http"]
        # The same one after a restart.
        program.command[program.command.index("--http") + 1] = self.address
        self._pool = ThreadPoolExecutor(1)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def on_thread(self, work: Callable[..., T], *args: Any, **more: Any) -> T:
        return self._pool.submit(work, *args, **more).result(2 * WAIT_S)

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return self.on_thread(call, self.program, tool, arguments)

    def hold(self, tool: str, **arguments: Any) -> str:
        """An explicit hold; its id."""
        wanted = {"workspace_id": "demo", **arguments}
        return str(self.call("approval_create", tool=tool, arguments=wanted)["approval_id"])

    def start(self, *command: str, tty: bool = False) -> str:
        return str(self.call("exec_command", workspace_id="demo", command=list(command), tty=tty)["process_id"])

    def work(self, title: str = "A work") -> str:
        return str(self.call("work_open", workspace_id="demo", title=title)["work_id"])

    def write_token(self, token: str) -> None:
        self.token_file.write_text(f"{token}\n")
        self.token_file.chmod(0o600)

    def close(self) -> None:
        self._pool.shutdown()


@contextlib.contextmanager
def appliance(**workspace: Any) -> Iterator[Appliance]:
    """Keyword arguments are the registry entry's of the workspace `demo`."""
    folder = Path(tempfile.mkdtemp(prefix="cs"))
    token = folder / "token"
    token.write_text("a-token-of-the-tests\n")
    token.chmod(0o600)
    entry = {"limits": {"timeout_s": 600}, **workspace}
    try:
        with running_program("--http", "127.0.0.1:0", "--token-file", str(token), **entry) as program:
            made = Appliance(program, token)
            try:
                yield made
            finally:
                made.close()
    finally:
        shutil.rmtree(folder)


@dataclass
class Tab:
    """One page of a browser that has nothing of any other. `troubles`: errors of scripts, and what the page's own
    policy refused."""

    page: Page
    appliance: Appliance
    troubles: list[str] = field(default_factory=list)
    lost_is_expected: bool = False

    def note(self, message: ConsoleMessage) -> None:
        # Refused forms and streams answer with an error status, which Chromium logs for every request.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.troubles.append(message.text)

    def open(self, path: str = "/") -> Page:
        """Goes there, logging in where that is asked for, and waits until the page is live."""
        self.page.goto(self.appliance.url + path)
        if "/console/login" in self.page.url:
            self.page.get_by_label("Token").fill(self.appliance.token)
            self.page.get_by_role("button", name="Log in").click()
        self.is_live()
        return self.page

    def is_live(self) -> None:
        expect(self.page.locator("#connection")).to_have_text("live")

    def another(self, path: str) -> Tab:
        """A second tab of the same browser."""
        second = watch(self.page.context.new_page(), self.appliance)
        second.open(path)
        return second


def watch(page: Page, made: Appliance) -> Tab:
    tab = Tab(page, made)
    page.on("console", tab.note)
    page.on("pageerror", lambda error: tab.troubles.append(str(error)))
    page.on("request", lambda request: _ours(tab, request))
    return tab


def _ours(tab: Tab, request: Request) -> None:
    if not request.url.startswith((tab.appliance.url, "data:", "about:")):
        tab.troubles.append(f"asked another place: {request.url}")


def screenshot(page: Page, name: str) -> None:
    """Kept for people: the whole page."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


class Agent(threading.Thread):
    """A scripted agent loop, over MCP, on a thread of its own. `script` is given it and calls tools until it is done;
    what it raises is raised by `done`."""

    def __init__(self, program: Program, script: Callable[[Agent], Any]) -> None:
        super().__init__(daemon=True)
        self.program = program
        self.script = script
        self.stopping = threading.Event()
        self.result: Any = None
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.script(self)
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self.failure = error

    def call(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return call(self.program, tool, arguments)

    def run_command(self, *command: str) -> dict[str, Any]:
        """To its end; its status."""
        process_id = self.call("exec_command", workspace_id="demo", command=list(command))["process_id"]
        return self.ended(process_id)

    def ended(self, process_id: str) -> dict[str, Any]:
        """Status of a command once it is over."""

        def attempt() -> dict[str, Any] | None:
            status = self.call("process_status", process_id=process_id, wait_ms=2_000)
            return status if status["state"] == "exited" else None

        return self.until(attempt)

    def until(self, attempt: Callable[[], T | None]) -> T:
        """Asks again and again, as agents do."""
        while (found := attempt()) is None:
            if self.stopping.wait(0.1):
                raise AssertionError("the test ended before the agent had what it waited for")
        return found

    def resumed(self, approval_id: str) -> dict[str, Any]:
        """The result of a hold, once it is granted."""

        def attempt() -> dict[str, Any] | None:
            try:
                return self.call("operation_resume", approval_id=approval_id)
            except Refused as refused:
                if refused.code != "APPROVAL_CONFLICT":
                    raise
                return None

        return self.until(attempt)

    def done(self) -> Any:
        self.join(2 * WAIT_S)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive(), "the agent did not come to its end"
        return self.result

    def stop(self) -> None:
        self.stopping.set()
        self.join(WAIT_S)
