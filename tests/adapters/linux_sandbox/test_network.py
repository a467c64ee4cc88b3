"""The `enabled` network, with real servers: what the lists allow is reached by every kind of program, nothing else is.

The servers stand in a namespace that the tests make, at an address of the internet outside; the proxy runs there too,
so that what it must refuse would answer if it did not.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapters.egress_proxy.client import EgressProxy
from adapters.linux_sandbox import netlink
from adapters.linux_sandbox.launcher import LinuxSandboxLauncher
from runner.api import WorkspaceTerms
from runner.ports import LaunchFailed, SandboxUnavailable
from tests.adapters.linux_sandbox.network_world import (
    CLOSED_PORT,
    DENIED_PORT,
    PRIVATE,
    PUBLIC,
    PUBLIC_V6,
    RAW_PORT,
)
from tests.adapters.linux_sandbox.prepared import PreparedLauncher
from tests.adapters.linux_sandbox.support import BOUND_S, Ended, finish, read_until, run, shell, start, terms

ROOT = Path(__file__).resolve().parents[3]
PYTHON = os.path.realpath(sys.executable)
NAMES = {
    "allowed.test": (PUBLIC,),
    "six.test": (PUBLIC_V6,),
    "denied.test": (PUBLIC,),
    "deep.wild.test": (PUBLIC,),
    "bad.wild.test": (PUBLIC,),
    "wild.test": (PUBLIC,),
    "rebind.test": ("127.0.0.1",),
    "mixed.test": (PUBLIC, PRIVATE),
    "private.test": (PRIVATE,),
    "listed.test": (PRIVATE,),
}
ALLOW = (
    "allowed.test", f"allowed.test:{RAW_PORT}", f"allowed.test:{CLOSED_PORT}", "six.test", "*.wild.test", "rebind.test",
    "mixed.test", "private.test", "nowhere.test",
)  # fmt: skip
DENY = ("bad.wild.test", "allowed.test:444")

pytestmark = [
    pytest.mark.covers("NET-2", "NET-4"),
    pytest.mark.timeout(60),
    pytest.mark.skipif(
        not all(shutil.which(name) for name in ("nsenter", "curl", "openssl", "git")),
        reason="needs nsenter, curl, openssl and git",
    ),
]


@dataclass(frozen=True)
class World:
    """`prefix`: starts a program in the servers' namespace. `authority`: the certificate to trust."""

    prefix: tuple[str, ...]
    authority: str


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    place = tempfile.mkdtemp(prefix="codespace-world-")
    certificate, key, site = f"{place}/cert.pem", f"{place}/key.pem", f"{place}/site"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=allowed.test", "-addext", "subjectAltName=DNS:allowed.test", "-keyout", key, "-out",
         certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    _make_repository(site)
    _make_package_index(site)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.adapters.linux_sandbox.network_world", certificate, key, site],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pid = json.loads(process.stdout.readline())["pid"]
        user = ("--user", "--preserve-credentials") if os.geteuid() else ()
        yield World(("nsenter", "--target", str(pid), "--net", *user, "--"), certificate)
    finally:
        process.stdin.close()
        process.wait(BOUND_S)
        process.stdout.close()
        shutil.rmtree(place)


def _make_repository(site: str) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t.test", "-c", "init.defaultBranch=main"]
    source = f"{site}/source"
    for command in (
        [*git, "init", "-q", source],
        [*git, "-C", source, "commit", "-q", "--allow-empty", "-m", "the first"],
        [*git, "clone", "-q", "--bare", source, f"{site}/repository.git"],
        [*git, "-C", f"{site}/repository.git", "update-server-info"],
    ):
        subprocess.run(command, check=True, env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"})


def _make_package_index(site: str) -> None:
    """One wheel of one module, where pip looks for it."""
    wheel = "demo-1.0-py3-none-any.whl"
    os.makedirs(f"{site}/simple/demo")
    Path(f"{site}/simple/demo/index.html").write_text(f'<a href="{wheel}">{wheel}</a>', encoding="utf-8")
    about = "demo-1.0.dist-info"
    with zipfile.ZipFile(f"{site}/simple/demo/{wheel}", "w") as archive:
        archive.writestr("demo.py", "print('installed')\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", f"demo.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")


@dataclass
class Net:
    """A launcher whose proxy lives in the world. `decisions()`: what the proxy logged so far."""

    launcher: LinuxSandboxLauncher
    proxy: EgressProxy
    journal: str
    root: str

    def terms(self, *allow: str, deny: tuple[str, ...] = DENY, **changes: object) -> WorkspaceTerms:
        lists = {"root": self.root, "network": "enabled", "network_allow": allow or ALLOW, "network_deny": deny}
        return terms(**{**lists, **changes})  # type: ignore[arg-type]

    async def shell(self, script: str, *allow: str, deny: tuple[str, ...] = DENY) -> Ended:
        return await shell(self.launcher, self.terms(*allow, deny=deny), script)

    async def python(self, program: str, *allow: str, deny: tuple[str, ...] = DENY) -> Ended:
        return await run(self.launcher, self.terms(*allow, deny=deny), PYTHON, "-c", program)

    def decisions(self) -> list[dict[str, object]]:
        lines = Path(self.journal).read_text(encoding="utf-8").splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == "network_decision"]

    async def counts(self, total: int) -> Counter[tuple[str, str]]:
        """The runner's counts once they are `total` decisions: they follow the log line by a message."""
        async with asyncio.timeout(BOUND_S):
            while sum(self.proxy.counts.values()) < total:
                await asyncio.to_thread(lambda: None)
        return Counter(self.proxy.counts)

    def refused(self, host: str, via: str) -> str:
        """Why; fails where no line says so."""
        reasons = [
            str(d["reason"]) for d in self.decisions() if (d["host"], d["via"], d["decision"]) == (host, via, "refused")
        ]
        assert reasons, f"no refusal of {host} by {via} in {self.decisions()}"
        return reasons[-1]

    def allowed(self, host: str, via: str) -> bool:
        return any((d["host"], d["via"], d["decision"]) == (host, via, "allowed") for d in self.decisions())


@pytest.fixture
async def net(world: World, workspace: str) -> AsyncIterator[Net]:
    journal_fd, journal = await asyncio.to_thread(tempfile.mkstemp, prefix="codespace-journal-")
    proxy = EgressProxy(names=NAMES, prefix=world.prefix, stderr_fd=journal_fd)
    launcher = LinuxSandboxLauncher(proxy=proxy)
    await launcher.start()
    await asyncio.to_thread(shutil.copy, world.authority, f"{workspace}/ca.pem")
    yield Net(launcher, proxy, journal, workspace)
    await launcher.close()
    os.close(journal_fd)
    await asyncio.to_thread(os.unlink, journal)


# --- what is allowed --------------------------------------------------------------------------------------------------
async def test_curl_reaches_an_allowed_name_by_http_https_and_socks(net: Net) -> None:
    ended = await net.shell(
        "curl -sS http://allowed.test/where; curl -sS -p http://allowed.test/where;"
        "curl -sS --cacert ca.pem https://allowed.test/where; curl -sS http://Deep.WILD.test./where;"
        "curl -sS --socks5-hostname 127.0.0.1:3128 http://allowed.test/where; curl -sS http://six.test/where"
    )
    lines = ended.output.splitlines()
    assert lines == [
        *[f"allowed.test at {PUBLIC}"] * 3, f"Deep.WILD.test. at {PUBLIC}", f"allowed.test at {PUBLIC}",
        f"six.test at {PUBLIC_V6}",
    ]  # fmt: skip
    for host, via in (("allowed.test", "http"), ("allowed.test", "connect"), ("allowed.test", "socks5")):
        assert net.allowed(host, via)
    assert net.allowed("deep.wild.test", "http")


async def test_a_sandbox_that_waited_has_the_network_of_its_command(world: World, net: Net) -> None:
    """Its listeners are handed over with the command."""
    proxy = EgressProxy(names=NAMES, prefix=world.prefix)
    launcher = PreparedLauncher(proxy=proxy)
    try:
        for turn in range(2):
            status = "curl -sS -o /dev/null -w '%{http_code}' http://denied.test/"
            ended = await shell(launcher, net.terms(), f"curl -sS http://allowed.test/where; {status}")
            assert ended.output == f"allowed.test at {PUBLIC}\n403"
            assert launcher.used == turn + 1
    finally:
        await launcher.close()


async def test_bodies_of_both_kinds_arrive_and_nothing_of_the_proxys_own_headers_does(net: Net) -> None:
    ended = await net.shell(
        "head -c 300000 /dev/zero > big; curl -sS -H Expect: --data-binary @big http://allowed.test/;"
        "curl -sS -H 'Transfer-Encoding: chunked' -H Expect: --data-binary @big http://allowed.test/;"
        "curl -sS -U user:secret -H 'Connection: X-Mine' -H 'X-Mine: 1' http://allowed.test/headers"
    )
    assert ended.output.splitlines() == ["300000 bytes", "300000 bytes", "Host", "User-Agent", "Accept", "Connection"]


async def test_python_and_git_reach_an_allowed_name_with_no_setting_of_their_own(net: Net) -> None:
    ended = await net.python(
        "import ssl, urllib.request as u\n"
        "print(u.urlopen('http://allowed.test/where').read().decode(), end='')\n"
        "c = ssl.create_default_context(cafile='ca.pem')\n"
        "print(u.urlopen('https://allowed.test/where', context=c).read().decode(), end='')\n"
    )
    assert ended.output == f"allowed.test at {PUBLIC}\n" * 2
    ended = await net.shell(
        "for url in http https; do GIT_SSL_CAINFO=$PWD/ca.pem git clone -q $url://allowed.test/repository.git $url &&"
        " git -C $url log --format=%s; done"
    )
    assert ended.output.splitlines() == ["the first", "the first"], ended.output


@pytest.mark.parametrize("variables", ["", "env -u https_proxy -u HTTPS_PROXY -u all_proxy -u ALL_PROXY "])
async def test_pip_installs_from_an_allowed_index_with_the_variables_and_without(net: Net, variables: str) -> None:
    pip = f"{variables}{PYTHON} -m pip install -q --disable-pip-version-check --no-deps --target here --cert ca.pem"
    ended = await net.shell(
        f"{pip} --index-url https://allowed.test/simple demo && PYTHONPATH=here {PYTHON} -m demo;"
        f"{pip} --retries 0 --index-url https://denied.test/simple demo > log 2>&1 || echo refused"
    )
    assert ended.output.splitlines()[-2:] == ["installed", "refused"], ended.output
    assert net.allowed("allowed.test", "transparent" if variables else "connect")
    assert net.refused("denied.test", "names" if variables else "connect")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
async def test_node_which_heeds_no_variable_reaches_an_allowed_name_alone(net: Net) -> None:
    ended = await run(
        net.launcher, net.terms(limits={"memory_mb": 0}), "node", "-e",
        "const get = name => fetch(`http://${name}/where`).then(r => r.text(), e => e.cause.code + '\\n');"
        "(async () => process.stdout.write(await get('allowed.test') + await get('denied.test')))()",
    )  # fmt: skip
    assert ended.output.splitlines() == [f"allowed.test at {PUBLIC}", "ENOTFOUND"]


async def test_a_program_that_knows_no_proxy_reaches_an_allowed_name_on_an_allowed_port(net: Net) -> None:
    ended = await net.python(
        "import socket, ssl\n"
        f"with socket.create_connection(('allowed.test', {RAW_PORT})) as s:\n"
        "    s.sendall(b'x' * 500000); s.shutdown(socket.SHUT_WR)\n"
        "    got = 0\n"
        "    while data := s.recv(65536): got += len(data)\n"
        "print(got)\n"
        "c = ssl.create_default_context(cafile='ca.pem')\n"
        "with c.wrap_socket(socket.create_connection(('allowed.test', 443)), server_hostname='allowed.test') as s:\n"
        "    s.sendall(b'GET /where HTTP/1.0\\r\\nHost: allowed.test\\r\\n\\r\\n')\n"
        "    print(s.makefile().read().splitlines()[-1])\n"
        "print(socket.getaddrinfo('deep.wild.test', 80, type=socket.SOCK_STREAM)[0][4][0].startswith('198.18.'))\n"
    )
    assert ended.output.splitlines() == ["500000", f"allowed.test at {PUBLIC}", "True"]
    assert net.allowed("allowed.test", "transparent")


async def test_a_listed_address_is_reached_by_number_and_by_name(net: Net) -> None:
    ended = await net.shell(
        f"curl -sS http://{PRIVATE}/where; curl -sS --noproxy '*' http://{PRIVATE}/where; curl -sS http://listed.test/where;"
        "curl -sS --noproxy '*' http://listed.test/where",
        "listed.test", "10.99.0.0/16",
    )  # fmt: skip
    at = f"at {PRIVATE}"
    assert ended.output.splitlines() == [f"{PRIVATE} {at}", f"{PRIVATE} {at}", f"listed.test {at}", f"listed.test {at}"]


# --- what is not ------------------------------------------------------------------------------------------------------
CONTROL = "curl -sS http://allowed.test/where > control;"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://denied.test/", "the allow list does not have it"),
        ("http://wild.test/", "the allow list does not have it"),
        ("http://bad.wild.test/", "the deny list has it"),
        (f"http://allowed.test:{DENIED_PORT}/", "the allow list does not have it"),
        ("http://rebind.test/", "the address 127.0.0.1 is loopback"),
        ("http://mixed.test/", f"the address {PRIVATE} is private"),
        ("http://private.test/", f"the address {PRIVATE} is private"),
        (f"http://{PRIVATE}/", f"the address {PRIVATE} is private"),
        (f"http://{PUBLIC}/", "the allow list does not have it"),
        (f"http://[{PUBLIC_V6}]/", "the allow list does not have it"),
        ("http://169.254.169.254/", "is link-local and metadata"),
        ("http://[::ffff:127.0.0.1]/", "the address 127.0.0.1 is loopback"),
        ("http://[::1]/", "is unspecified, loopback"),
    ],
)
async def test_what_the_lists_do_not_have_is_refused_by_all_three_protocols_and_logged(
    net: Net, url: str, why: str
) -> None:
    said = "-s -o /dev/null -w '%{http_code} %{http_connect}\\n'"
    proxied = f"-g --noproxy none.test -x http://127.0.0.1:3128 {said} {url}"
    ended = await net.shell(
        CONTROL + f"cat control; curl {proxied}; curl -p {proxied}; curl -g -s --noproxy none.test --socks5-hostname "
        f"127.0.0.1:3128 {url}; echo $?"
    )
    assert ended.output.splitlines() == [f"allowed.test at {PUBLIC}", "403 000", "000 403", "97"], ended.output
    refused = [d for d in net.decisions() if d["decision"] == "refused"]
    assert [d["via"] for d in refused] == ["http", "connect", "socks5"]
    assert all(why in str(d["reason"]) for d in refused), refused
    assert {(d["workspace_id"], d["process_id"]) for d in refused} == {("test", "test")}
    counts = dict(await net.counts(4))
    assert counts == {("http", "allowed"): 1, ("http", "refused"): 1, ("connect", "refused"): 1,
                      ("socks5", "refused"): 1}  # fmt: skip


async def test_a_redirect_to_a_denied_host_is_refused_like_any_request_for_it(net: Net) -> None:
    ended = await net.shell(
        "curl -sS -o /dev/null -w '%{http_code}\\n' http://allowed.test/redirect; curl -sSL http://allowed.test/redirect"
    )
    first, second = ended.output.splitlines()
    assert first == "302"
    assert "denied.test" in second
    assert "the allow list does not have it" in second
    assert net.refused("denied.test", "http")


async def test_a_second_request_on_a_plain_connection_reaches_nobody(net: Net) -> None:
    ended = await net.python(
        "import socket\n"
        "one = b'GET http://allowed.test/where HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'\n"
        "two = b'GET http://denied.test/where HTTP/1.1\\r\\nHost: denied.test\\r\\n\\r\\n'\n"
        "for data in (one, one + two):\n"
        "    s = socket.create_connection(('127.0.0.1', 3128)); s.sendall(data)\n"
        "    try: got = s.makefile('rb').read()\n"
        "    except ConnectionError: got = b''\n"
        "    print(got.count(b' at '), b'denied.test' in got)\n"
    )
    first, second = ended.output.splitlines()
    assert first == "1 False", "the control: one request is answered"
    assert second in ("0 False", "1 False")


async def test_programs_without_a_proxy_reach_nothing_else(net: Net) -> None:
    """By number, by a name that is not allowed, on a port that is not, by IPv6, by UDP."""
    ended = await net.python(
        "import socket\n"
        "def tcp(host, port):\n"
        "    try:\n"
        "        with socket.create_connection((host, port), 10) as s:\n"
        "            s.sendall(b'GET /where HTTP/1.0\\r\\n\\r\\n'); return s.recv(10) and 'reached'\n"
        "    except OSError as e: return type(e).__name__\n"
        "print(tcp('allowed.test', 80))\n"
        f"for host, port in (('denied.test', 80), ('{PUBLIC}', 80), ('allowed.test', {DENIED_PORT}),"
        f" ('{PUBLIC_V6}', 80), ('rebind.test', 80), ('private.test', 80), ('198.18.9.9', 80), ('127.0.0.1', 80)):\n"
        "    answer = tcp(host, port)\n"
        "    print(host, answer if answer == 'reached' else 'not')\n"
    )
    first, *others = ended.output.splitlines()
    assert first == "reached", "the control"
    assert len(others) == 8
    assert all(line.endswith(" not") for line in others), ended.output
    assert net.refused("denied.test", "names") == "the lists do not have the name; nothing was looked up"
    assert "loopback" in net.refused("rebind.test", "transparent")
    assert "private" in net.refused("private.test", "transparent")
    assert net.refused("198.18.9.9", "transparent") == "the address stands for no name"
    assert net.refused("127.0.0.1", "transparent")


async def test_no_datagram_leaves_and_a_name_carries_nothing_outside(net: Net) -> None:
    ended = await net.python(
        "import socket, urllib.request as u\n"
        "count = lambda: u.urlopen('http://allowed.test/datagrams').read().decode().strip()\n"
        "before = count()\n"
        "for target in ('93.184.215.14', '198.18.0.2', '8.8.8.8'):\n"
        "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    try: s.sendto(b'secret', (target, 53)); s.sendto(b'secret', (target, 53))\n"
        "    except OSError as e: pass\n"
        "for name in ('c2VjcmV0.tunnel.example', 'c2VjcmV0.allowed.test', 'c2VjcmV0.wild.test'):\n"
        "    try: socket.getaddrinfo(name, 80)\n"
        "    except OSError: pass\n"
        "print(before, count())\n"
    )
    assert ended.output == "1 1\n", "the one is the recorder's own"
    assert net.refused("c2VjcmV0.tunnel.example", "names")


@pytest.mark.covers("NET-3")
async def test_a_proxy_that_the_caller_names_gives_no_authority(net: Net) -> None:
    ended = await net.shell(
        CONTROL
        + f"cat control; HTTP_PROXY=http://{PUBLIC}:80 http_proxy=http://{PUBLIC}:80 curl -s http://denied.test/;"
        f"echo $?; curl -s -x socks5h://{PRIVATE}:80 http://denied.test/; echo $?;"
        "curl -s -U admin:admin -o /dev/null -w '%{http_code}\\n' http://denied.test/;"
        "env -u http_proxy -u HTTP_PROXY -u ALL_PROXY -u all_proxy curl -s --noproxy '*' http://denied.test/; echo $?"
    )
    assert ended.output.splitlines() == [f"allowed.test at {PUBLIC}", "7", "7", "403", "6"], ended.output


async def test_an_empty_allow_list_reaches_nothing(net: Net) -> None:
    what = net.terms().model_copy(update={"network_allow": ()})
    ended = await shell(net.launcher, what, "curl -s -o /dev/null -w '%{http_code}\\n' http://allowed.test/; "
                        "curl -s --noproxy '*' http://allowed.test/; echo $?")  # fmt: skip
    assert ended.output.splitlines() == ["403", "6"]
    assert net.refused("allowed.test", "http") == "the allow list is empty"


async def test_an_allowed_server_that_is_not_there_is_told_from_one_that_is_refused(net: Net) -> None:
    code = "-s -o /dev/null -w '%{http_code}\\n'"
    ended = await net.shell(f"curl {code} http://allowed.test:{CLOSED_PORT}/; curl {code} http://nowhere.test/")
    assert ended.output.splitlines() == ["502", "502"]


async def test_two_workspaces_share_a_proxy_and_neither_has_the_others_list(net: Net) -> None:
    other = tempfile.mkdtemp(prefix="codespace-test-")
    try:
        two = net.terms("denied.test", workspace_id="two", root=other)
        script = (
            "for name in allowed denied; do curl -s -o /dev/null -w '%{http_code} ' http://$name.test/where;"
            "curl -s -o /dev/null -w '%{http_code} ' --noproxy '*' http://$name.test/where; done"
        )
        one, both = await asyncio.gather(net.shell(script), shell(net.launcher, two, script))
    finally:
        await asyncio.to_thread(shutil.rmtree, other)
    assert one.output.split() == ["200", "200", "403", "000"]
    assert both.output.split() == ["403", "000", "200", "200"]
    assert {d["workspace_id"] for d in net.decisions()} == {"test", "two"}


# --- the sandbox around it --------------------------------------------------------------------------------------------
async def test_the_namespace_holds_loopback_alone_and_the_report_says_what_is_active(net: Net) -> None:
    ended = await net.shell(
        "cat /proc/net/dev /proc/net/route | grep -c : ; grep -o 'lo:' /proc/net/dev;"
        "env | grep -i proxy | LC_ALL=C sort"
    )
    assert ended.isolation.network == "enabled"
    lines = ended.output.splitlines()
    assert lines[:2] == ["1", "lo:"]
    assert lines[2:] == [f"{name}={value}" for name, value in sorted(
        (name, "localhost,127.0.0.1,::1" if "no_" in name.lower() else "http://127.0.0.1:3128")
        for plain in ("all_proxy", "http_proxy", "https_proxy", "no_proxy") for name in (plain, plain.upper())
    )]  # fmt: skip
    report = await net.launcher.report(net.terms())
    states = {p.name: (p.state, p.required) for p in report.protections}
    assert report.available
    assert report.network_enforcement == "enforced"
    assert states["managed_proxy"] == ("active", True)
    assert states["network_transparent"] == ("active", False)
    assert "managed_proxy" not in {p.name for p in (await net.launcher.report(terms(net.root))).protections}


async def test_more_ports_than_listeners_leave_the_proxy_alone_and_the_report_says_so(net: Net) -> None:
    many = tuple(f"allowed.test:{port}" for port in range(10000, 10200))
    what = net.terms("allowed.test", *many)
    found = {p.name: p for p in (await net.launcher.report(what)).protections}["network_transparent"]
    assert found.state == "degraded"
    assert "128 different ports" in str(found.detail)
    script = "curl -sS http://allowed.test/where; curl -s --noproxy '*' http://allowed.test/; echo $?"
    ended = await shell(net.launcher, what, script)
    assert ended.output.splitlines() == [f"allowed.test at {PUBLIC}", "6"]


async def test_a_kernel_that_refuses_the_addresses_leaves_the_variables_and_the_report_says_so(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A device that is not there: the one refusal that every kernel can be asked for.
    monkeypatch.setattr(netlink, "LOOPBACK_INDEX", 99)
    found = {p.name: p for p in (await net.launcher.report(net.terms())).protections}["network_transparent"]
    assert found.state == "degraded"
    assert "the kernel refuses" in str(found.detail)
    ended = await net.shell("curl -sS http://allowed.test/where; curl -s --noproxy '*' http://allowed.test/; echo $?")
    assert ended.output.splitlines() == [f"allowed.test at {PUBLIC}", "6"]
    assert ended.isolation.protections["network_transparent"] == "degraded"


async def test_the_proxys_end_takes_the_network_and_nothing_else_and_the_next_command_has_one_again(net: Net) -> None:
    script = "curl -sS http://allowed.test/where; read line; curl -s http://allowed.test/; echo $?; echo on"
    process = await start(net.launcher, net.terms(), ("/bin/sh", "-c", script))
    await read_until(process, f"at {PUBLIC}\n".encode())
    await net.counts(1)
    pid = net.proxy.pid
    assert pid is not None
    pidfd = os.pidfd_open(pid)
    os.kill(pid, 9)
    async with asyncio.timeout(BOUND_S):
        await _readable(pidfd)
    os.close(pidfd)
    assert process.stdin_fd is not None
    os.write(process.stdin_fd, b"\n")
    process.close_stdin()
    ended = await finish(process)
    assert ended.output.splitlines() == ["7", "on"], "connection refused, and the command went on"
    ended = await net.shell("curl -sS http://allowed.test/where")
    assert ended.output == f"allowed.test at {PUBLIC}\n"
    assert net.proxy.pid not in (pid, None)
    assert await net.counts(2) == {("http", "allowed"): 2}, "nothing is counted twice, or forgotten"


async def _readable(fd: int) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().add_reader(fd, event.set)
    try:
        await event.wait()
    finally:
        asyncio.get_running_loop().remove_reader(fd)


@pytest.mark.covers("BOX-5")
@pytest.mark.parametrize("prefix", [("/nonexistent/program",), ("/bin/false",), ("/bin/sh", "-c", "kill -9 $$", "sh")])
async def test_without_a_proxy_no_command_starts(workspace: str, prefix: tuple[str, ...]) -> None:
    launcher = LinuxSandboxLauncher(proxy=EgressProxy(prefix=prefix))
    await launcher.start()
    try:
        what = terms(workspace, network="enabled", network_allow=("allowed.test",))
        with pytest.raises(LaunchFailed) as failed:
            await start(launcher, what, ("/bin/sh", "-c", "echo > ran"))
        assert (failed.value.stage, failed.value.errno) == ("network", "ENETDOWN")
        assert await asyncio.to_thread(os.listdir, workspace) == []
        report = await launcher.report(what)
        assert not report.available
        assert {p.name for p in report.protections if p.state == "off"} >= {"managed_proxy"}
        assert (await run(launcher, terms(workspace), "/bin/echo", "ran")).output == "ran\n", "restricted goes on"
    finally:
        await launcher.close()


async def test_a_launcher_that_was_joined_without_a_proxy_refuses(
    launcher: LinuxSandboxLauncher, workspace: str
) -> None:
    with pytest.raises(SandboxUnavailable) as failure:
        await start(launcher, terms(workspace, network="enabled"), ("/bin/true",))
    assert failure.value.feature == "managed_proxy"


async def test_a_command_that_holds_too_many_connections_is_bounded_and_another_is_served(net: Net) -> None:
    hold = (
        "import socket, select\n"
        "held = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(320)]\n"
        "refused = 0\n"
        "while refused < 320 - 256: refused = len(select.select(held, [], [])[0])\n"
        "print('holding', flush=True)\n"
        "input()\n"
        "print(len(select.select(held, [], [], 0)[0]))\n"
    )
    holding = await start(net.launcher, net.terms(), (PYTHON, "-c", hold))
    await read_until(holding, b"holding\n")
    assert (await net.shell("curl -sS http://allowed.test/where")).output == f"allowed.test at {PUBLIC}\n"
    assert holding.stdin_fd is not None
    os.write(holding.stdin_fd, b"\n")
    assert (await finish(holding)).output == "64\n"
    counts = await net.counts(65)
    assert (counts["proxy", "refused"], counts["http", "allowed"]) == (64, 1)


async def test_connections_that_send_bodies_in_tiny_chunks_are_ended_with_a_reason_and_another_is_served(
    net: Net,
) -> None:
    # Its server keeps the connection open and reads: what ends it is the proxy alone.
    flood = (
        "import socket, threading\n"
        "head = b'POST http://allowed.test/ HTTP/1.1\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'\n"
        "def send(s):\n"
        "    try:\n"
        "        while True: s.sendall(b'1\\r\\na\\r\\n' * 4096)\n"
        "    except OSError: pass\n"
        "held = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(16)]\n"
        "for s in held: s.sendall(head)\n"
        "threads = [threading.Thread(target=send, args=(s,)) for s in held]\n"
        "for t in threads: t.start()\n"
        "print('flooding', flush=True)\n"
        "for t in threads: t.join()\n"
        "print('ended')\n"
    )
    flooding = await start(net.launcher, net.terms(), (PYTHON, "-c", flood))
    await read_until(flooding, b"flooding\n")
    other = net.terms(workspace_id="two")
    ended = await run(net.launcher, other, "/bin/sh", "-c", "curl -sS http://allowed.test/where")
    assert ended.output == f"allowed.test at {PUBLIC}\n"
    pid = net.proxy.pid
    assert (await finish(flooding)).output == "ended\n"
    assert "chunks_too_small" in net.refused("allowed.test", "http")
    assert net.proxy.pid == pid


async def test_forty_commands_leave_no_descriptor_behind(net: Net) -> None:
    await net.shell("true")
    pid = net.proxy.pid
    before = len(await asyncio.to_thread(os.listdir, "/proc/self/fd"))
    ours = f"/proc/{pid}/fd"
    # The proxy cannot be looked into by an ordinary user; root counts its descriptors too.
    for _ in range(20):
        await asyncio.gather(*(net.shell("curl -s http://denied.test/ > /dev/null") for _ in range(2)))
    assert len(await asyncio.to_thread(os.listdir, "/proc/self/fd")) == before
    if os.geteuid() == 0:
        last = await start(net.launcher, net.terms(), ("/bin/cat",))
        count = len(await asyncio.to_thread(os.listdir, ours))
        last.kill()
        await finish(last)
        assert count < 40
    assert net.proxy.pid == pid
