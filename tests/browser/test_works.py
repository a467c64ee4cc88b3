"""A person steers in Chromium what a scripted agent works at."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.rig import Agent, Appliance, screenshot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
NAME_OF_FOCUSED = """() => {
  const e = document.activeElement;
  if (!e.matches("a, button, input, select, textarea, summary")) return "";
  return e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent;
}"""
Start = Callable[[Callable[[Agent], Any]], Agent]


def write(page: Page, text: str, button: str = "Save as a draft") -> None:
    page.get_by_label("What is to be done").fill(text)
    page.get_by_role("button", name=button).click()
    expect(page.locator(".queue")).to_contain_text(text.splitlines()[0])
    expect(page.get_by_label("What is to be done")).to_have_value("")


def order(page: Page, *texts: str) -> None:
    """The queue shows these, in this order."""
    expect(page.locator(".queue > li .body")).to_have_text(list(texts))


@pytest.mark.covers("WORK-1", "WORK-2", "WORK-3")
def test_an_instruction_goes_from_draft_to_done_while_the_agent_works(
    served: Appliance, visit: Visit, agent: Start
) -> None:
    tab = visit("/console/works")
    page = tab.page

    def script(agent: Agent) -> list[str]:
        """Works until the user wants nothing more."""
        work_id = agent.call("work_open", workspace_id="demo", title="Write a greeting")["work_id"]
        done: list[str] = []

        def step() -> list[str] | None:
            item = agent.call("steer_claim_next", work_id=work_id).get("item")
            if item is not None:
                agent.run_command("sh", "-c", 'printf %s "$1" > greeting.txt', "sh", item["content"])
                agent.call("steer_complete", work_id=work_id, intent_id=item["intent_id"], outcome="done")
                done.append(item["content"])
                return None
            if not done:
                return None
            return done if agent.call("work_finish", work_id=work_id)["closed"] else None

        return agent.until(step)

    working = agent(script)
    page.get_by_role("link", name="Write a greeting").click()
    expect(page.get_by_role("heading", name="Write a greeting")).to_be_visible()
    tab.is_live()
    write(page, "Say helo")
    expect(page.locator(".queue .state")).to_have_text("draft")
    page.get_by_role("link", name="Edit instruction 1").click()
    page.get_by_label("What is to be done").fill("Say hello\nand nothing more")
    page.get_by_label("The agent gets it").select_option("next_checkpoint")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The change is saved.")).to_be_visible()
    screenshot(page, "flow-instruction-edited")
    page.get_by_role("link", name="Back to the queue").click()
    tab.is_live()
    screenshot(page, "flow-work-draft")
    page.get_by_role("button", name="Queue instruction 1").click()
    assert working.done() == ["Say hello\nand nothing more"]
    assert (served.program.workspace / "greeting.txt").read_text() == "Say hello\nand nothing more"
    expect(page.locator(".headline .state")).to_have_text("closed")
    over = page.get_by_role("region", name="Over")
    expect(over.locator(".state")).to_have_text("done")
    expect(over).to_contain_text("Say hello")
    screenshot(page, "flow-work-done")


@pytest.mark.covers("WORK-2")
def test_the_queue_is_put_in_order_by_drag_by_keys_and_by_buttons(served: Appliance, visit: Visit) -> None:
    tab = visit(f"/console/works/{served.work('Three things')}")
    page = tab.page
    for text in ("one", "two", "three"):
        write(page, text)
    order(page, "one", "two", "three")
    handles = page.locator(".handle")
    handles.nth(2).drag_to(page.locator(".queue > li").nth(0), target_position={"x": 200, "y": 4})
    order(page, "three", "one", "two")
    # The focus goes along with what is moved.
    handles.nth(0).focus()
    page.keyboard.press("ArrowDown")
    order(page, "one", "three", "two")
    expect(handles.nth(1)).to_be_focused()
    page.keyboard.press("ArrowDown")
    order(page, "one", "two", "three")
    expect(handles.nth(2)).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.get_by_role("button", name="Move instruction 3 up").click()
    order(page, "one", "three", "two")
    page.reload()
    order(page, "one", "three", "two")
    screenshot(page, "queue-in-order")


@pytest.mark.covers("WORK-2")
def test_a_stop_ends_what_runs_and_leaves_the_agent_a_notice(served: Appliance, visit: Visit, agent: Start) -> None:
    def script(agent: Agent) -> dict[str, Any]:
        work_id = agent.call("work_open", workspace_id="demo", title="Takes too long")["work_id"]
        status = agent.run_command("sleep", "600")
        item = agent.call("steer_claim_next", work_id=work_id)["item"]
        return {"status": status, "item": item}

    page = visit("/").page
    working = agent(script)
    expect(page.get_by_role("region", name="Running commands")).to_contain_text("sleep 600")
    page.get_by_role("link", name="Takes too long").click()
    page.get_by_text("Stop what runs…").click()
    page.get_by_label("Reason, for the agent").fill("Too slow <b>")
    page.get_by_role("button", name="Stop all commands of demo").click()
    expect(page.get_by_text("Every command of the workspace has ended")).to_be_visible()
    result = working.done()
    assert result["status"]["termination"] == "terminated"
    assert (result["item"]["kind"], result["item"]["content"]) == ("stop_notice", "Too slow <b>")
    expect(page.locator(".queue .state")).to_have_text("claimed")
    page.get_by_text("Cancel the work…").click()
    page.get_by_role("button", name="Cancel this work").click()
    expect(page.locator(".headline .state")).to_have_text("cancelled")


@pytest.mark.covers("PROC-9")
def test_a_command_is_stopped_from_the_overview_which_stays(served: Appliance, visit: Visit) -> None:
    page = visit("/").page
    process_id = served.start("sleep", "600")
    running = page.get_by_role("region", name="Running commands")
    running.get_by_role("button", name=f"Stop command {process_id}").click()
    expect(page.get_by_text("The command was told to end.")).to_be_visible()
    expect(running).to_contain_text("Nothing runs now.")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url == f"{served.url}/"


@pytest.mark.covers("WORK-2")
def test_two_tabs_that_change_one_instruction_lose_no_text(served: Appliance, visit: Visit) -> None:
    first = visit(f"/console/works/{served.work('Contested')}")
    write(first.page, "As it was")
    first.page.get_by_role("link", name="Edit instruction 1").click()
    expect(first.page.get_by_role("button", name="Save")).to_be_visible()
    second = first.another(first.page.url.removeprefix(served.url))
    second.page.get_by_label("What is to be done").fill("Mine")
    first.is_live()
    first.page.get_by_label("What is to be done").fill("Theirs")
    first.page.get_by_role("button", name="Save").click()
    expect(first.page.get_by_text("The change is saved.")).to_be_visible()
    # The second tab hears of it, says so, and keeps what was typed.
    expect(second.page.get_by_text("Somebody changed it meanwhile.")).to_be_visible()
    expect(second.page.get_by_label("What is to be done")).to_have_value("Mine")
    second.page.get_by_role("button", name="Save").click()
    expect(second.page.get_by_role("alert").filter(has_text="Not done.")).to_contain_text("revision 2, not 1")
    expect(second.page.get_by_label("What you typed")).to_have_value("Mine")
    expect(second.page.get_by_role("region", name="As it is now")).to_contain_text("Theirs")
    screenshot(second.page, "conflict-instruction")
    # Whatever else changes, both texts stay.
    mark = second.page.evaluate("() => document.body.dataset.mark")
    served.work("Something else")
    second.page.wait_for_function("mark => document.body.dataset.mark !== mark", arg=mark)
    expect(second.page.get_by_label("What you typed")).to_have_value("Mine")
    expect(second.page.get_by_role("region", name="As it is now")).to_contain_text("Theirs")
    second.page.get_by_role("button", name="Save over revision 2").click()
    expect(second.page.get_by_text("The change is saved.")).to_be_visible()
    expect(first.page.get_by_label("What is to be done")).to_have_value("Mine")
    assert second.troubles == []


@pytest.mark.covers("WORK-2")
def test_what_is_typed_survives_changes_around_it(served: Appliance, visit: Visit) -> None:
    work_id = served.work("Busy")
    tab = visit(f"/console/works/{work_id}")
    box = tab.page.get_by_label("What is to be done")
    box.fill("Half a sen")
    tab.page.get_by_text("Cancel the work…").click()
    box.focus()
    other = tab.another(f"/console/works/{work_id}")
    write(other.page, "Something else")
    order(tab.page, "Something else")
    expect(box).to_have_value("Half a sen")
    expect(box).to_be_focused()
    expect(tab.page.get_by_role("button", name="Cancel this work")).to_be_visible()
    other.page.get_by_text("Cancel the work…").click()
    other.page.get_by_role("button", name="Cancel this work").click()
    expect(tab.page.locator(".headline .state")).to_have_text("cancelled")
    expect(tab.page.get_by_text("This can no longer be changed.")).to_be_visible()
    expect(box).to_have_value("Half a sen")
    assert other.troubles == []


@pytest.mark.covers("WORK-2")
def test_everything_is_done_by_keyboard_alone(served: Appliance, visit: Visit) -> None:
    work_id = served.work("By keys")
    approval_id = served.hold("exec_command", command=["true"])
    process_id = served.start("sleep", "600")
    tab = visit(None)
    page, keys = tab.page, tab.page.keyboard

    def to(name: str) -> None:
        """Tab, until what has the focus has this name."""
        for _ in range(80):
            keys.press("Tab")
            if re.search(name, page.evaluate(NAME_OF_FOCUSED)):
                visible = "e => getComputedStyle(e).outlineStyle !== 'none'"
                assert page.locator(":focus").evaluate(visible), f"the focus on {name} cannot be seen"
                return
        raise AssertionError(f"Tab does not lead to {name}")

    page.goto(served.url)
    expect(page.get_by_label("Token")).to_be_focused()
    keys.type(served.token)
    keys.press("Enter")
    tab.is_live()
    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    keys.press("Enter")
    to(f"Review {approval_id}")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Grant")).to_be_visible()
    to("^Grant$")
    keys.press("Enter")
    expect(page.locator(".headline .state")).to_have_text("granted")
    page.evaluate("() => { window.scrollTo(0, 0); document.activeElement.blur(); }")
    to("^Works$")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="Works")).to_be_visible()
    to("^By keys$")
    keys.press("Enter")
    expect(page.get_by_role("heading", name="By keys")).to_be_visible()
    for text in ("first", "second"):
        to("What is to be done")
        keys.type(text)
        to("Save as a draft")
        keys.press("Enter")
        expect(page.locator(".queue")).to_contain_text(text)
    page.evaluate("() => document.activeElement.blur()")
    to("^Move instruction 1$")
    keys.press("ArrowDown")
    order(page, "second", "first")
    to("^Queue instruction 2$")
    keys.press("Enter")
    expect(page.locator(".queue > li").nth(1).locator(".state")).to_have_text("queued")
    page.goto(f"{served.url}/console/commands/{process_id}")
    to(f"Stop command {process_id}")
    keys.press("Enter")
    expect(page.locator(".headline .state")).to_have_text("exited")
    assert served.call("steer_status", work_id=work_id)["queued"] == 1
