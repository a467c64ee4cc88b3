"""A person decides in Chromium on what a scripted agent asks for at the same appliance."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.rig import Agent, Appliance, screenshot
from tests.program import Refused

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
WORKSPACE = {"approvals": "confirm"}
Start = Callable[[Callable[[Agent], Any]], Agent]

PATCH = """*** Begin Patch
*** Update File: app.py
@@ def answer():
-    return 41
+    return 42
*** End Patch
"""


def held(agent: Agent, tool: str, **arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        agent.call(tool, workspace_id="demo", **arguments)
    assert refused.value.code == "APPROVAL_REQUIRED"
    assert refused.value.approval_id is not None
    return refused.value.approval_id


@pytest.mark.covers("APPR-1", "APPR-3", "APPR-4")
def test_a_patch_is_asked_for_shown_granted_and_applied_while_the_person_watches(
    served: Appliance, visit: Visit, agent: Start
) -> None:
    file = served.program.workspace / "app.py"
    file.write_text("def answer():\n    return 41\n")
    tab = visit("/")
    page = tab.page

    def script(agent: Agent) -> dict[str, Any]:
        return agent.resumed(held(agent, "apply_patch", patch=PATCH))

    working = agent(script)
    # It appears by itself.
    waiting = page.get_by_role("region", name="Waiting for your decision")
    expect(waiting).to_contain_text("Update app.py")
    expect(page).to_have_title(re.compile(r"^\(1\) Overview"))
    expect(page.locator("#announce")).to_have_text("One call waits for your decision.")
    waiting.get_by_role("link", name="Review").click()
    diff = page.locator("pre.diff")
    expect(diff.locator(".l.add .t")).to_have_text("+    return 42")
    expect(diff.locator(".l.remove .t")).to_have_text("-    return 41")
    expect(diff.locator(".l.file")).to_have_count(3)
    colours = [
        diff.locator(f".l.{kind}").evaluate("line => getComputedStyle(line).backgroundColor")
        for kind in ("add", "remove")
    ]
    assert len(set(colours)) == 2
    tab.is_live()
    screenshot(page, "flow-hold-pending")
    assert file.read_text().endswith("41\n")
    page.get_by_role("button", name="Grant").click()
    expect(page.get_by_text("Granted. The agent can resume the call now.")).to_be_visible()
    result = working.done()["apply_patch"]
    assert result["status"] == "applied"
    assert file.read_text().endswith("42\n")
    # What came of it is shown without a reload.
    expect(page.locator(".headline .state")).to_have_text("consumed")
    expect(page.get_by_role("button", name="Grant")).to_have_count(0)
    screenshot(page, "flow-hold-consumed")
    page.get_by_role("link", name=result["operation_id"]).click()
    expect(page.locator(".files")).to_contain_text("app.py")
    expect(page.locator(".files")).to_contain_text(hashlib.sha256(file.read_bytes()).hexdigest())
    screenshot(page, "flow-patch")


@pytest.mark.covers("APPR-1", "APPR-3", "PROC-4")
def test_a_command_is_granted_and_its_terminal_is_watched_and_stopped(
    served: Appliance, visit: Visit, agent: Start
) -> None:
    text = r"printf '\033[32mready\033[0m %s\n' one; read line; printf 'got %s\n' $line; sleep 600"
    tab = visit("/console/holds")
    page = tab.page

    def script(agent: Agent) -> dict[str, Any]:
        approval_id = held(agent, "exec_command", command=["sh", "-c", text], tty=True)
        process_id = agent.resumed(approval_id)["exec_command"]["process_id"]
        agent.call("write_stdin", process_id=process_id, data="hello\n")

        return agent.ended(process_id)

    working = agent(script)
    page.get_by_role("link", name=re.compile("^Review")).click()
    expect(page.get_by_role("heading", name="Command on a terminal")).to_be_visible()
    expect(page.locator(".words pre")).to_have_text(["sh", "-c", text])
    tab.is_live()
    screenshot(page, "flow-hold-command")
    page.get_by_role("button", name="Grant").click()
    expect(page.locator(".headline .state")).to_have_text("consumed")
    page.get_by_role("link", name="Overview").click()
    running = page.get_by_role("region", name="Running commands")
    running.get_by_role("link", name=re.compile("ready")).click()
    output = page.locator("#output")
    expect(output).to_contain_text("got hello")
    green = output.locator(".f2")
    expect(green).to_have_text("ready")
    expect(green).to_have_css("color", "rgb(107, 208, 130)")
    screenshot(page, "flow-command-live")
    page.get_by_role("button", name=re.compile("^Stop command")).click()
    status = working.done()
    assert status["termination"] == "terminated"
    expect(page.locator(".headline .state")).to_have_text("exited")
    expect(page.locator("#output-note")).to_contain_text("ended")
    expect(page.locator(".facts")).to_contain_text("(terminated)")
    screenshot(page, "flow-command-ended")


@pytest.mark.covers("APPR-3")
def test_a_second_tab_with_an_old_page_is_told_and_changes_nothing(served: Appliance, visit: Visit) -> None:
    approval_id = served.hold("exec_command", command=["true"])
    first = visit(f"/console/holds/{approval_id}")
    second = first.another(f"/console/holds/{approval_id}")
    # The second one hears of nothing any more, as behind a connection that died without a word.
    second.page.evaluate("() => window.dispatchEvent(new Event('pagehide'))")
    first.page.get_by_role("button", name="Deny").click()
    expect(first.page.locator(".headline .state")).to_have_text("denied")
    expect(second.page.locator(".headline .state")).to_have_text("pending")
    second.page.get_by_role("button", name="Grant").click()
    expect(second.page.get_by_role("alert").filter(has_text="Not done.")).to_contain_text("is denied")
    expect(second.page.locator(".headline .state")).to_have_text("denied")
    screenshot(second.page, "conflict-hold")
    with pytest.raises(Refused, match="denied"):
        served.call("operation_resume", approval_id=approval_id)
    assert second.troubles == []
