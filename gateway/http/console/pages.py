"""The addresses of the console's pages, and how a page becomes an answer.

Refuses to know: what a page shows, who may see it. Used by the console.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import HTMLResponse, Response

from gateway.application import Application
from gateway.http.console import views
from gateway.http.console.actions import DELIVERIES, SAID
from gateway.http.console.sessions import Visitor
from gateway.http.console.templating import Templates
from gateway.http.console.views import Asked, View

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        # No script here makes markup of a text, so none is allowed to.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    # Not no-referrer: browsers then send "Origin: null" with forms, which is an origin that may not call.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Page:
    """`section`: of the navigation. `live`: its parameter is a command whose output the page follows."""

    path: str
    view: View
    template: str
    section: str
    live: str | None = None


PAGES: tuple[Page, ...] = (
    Page("/", views.overview, "overview.html", "overview"),
    Page("/console/commands", views.commands, "commands.html", "commands"),
    Page("/console/commands/{process_id}", views.command, "command.html", "commands", live="process_id"),
    Page("/console/holds", views.holds, "holds.html", "holds"),
    Page("/console/holds/{approval_id}", views.hold, "hold.html", "holds"),
    Page("/console/works", views.works, "works.html", "works"),
    Page("/console/works/{work_id}", views.work, "work.html", "works"),
    Page("/console/instructions/{intent_id}", views.instruction, "instruction.html", "works"),
    Page("/console/patches", views.patches, "patches.html", "patches"),
    Page("/console/patches/{operation_id}", views.patch, "patch.html", "patches"),
    Page("/console/workspaces", views.workspaces, "workspaces.html", "workspaces"),
    Page("/console/workspaces/{workspace_id}", views.workspace, "workspace.html", "workspaces"),
)


def section_of(template: str) -> Page:
    """The page that a template is for."""
    return next(page for page in PAGES if page.template == template)


class Answers:
    """Pages as HTTP answers. `version`: of the program."""

    def __init__(self, application: Application, version: str) -> None:
        self._application = application
        self._version = version
        self._templates = Templates()

    async def page(
        self,
        visitor: Visitor,
        page: Page,
        asked: Asked,
        *,
        status: int = 200,
        problem: str | None = None,
        typed: Mapping[str, str] | None = None,
    ) -> Response:
        """`problem`: why what was asked for before did not happen. `typed`: the fields of that form. Raises
        `ToolError`."""
        # Before the view: what changes meanwhile is told to the page as soon as it listens.
        mark = self._application.changes.mark
        pending = len(await self._application.list_holds(None, ("pending",), views.LISTED))
        values = await page.view(self._application, asked)
        common = {
            "section": page.section,
            "mark": mark,
            "live": asked.path.get(page.live, "") if page.live else "",
            "pending_holds": pending,
            "version": self._version,
            "form_key": visitor.form_key,
            "gated": visitor.gated,
            "problem": problem,
            "typed": typed,
            "said": SAID.get(asked.query.get("said", "")),
            "deliveries": DELIVERIES,
        }
        return self._html(page.template, {**common, **values}, status)

    def plain(self, template: str, status: int, **values: Any) -> Response:
        """A page of its own, without navigation: login, and what cannot be shown."""
        return self._html(template, {"version": self._version, **values}, status)

    def _html(self, template: str, values: Mapping[str, Any], status: int) -> Response:
        return HTMLResponse(self._templates.render(template, values), status, HEADERS)
