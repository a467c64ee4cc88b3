"""What must not run, what must not be lost, and who must log in again."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Visit
from tests.browser.rig import Appliance, appliance, screenshot, watch

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

ATTACK = (
    "<script>window.attacked = true</script><img src=x onerror='window.attacked = true'>"
    "<svg onload='window.attacked = true'></svg></textarea></pre><script>window.attacked = true</script>"
)
LOADED = "() => Array.from(document.images).every(image => image.complete)"


def test_the_attack_works_in_a_page_that_lets_it(browser: Browser) -> None:
    """The control: the same text, as markup."""
    page = browser.new_page()
    page.set_content(f"<!doctype html><body>{ATTACK}")
    page.wait_for_function("() => window.attacked === true")
    page.close()
    page = browser.new_page()
    page.set_content("<!doctype html><body>")
    page.evaluate("text => document.body.innerHTML = text", ATTACK)
    page.wait_for_function("() => window.attacked === true")
    page.close()


@pytest.mark.covers("WORK-2", "APPR-3", "PROC-4")
def test_nothing_that_agents_and_commands_say_runs(served: Appliance, visit: Visit) -> None:
    tab = visit("/")
    page = tab.page
    work_id = served.work(ATTACK)
    command = served.hold("exec_command", command=["echo", ATTACK])
    patch = served.hold("apply_patch", patch=f"*** Begin Patch\n*** Add File: a\n+{ATTACK}\n*** End Patch")
    process_id = served.start("printf", "%s\\n\\033[31m%s\\n", ATTACK, ATTACK)
    # As it comes in by events, and as it comes with the page.
    expect(page.get_by_role("region", name="Open works")).to_contain_text("<script>")
    page.goto(f"{served.url}/console/works/{work_id}")
    page.get_by_label("What is to be done").fill(ATTACK)
    page.get_by_role("button", name="Save as a draft").click()
    expect(page.locator(".queue .body")).to_have_text(ATTACK)
    page.get_by_role("link", name="Edit instruction 1").click()
    expect(page.get_by_label("What is to be done")).to_have_value(ATTACK)
    for path, place in (
        (f"/console/holds/{command}", ".words"),
        (f"/console/holds/{patch}", ".l.add"),
        (f"/console/commands/{process_id}", "#output"),
        ("/console/works", "main"),
        ("/", "main"),
    ):
        page.goto(served.url + path)
        tab.is_live()
        expect(page.locator(place).first).to_contain_text("<svg onload='window.attacked = true'>")
        page.wait_for_function(LOADED)
        assert page.evaluate("() => window.attacked") is None
        assert page.locator("main img, main svg, main script").count() == 0
    page.goto(f"{served.url}/console/commands/{process_id}")
    expect(page.locator("#output .f1")).to_have_text(re.compile(re.escape(ATTACK)))
    expect(page.locator("#output-note")).to_contain_text("ended")
    assert page.evaluate("() => window.attacked") is None
    screenshot(page, "attack-in-output")


def test_the_page_lets_no_text_become_markup_and_no_script_of_others_in(served: Appliance, visit: Visit) -> None:
    tab = visit("/")
    refused = tab.page.evaluate(
        """() => {
          const found = [];
          try { document.body.innerHTML = "<b>x</b>"; } catch (error) { found.push(error.name); }
          try { trustedTypes.createPolicy("mine", {}); } catch (error) { found.push(error.name); }
          const script = document.createElement("script");
          try { script.text = "window.attacked = true"; } catch (error) { found.push(error.name); }
          document.body.append(script);
          return found;
        }"""
    )
    assert refused == ["TypeError", "TypeError", "TypeError"]
    assert tab.page.evaluate("() => window.attacked") is None
    assert any("Trusted Type" in trouble or "TrustedHTML" in trouble for trouble in tab.troubles)
    tab.troubles.clear()


@pytest.mark.covers("PROC-4", "PROC-9")
def test_a_flood_of_output_is_followed_at_its_end_and_the_page_stays_small(served: Appliance, visit: Visit) -> None:
    process_id = served.start("sh", "-c", "yes 0123456789012345678901234567890123456789 & sleep 600")
    tab = visit(f"/console/commands/{process_id}")
    page = tab.page
    expect(page.locator("#output .skipped").first).to_be_visible()
    # More than the page keeps has gone by.
    expect(page.locator("#output-note")).to_contain_text("the beginning is no longer shown")
    size = "pane => [pane.querySelectorAll('*').length, pane.textContent.length]"
    nodes, chars = page.locator("#output").evaluate(size)
    assert nodes <= 2_000
    assert chars <= 512 * 1024
    page.get_by_role("button", name=re.compile("^Stop command")).click()
    expect(page.locator(".headline .state")).to_have_text("exited")
    expect(page.locator("#output-note")).to_contain_text("ended")


@pytest.mark.covers("APPR-3")
def test_nothing_that_is_granted_is_scrolled_out_of_sight(served: Appliance, visit: Visit) -> None:
    far = " " * 2_000
    tab = visit("/")
    page = tab.page
    patch = served.hold("apply_patch", patch=f"*** Begin Patch\n*** Add File: a\n+x = 1{far}; EVIL\n+y\n*** End Patch")
    page.goto(f"{served.url}/console/holds/{patch}")
    tab.is_live()
    within = """place => {
      const end = document.createRange();
      const text = place.firstChild;
      end.setStart(text, text.data.indexOf("EVIL"));
      end.setEnd(text, text.data.indexOf("EVIL") + 4);
      const [outer, inner] = [place.closest("pre").getBoundingClientRect(), end.getBoundingClientRect()];
      return inner.width > 0 && inner.left >= outer.left && inner.right <= outer.right && inner.bottom <= outer.bottom;
    }"""
    assert page.locator(".l.add .t").first.evaluate(within)
    screenshot(page, "hold-with-a-long-line")
    command = served.hold("exec_command", command=["sh", "-c", "make" + "\n" * 300 + "EVIL", f"x{far}EVIL"])
    page.goto(f"{served.url}/console/holds/{command}")
    tab.is_live()
    for word in page.locator(".words pre").all()[2:]:
        assert word.evaluate(within)


@pytest.mark.covers("PROC-4")
def test_output_that_changes_its_colour_at_every_letter_does_not_stop_the_page(served: Appliance, visit: Visit) -> None:
    colours = "''.join(f'\\x1b[3{n % 8}mx' for n in range(1000))"
    program = f"import time\nwhile True:\n  print({colours}, end='', flush=True)\n  time.sleep(0.2)"
    process_id = served.start("python3", "-c", program)
    page = visit(f"/console/commands/{process_id}").page
    expect(page.locator("#output-note")).to_contain_text("the beginning is no longer shown")
    blocks = page.locator("#output").evaluate("pane => [...pane.children].map(block => block.childElementCount)")
    # All of what is laid out anew with each piece is one block.
    assert max(blocks) <= 1_000
    assert sum(blocks) <= 20_000
    page.get_by_role("button", name=re.compile("^Stop command")).click()
    expect(page.locator(".headline .state")).to_have_text("exited")


@pytest.mark.covers("NETIF-2")
def test_a_person_logs_in_once_and_out_again(served: Appliance, visit: Visit) -> None:
    tab = visit(None)
    page = tab.page
    page.goto(f"{served.url}/console/works")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("Token").fill("not the token")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    screenshot(page, "login-refused")
    page.get_by_label("Token").fill(served.token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Works")).to_be_visible()
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert served.token not in cookie["value"]
    assert page.evaluate("() => document.cookie") == ""
    second = tab.another("/console/holds")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    # The other tab is told.
    expect(second.page.get_by_role("heading", name="Log in")).to_be_visible()
    page.go_back()
    page.reload()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_connection_that_says_nothing_any_more_is_taken_for_lost_and_tried_again(
    served: Appliance, visit: Visit
) -> None:
    tab = visit(None)
    page = tab.page
    page.clock.install()
    tab.open("/")
    # A server that hangs: its streams stay open and silent. The clock goes on by far more than that takes.
    page.route("**/console/events*", lambda route: None)
    page.clock.pause_at(page.evaluate("() => Date.now() + 600_000"))
    expect(page.locator("#connection")).to_have_text("connection lost")
    page.unroute("**/console/events*")
    page.clock.run_for(41_000)
    page.clock.resume()
    tab.is_live()
    expect(page.locator("#lost")).to_be_hidden()


@pytest.mark.covers("NETIF-2", "WORK-2")
def test_what_is_typed_survives_the_end_of_the_session(served: Appliance, visit: Visit) -> None:
    tab = visit(f"/console/works/{served.work('Long thoughts')}")
    page = tab.page
    other = tab.another("/")
    page.get_by_label("What is to be done").fill("Thought for long")
    other.page.get_by_role("button", name="Log out").click()
    expect(other.page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_role("button", name="Save as a draft").click()
    over = page.get_by_role("alert").filter(has_text="The session is over.")
    expect(over).to_be_visible()
    expect(page.get_by_label("What is to be done")).to_have_value("Thought for long")
    with page.context.expect_page() as opened:
        over.get_by_role("link").click()
    login = opened.value
    login.get_by_label("Token").fill(served.token)
    login.get_by_role("button", name="Log in").click()
    expect(login.get_by_role("heading", name="Long thoughts")).to_be_visible()
    tab.is_live()
    expect(over).to_have_count(0)
    key = "input[name=form_key]"
    expect(page.locator(f"#draft {key}")).to_have_value(login.locator(f"#draft {key}").input_value())
    page.get_by_role("button", name="Save as a draft").click()
    expect(page.locator(".queue .body")).to_have_text("Thought for long")


@pytest.mark.covers("NETIF-2")
def test_a_lost_connection_is_said_and_comes_back_by_itself_and_another_token_ends_the_session(
    browser: Browser,
) -> None:
    with appliance() as served:
        work_id = served.work("Goes on")
        context = browser.new_context()
        context.set_default_timeout(30_000)
        tab = watch(context.new_page(), served)
        page = tab.open(f"/console/works/{work_id}")
        page.get_by_label("What is to be done").fill("Typed before")
        process = served.program.process
        served.on_thread(process.terminate)
        served.on_thread(process.wait, 30)
        expect(page.locator("#connection")).to_have_text("connection lost")
        expect(page.locator("#lost")).to_contain_text("The connection is lost.")
        screenshot(page, "connection-lost")
        page.get_by_role("button", name="Save as a draft").click()
        expect(page.get_by_role("alert").filter(has_text="The answer was lost")).to_be_visible()
        served.on_thread(served.program.restart, 0)
        tab.is_live()
        expect(page.locator("#lost")).to_be_hidden()
        expect(page.get_by_label("What is to be done")).to_have_value("Typed before")
        page.get_by_role("button", name="Save as a draft").click()
        expect(page.locator(".queue .body")).to_have_text("Typed before")
        # The same with another token: the page leads to the login, and the old cookie is of no use.
        served.write_token("another-token")
        served.on_thread(served.program.restart, 15)
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        page.get_by_label("Token").fill("another-token")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Goes on")).to_be_visible()
        tab.is_live()
        context.close()
