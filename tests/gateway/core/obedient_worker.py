"""A small worker program for the link's tests: `… MODE DIRECTORY --socket PATH --liveness-fd N --max-processes M`.

It writes a line of JSON a start to DIRECTORY/starts. MODE: `good` serves; `dies` exits with 3 at once; `mute` connects
and says nothing; `stranger` first lets another process connect; `stubborn` serves and ignores goodbyes and SIGTERM;
`twice` is good once and dies at every later start. A started command is `sleep`, which holds the liveness descriptor
and outlives its worker, so that the test decides when it dies.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from runner.wire import Connection, Role

DESCRIPTION = {
    "environment": {
        "kind": "host",
        "exec_supported": True,
        "file_read_supported": True,
        "file_write_supported": True,
    },
    "isolation": {
        "command_sandbox": "linux-sandbox",
        "available": True,
        "network_enforcement": "enforced",
        "protections": [],
    },
    "grep_available": False,
    "patch_available": False,
}


def main() -> int:
    mode, directory = sys.argv[1], Path(sys.argv[2])
    options = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    starts = directory / "starts"
    count = len(starts.read_text().splitlines()) if starts.exists() else 0
    facts = {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "environment": dict(os.environ),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
        "socket_directory_mode": os.stat(Path(options["--socket"]).parent).st_mode & 0o777,
        "options": options,
    }
    with starts.open("a") as file:
        file.write(json.dumps(facts) + "\n")
    if mode == "dies" or (mode == "twice" and count):
        return 3
    if mode == "stranger":
        connect = f"import socket; s=socket.socket(1); s.connect({options['--socket']!r}); print(s.recv(1))"
        subprocess.run([sys.executable, "-c", connect], check=True, stdout=subprocess.DEVNULL)
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(options["--socket"])
        if mode == "mute":
            signal.pause()
        serve(end, f"run-{count}", int(options["--liveness-fd"]), directory, stubborn=mode == "stubborn")
    return 0


def serve(end: socket.socket, instance_id: str, liveness_fd: int, directory: Path, *, stubborn: bool) -> None:
    wire = Connection(Role.WORKER)
    wire.send_hello(instance_id)
    end.sendall(wire.data_to_send())
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while data := end.recv(1 << 16):
        for event in wire.receive_data(data):
            request_id = getattr(event, "request_id", None)
            if request_id is not None:
                answer(wire, request_id, event, instance_id, liveness_fd, directory)
        if not wire.is_closed:
            end.sendall(wire.data_to_send())
    while stubborn:
        signal.pause()


def answer(wire: Connection, request_id: int, event: Any, instance_id: str, liveness_fd: int, directory: Path) -> None:
    if event.method == "describe":
        wire.send_result(request_id, {**DESCRIPTION, "runner_instance_id": instance_id})
    elif event.method == "list_processes":
        wire.send_result(request_id, {"processes": []})
    elif event.method == "start_process":
        child = subprocess.Popen(["sleep", "1000"], pass_fds=(liveness_fd,), start_new_session=True)
        (directory / "child").write_text(str(child.pid))
        started = {"process_id": event.params["process_id"], "started_at_utc": "2024-01-02T03:04:05Z"}
        wire.send_result(request_id, started)


if __name__ == "__main__":
    sys.exit(main())
