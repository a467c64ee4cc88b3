"""A world of servers in a network namespace of its own, for network tests. Prints one JSON line, then serves.

    python -m tests.adapters.linux_sandbox.network_world CERTIFICATE KEY SITE

PUBLIC is an address of the internet outside, PRIVATE one of a private range, and the namespace's loopback has a server
too: what a proxy in this namespace must not be led to is there to be reached. SITE is a directory of files for GET.
Ends with its standard input.
"""

from __future__ import annotations

import ctypes
import http.server
import json
import os
import socket
import ssl
import sys
import threading
from typing import ClassVar

from pyroute2 import IPRoute

PUBLIC, PUBLIC_V6, PRIVATE = "93.184.215.14", "2606:2800:21f::14", "10.99.0.1"
RAW_PORT, CLOSED_PORT, DENIED_PORT = 8022, 8999, 8081
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def enter_namespace() -> None:
    """Root needs no user namespace; an ordinary user does, and keeps its own id in it."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    flags = _CLONE_NEWNET | (_CLONE_NEWUSER if uid else 0)
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if uid:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    with IPRoute() as route:
        route.link("set", index=1, state="up")
        for address in (PUBLIC, PRIVATE):
            route.addr("add", index=1, address=address, prefixlen=32)
        route.addr("add", index=1, address=PUBLIC_V6, prefixlen=128)


class Site(http.server.SimpleHTTPRequestHandler):
    """GET /where tells host and address; /redirect leads to another name; /datagrams counts; else files."""

    protocol_version = "HTTP/1.1"
    datagrams: ClassVar[list[bytes]] = []
    directory: str

    def do_GET(self) -> None:
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "http://denied.test/where")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/where":
            self._say(f"{self.headers['Host']} at {self.connection.getsockname()[0]}\n")
        elif self.path == "/datagrams":
            self._say(f"{len(self.datagrams)}\n")
        elif self.path == "/headers":
            self._say("".join(f"{name}\n" for name in self.headers))
        else:
            super().do_GET()

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while length := int(self.rfile.readline(), 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self._say(f"{len(body)} bytes\n")

    def _say(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve_http(address: str, port: int, tls: ssl.SSLContext | None = None) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = type("Server", (http.server.ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
    server = kind((address, port), Site)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def serve_echo(address: str, port: int) -> None:
    listener = socket.create_server((address, port))

    def echo(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def accept() -> None:
        while True:
            threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def record_datagrams(address: str, port: int) -> None:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((address, port))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"the control", (address, port))
    # The first one is its own, so a count of 1 shows that the recorder works and that nobody else sent anything.
    Site.datagrams.append(receiver.recv(512))

    def record() -> None:
        while True:
            Site.datagrams.append(receiver.recv(512))

    threading.Thread(target=record, daemon=True).start()


def main(certificate: str, key: str, site: str) -> None:
    enter_namespace()
    os.chdir(site)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    for address in (PUBLIC, PUBLIC_V6, PRIVATE, "127.0.0.1"):
        serve_http(address, 80)
    serve_http(PUBLIC, DENIED_PORT)
    serve_http(PUBLIC, 443, tls)
    serve_echo(PUBLIC, RAW_PORT)
    record_datagrams(PUBLIC, 53)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:4])
