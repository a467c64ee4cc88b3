"""Who may use the console: login, sessions, forms of other pages, headers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.http.console.sessions import LIFETIME_S, Sessions
from gateway.http.console.templating import BUILD, STATIC
from gateway.http.console.throttle import ALL_BURST, BURST, MAX_PEERS, REFILL_S, Throttle, network_of
from gateway.http.token import Gate
from gateway.store.sessions import MAX_SESSIONS
from tests.gateway.http.console.rig import HOST, TOKEN, Clock, browser, held, opened, soon, visiting

pytestmark = pytest.mark.timeout(60)

PAGES = ("/", "/console/commands", "/console/holds", "/console/works", "/console/patches", "/console/workspaces")


# --- login ------------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-2")
async def test_nothing_is_shown_before_the_token_was(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        approval_id = await held(b)
        for path in (*PAGES, f"/console/holds/{approval_id}", "/console/workspaces/demo"):
            reply = await b.get(path, 303)
            assert reply.headers["location"].startswith("/console/login")
            assert reply.text == ""
        await b.get("/console/events", 401)
        await b.get(f"/console/holds/{approval_id}/request.txt", 303)
        await b.post(f"/console/holds/{approval_id}/resolve", 401, decision="grant")
        assert (await b.core.application.show_hold(approval_id)).state == "pending"
        await b.login()
        for path in PAGES:
            await b.get(path)
        assert (await b.get("/console", 303)).headers["location"] == "/"


@pytest.mark.covers("NETIF-2")
async def test_a_login_goes_on_to_where_it_was_asked_for_and_nowhere_outside(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        asked = await b.get("/console/works?said=x", 303)
        assert asked.headers["location"] == "/console/login?next=%2Fconsole%2Fworks%3Fsaid%3Dx"
        page = await b.page("/console/login?next=%2Fconsole%2Fworks")
        assert page.of("input", name="next")[0]["value"] == "/console/works"
        for where in ("https://evil.example/", "//evil.example", "/\\evil.example", "/console/\\..\\", "javascript:1"):
            reply = await b.post("/console/login", token=TOKEN, next=where, form_key="-")
            assert reply.headers["location"] == "/"
        reply = await b.post("/console/login", token=TOKEN, next="/console/works", form_key="-")
        assert reply.headers["location"] == "/console/works"


@pytest.mark.covers("NETIF-2")
async def test_the_cookie_is_for_this_site_alone_and_holds_no_token(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        cookie = (await b.login()).headers["set-cookie"]
        name, _, rest = cookie.partition("=")
        assert name == "codespace_8000"
        flags = {part.strip().lower() for part in rest.split(";")[1:]}
        assert flags == {"httponly", "samesite=strict", "path=/", f"max-age={LIFETIME_S}"}
        assert TOKEN not in cookie
        async with visiting(b.core, scheme="https") as tls:
            reply = await tls.post("/console/login", headers={"origin": f"https://{HOST}"}, token=TOKEN, form_key="-")
            assert reply.headers["set-cookie"].startswith("__Host-codespace_8000=")
            assert "; Secure" in reply.headers["set-cookie"]
        proxied = {"origin": f"https://{HOST}", "x-forwarded-proto": "https"}
        reply = await b.post("/console/login", headers=proxied, token=TOKEN, form_key="-")
        assert "; Secure" in reply.headers["set-cookie"]


@pytest.mark.covers("NETIF-2")
async def test_a_wrong_token_opens_no_session(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        for wrong in ("", "the-toke", "the-token2", "THE-TOKEN", "ü" * 2000):
            reply = await b.login(wrong, want=403)
            assert "set-cookie" not in reply.headers
            assert "not the token" in reply.text
        await b.login("x" * 20_000, want=400)
        await b.get("/", 303)
        await b.login(f"  {TOKEN}\n")
        assert TOKEN not in b.log.getvalue()


@pytest.mark.covers("NETIF-2")
async def test_a_session_outlives_a_restart_and_ends_with_its_token(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        cookies = b.client.cookies
        async with visiting(b.core) as again:
            again.client.cookies = cookies
            await again.get("/")
        async with visiting(b.core, token="another-token") as rotated:
            rotated.client.cookies = cookies
            await rotated.get("/", 303)
        # The database tells neither the cookie nor the token.
        (value,) = cookies.values()
        stored = b"".join(path.read_bytes() for path in b.core.data.glob("codespace.sqlite*"))
        assert value.encode() not in stored
        assert TOKEN.encode() not in stored


@pytest.mark.covers("NETIF-2")
async def test_a_session_ends_by_itself_and_at_a_logout(tmp_path: Path) -> None:
    clock = Clock()
    async with browser(tmp_path, clock=clock) as b:
        await b.login()
        clock.seconds += LIFETIME_S - 1
        await b.get("/")
        clock.seconds += 2
        await b.get("/", 303)
        await b.login()
        (kept,) = b.client.cookies.values()
        reply = await b.post("/console/logout")
        assert reply.headers["location"] == "/console/login"
        await b.get("/", 303, cookie=f"codespace_8000={kept}")


@pytest.mark.covers("NETIF-2")
async def test_the_oldest_session_goes_where_there_are_too_many(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await b.login()
        (first,) = b.client.cookies.values()
        gate = Gate(TOKEN)
        sessions = Sessions(lambda: b.core.application.console_sessions, b.clock.now)
        for _ in range(MAX_SESSIONS):
            await soon(sessions.open(gate))
        b.client.cookies.clear()
        await b.get("/", 303, cookie=f"codespace_8000={first}")


def test_attempts_are_counted_for_each_peer_and_for_all() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    assert [throttle.attempt("one") for _ in range(BURST)] == [0.0] * BURST
    assert 0 < throttle.attempt("one") <= REFILL_S
    assert throttle.attempt("two") == 0
    throttle.give_back("one")
    assert throttle.attempt("one") == 0
    clock.seconds += REFILL_S
    assert throttle.attempt("one") == 0
    assert throttle.attempt("one") > 0
    fresh = Throttle(clock)
    made = sum(fresh.attempt(f"peer {n}") == 0 for n in range(2 * ALL_BURST))
    assert made == ALL_BURST


def test_a_network_is_one_peer_however_many_addresses_it_has() -> None:
    assert network_of("2001:db8:0:1::7") == network_of("2001:db8:0:1:ffff:ffff:ffff:ffff") == "2001:db8:0:1::/64"
    assert network_of("2001:db8:0:2::7") != network_of("2001:db8:0:1::7")
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth0")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("unix:uid=0") == "unix:uid=0"


def test_a_crowd_of_peers_takes_no_more_room_than_the_bound() -> None:
    throttle = Throttle(Clock())
    for n in range(2 * MAX_PEERS):
        throttle.attempt(f"peer {n}")
    assert len(throttle._peers) == MAX_PEERS


@pytest.mark.covers("NETIF-2")
async def test_too_many_attempts_are_refused_whether_right_or_wrong(tmp_path: Path) -> None:
    clock = Clock()
    async with browser(tmp_path, clock=clock) as b:
        for _ in range(BURST):
            await b.login("wrong", want=403)
        for token in ("wrong", TOKEN):
            reply = await b.login(token, want=429)
            assert int(reply.headers["retry-after"]) >= 1
            assert "set-cookie" not in reply.headers
        clock.seconds += REFILL_S
        await b.login()


# --- forms of others --------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize("token", [TOKEN, None], ids=["token", "no token"])
async def test_a_form_of_another_page_changes_nothing(tmp_path: Path, token: str | None) -> None:
    async with browser(tmp_path, token=token) as b:
        approval_id = await held(b)
        if token:
            await b.login()
        await b.get(f"/console/holds/{approval_id}")
        path, own = f"/console/holds/{approval_id}/resolve", {"origin": f"http://{HOST}"}
        for headers in (
            {},
            {"origin": "http://localhost:9999"},
            {"origin": f"http://{HOST}.evil.example"},
            {"origin": "null"},
            {"origin": f"ftp://{HOST}"},
            {**own, "sec-fetch-site": "cross-site"},
            {**own, "sec-fetch-site": "same-site"},
        ):
            await b.post(path, 403, headers=headers, decision="grant")
        for key in ("-", "", "0" * 64, b.form_key[:-1], b.form_key + "0"):
            await b.post(path, 403, decision="grant", form_key=key)
        assert (await b.core.application.show_hold(approval_id)).state == "pending"
        await b.post(path, headers={**own, "sec-fetch-site": "same-origin"}, decision="grant")
        assert (await b.core.application.show_hold(approval_id)).state == "granted"


@pytest.mark.covers("NETIF-2")
async def test_the_form_key_of_one_session_is_of_no_use_in_another(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        approval_id = await held(b)
        await b.login()
        async with visiting(b.core) as other:
            await other.login()
            assert other.form_key != b.form_key
            await other.post(f"/console/holds/{approval_id}/resolve", 403, decision="grant", form_key=b.form_key)


@pytest.mark.covers("NETIF-2")
@pytest.mark.parametrize(
    "body", [b"\xff", b"form_key=%ff", b"a", b"decision=grant&decision=deny", b"x=1&" * 65 + b"y=2", b"a=1;b", b"=&=&="]
)
async def test_a_body_that_is_no_form_of_ours_is_refused(tmp_path: Path, body: bytes) -> None:
    async with browser(tmp_path) as b:
        approval_id = await held(b)
        await b.login()
        headers = {"origin": f"http://{HOST}", "content-type": "application/x-www-form-urlencoded"}
        for path in (f"/console/holds/{approval_id}/resolve", "/console/login"):
            reply = await soon(b.client.post(path, content=body, headers=headers))
            assert reply.status_code in (400, 403)
        assert (await b.core.application.show_hold(approval_id)).state == "pending"


@pytest.mark.covers("NETIF-2")
async def test_without_a_token_the_pages_are_open_and_nothing_is_stored(tmp_path: Path) -> None:
    async with browser(tmp_path, token=None) as b:
        page = await b.page("/")
        assert not page.of("form", action="/console/logout")
        (name,) = b.client.cookies.values()
        assert len(name) == 43
        assert await soon(b.core.application.console_sessions.find(hashlib.sha256(name.encode()).hexdigest())) is None
        work_id = await opened(b)
        await b.get(f"/console/works/{work_id}")
        await b.post(f"/console/works/{work_id}/cancel")
        assert (await b.core.application.inbox.shown(work_id)).state == "cancelled"
        await b.get("/console/login", 303)


@pytest.mark.covers("NETIF-2")
async def test_an_address_that_is_nearly_right_leads_nowhere(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        reply = await b.get("/console/holds/", 404)
        assert "location" not in reply.headers


# --- headers ----------------------------------------------------------------------------------------------------------
@pytest.mark.covers("NETIF-2")
async def test_every_answer_forbids_scripts_and_frames_of_others(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        replies = [await b.get("/", 303), await b.get("/console/login"), await b.get("/console/nope", 404)]
        replies += [await b.get(f"/console/static/{BUILD}/{name}") for name in STATIC]
        await b.login()
        replies += [await b.get(path) for path in PAGES]
        for reply in replies:
            policy = reply.headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(
                policy
            )
            assert {"form-action 'self'", "base-uri 'none'", "require-trusted-types-for 'script'"} <= set(policy)
            assert "unsafe" not in reply.headers["content-security-policy"]
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert reply.headers["referrer-policy"] == "same-origin"
            assert reply.headers["cross-origin-opener-policy"] == "same-origin"
            kept = "/static/" in str(reply.url)
            assert ("immutable" in reply.headers["cache-control"]) == kept
            assert reply.headers["cache-control"] == "no-store" or kept


@pytest.mark.covers("NETIF-2")
async def test_no_page_has_a_script_or_a_style_of_its_own_or_names_another_place(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        await held(b)
        await opened(b)
        pages = [await b.page("/console/login")]
        await b.login()
        pages += [await b.page(path) for path in PAGES]
        for page in pages:
            for script in page.of("script"):
                assert (script["src"] or "").startswith(f"/console/static/{BUILD}/")
            assert not page.of("style")
            for _, attributes in page.elements:
                assert not [name for name in attributes if name.startswith("on") or name == "style"]
                for name in ("href", "src", "action"):
                    if name in attributes:
                        assert (attributes[name] or "").startswith(("/", "#", "?"))


@pytest.mark.covers("NETIF-2")
async def test_files_of_the_console_are_those_that_it_came_with(tmp_path: Path) -> None:
    async with browser(tmp_path) as b:
        for name in ("../templates/base.html", "..%2f..%2fdoor.py", "%2e%2e/door.py", "nope.js", ""):
            await b.get(f"/console/static/{BUILD}/{name}", 404)
        old = await b.get("/console/static/0000/console.js")
        assert old.headers["cache-control"] == "no-store"
        assert old.headers["content-type"].startswith("text/javascript")
