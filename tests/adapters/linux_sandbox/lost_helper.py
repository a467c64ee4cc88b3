"""A helper that starts a command and dies before it says so: it answers plans, and to a run forks a child that is about
to exec, and exits, or stops with `--stop`. Stands in for the real one, whose moment between the two nobody can hit from
outside."""

import json
import os
import select
import signal
import socket
import sys


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    mode = sys.argv[sys.argv.index("--mode") + 1]
    connection.send(json.dumps({"hello": 1, "mode": mode}).encode())
    while True:
        message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 8)
        if not message:
            return
        request = json.loads(message.partition(b"\0")[0])
        if request["op"] == "plan":
            connection.send(json.dumps({"id": request["id"], "planned": request["plan_id"]}).encode())
            continue
        report, status, control = fds[-3:]
        if os.fork() == 0:
            connection.close()
            os.write(status, b'{"stage":"exec"}\n')
            os.close(report)
            # As PID 1 does: the end of the control pipe is the end of the runner.
            select.select([control], [], [])
            os._exit(0)
        if "--stop" in sys.argv:
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(1)


if __name__ == "__main__":
    main()
