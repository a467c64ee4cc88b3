"""Every view, in light and dark, wide and on a phone: drawn whole, named, and kept as a picture."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.rig import Appliance, screenshot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

PATCH = """*** Begin Patch
*** Update File: src/app.py
@@ class App:
@@     def run(self):
         self.open()
-        return 1
+        return 2
*** Add File: docs/new.md
+# New
+A line with \u202e in it, and one that is {long}.
*** Delete File: old.txt
*** End Patch
""".format(long="long " * 60)

UNNAMED = """() => Array.from(document.querySelectorAll("button, a[href], input:not([type=hidden]), select, textarea"))
  .filter(e => e.checkVisibility() && !(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim()
    || e.getAttribute("aria-labelledby")))
  .map(e => e.outerHTML)"""
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data; };
  const part = (v) => v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => {
    const f = part;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
    if (c[3] === 255) return c; } return [255, 255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = Array.from(e.childNodes).some((n) => n.nodeType === 3 && n.data.trim());
    const spared = "[disabled], .away, .terminal, .l .n, .skip, [aria-hidden=true]";
    if (!own || !e.checkVisibility() || e.closest(spared)) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`${e.className || e.tagName}: ${e.textContent.trim().slice(0, 40)}`);
  }
  return [...new Set(found)];
}"""


@pytest.fixture(scope="module")
def views(served: Appliance) -> dict[str, str]:
    """Name of each view to its address, with something to see on it."""
    root = served.program.workspace
    (root / "src").mkdir()
    (root / "src" / "app.py").write_text("class App:\n    def run(self):\n        self.open()\n        return 1\n")
    (root / "old.txt").write_text("old\n")
    add = "*** Begin Patch\n*** Add File: docs/intro.md\n+hello\n*** Add File: lib.py\n+x = 1\n*** End Patch"
    served.call("apply_patch", workspace_id="demo", patch=add)
    move = "*** Begin Patch\n*** Update File: docs/intro.md\n*** Move to: docs/start.md\n@@\n-hello\n+hi\n*** End Patch"
    operation_id = served.call("apply_patch", workspace_id="demo", patch=move)["operation_id"]
    patch = served.hold("apply_patch", patch=PATCH, expected_versions={"old.txt": "sha256:" + "0" * 64})
    command = served.hold("exec_command", command=["sh", "-c", "make test\necho done", "an argument  of two words"])
    work_id = served.work("Port the parser to the new grammar")
    ended = served.start("sh", "-c", "echo failing; exit 3")
    while served.call("process_status", process_id=ended, wait_ms=2_000)["state"] == "running":
        pass
    colours = (
        r"printf '\033[1mcollected\033[0m 2\n\033[32mPASSED\033[0m a\n\033[31;1mFAILED\033[0m b \033[7m here \033[0m\n'"
    )
    process_id = served.start("sh", "-c", f"{colours}; sleep 600")
    return {
        "overview": "/",
        "commands": "/console/commands",
        "command": f"/console/commands/{process_id}",
        "holds": "/console/holds",
        "hold-patch": f"/console/holds/{patch}",
        "hold-command": f"/console/holds/{command}",
        "works": "/console/works",
        "work": f"/console/works/{work_id}",
        "patches": "/console/patches",
        "patch": f"/console/patches/{operation_id}",
        "workspaces": "/console/workspaces",
        "workspace": "/console/workspaces/demo",
    }


def looks_right(page: Page, name: str) -> None:
    overflow = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow <= 0, f"{name} is wider than the window by {overflow} px"
    assert page.evaluate(UNNAMED) == [], f"controls without a name on {name}"
    assert page.evaluate(CONTRAST) == [], f"texts on {name} that are hard to read"
    assert page.locator("h1").count() == 1
    assert page.locator("main").count() == 1
    assert page.locator("html[lang=en]").count() == 1


@pytest.mark.covers("WORK-2", "APPR-3", "POL-1", "OP-5", "PROC-4")
@pytest.mark.parametrize(
    ("kind", "context"),
    [
        ("light", {"viewport": {"width": 1200, "height": 850}, "color_scheme": "light"}),
        ("dark", {"viewport": {"width": 1200, "height": 850}, "color_scheme": "dark", "reduced_motion": "reduce"}),
        ("phone", {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True}),
    ],
    ids=["light", "dark", "phone"],
)
def test_every_view_is_whole_and_readable(
    visit: Visit, views: dict[str, str], kind: str, context: dict[str, Any]
) -> None:
    tab = visit(None, **context)
    page = tab.page
    page.goto(f"{tab.appliance.url}/")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    looks_right(page, "login")
    screenshot(page, f"login-{kind}")
    grounds = set()
    for name, path in views.items():
        tab.open(path)
        if name == "command":
            expect(page.locator("#output")).to_contain_text("FAILED")
        looks_right(page, name)
        screenshot(page, f"{name}-{kind}")
        grounds.add(page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor"))
    assert grounds == {"rgb(17, 22, 20)" if kind == "dark" else "rgb(246, 247, 246)"}
    if kind == "phone":
        page.goto(f"{tab.appliance.url}{views['hold-patch']}")
        expect(page.get_by_role("button", name="Grant")).to_be_in_viewport()


@pytest.mark.covers("WORK-2", "APPR-3")
def test_the_pages_work_without_scripts(served: Appliance, visit: Visit, views: dict[str, str]) -> None:
    tab = visit(None, java_script_enabled=False)
    page = tab.page
    page.goto(f"{served.url}{views['work']}")
    page.get_by_label("Token").fill(served.token)
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("What is to be done").fill("Without scripts\nof any kind")
    page.get_by_role("button", name="Save as a draft").click()
    expect(page.get_by_text("The draft is saved.")).to_be_visible()
    expect(page.locator(".queue .body")).to_have_text(re.compile("Without scripts\\s+of any kind"))
    page.get_by_role("button", name="Queue instruction 1").click()
    expect(page.locator(".queue .state")).to_have_text("queued")
    page.goto(f"{served.url}{views['command']}")
    expect(page.locator("#output .f2")).to_have_text("PASSED")
    page.get_by_role("button", name=re.compile("^Stop command")).click()
    expect(page.get_by_text("The command was told to end.")).to_be_visible()
