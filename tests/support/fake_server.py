"""A server for the supervisor's tests, with the duties of `execserver.supervisor.server_channel` and no more.

Run by its path: `fake_server.py serve [--listen …] [--fake-exit N] [--fake-journal FILE] [--fake-stuck]`.

--fake-exit N     exit with N before `ready`
--fake-after N    send `ready` and exit with N
--fake-stopping   send `stopping` before that
--fake-journal F  append one JSON line for what happens
--fake-run PROGRAM  run this shell program (tagged, number 7) before `ready`
--fake-stuck      do not answer `stop`
--fake-late       send `ready` only after a `reload` was answered
--fake-beats N    send N beats after `ready`
--fake-reload-error TEXT  answer every `reload` with this error
--fake-reloads N  answer when N reloads are asked for, all of them at once
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import subprocess
import sys

from execserver.descendants import kill_descendants, own_limit, set_own_tag, tag_value
from execserver.supervisor.packets import wait_for_hello
from execserver.supervisor.server_channel import ServerChannel, open_supervisor_pidfd


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("--listen", action="append")
    parser.add_argument("--fake-exit", type=int)
    parser.add_argument("--fake-after", type=int)
    parser.add_argument("--fake-stopping", action="store_true")
    parser.add_argument("--fake-journal", default="/dev/null")
    parser.add_argument("--fake-run")
    parser.add_argument("--fake-stuck", action="store_true")
    parser.add_argument("--fake-late", action="store_true")
    parser.add_argument("--fake-beats", type=int, default=0)
    parser.add_argument("--fake-reload-error")
    parser.add_argument("--fake-reloads", type=int, default=1)
    options = parser.parse_args()

    def journal(event: str, **details: object) -> None:
        # Never created here: whoever reads it made it, and may be gone with its folder.
        descriptor = os.open(options.fake_journal, os.O_WRONLY | os.O_APPEND)
        with open(descriptor, "w") as file:
            file.write(json.dumps({"event": event, **details}) + "\n")

    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if not wait_for_hello(os.environ):
        return 0
    channel, hello = ServerChannel.from_environment()
    supervisor = open_supervisor_pidfd(hello.supervisor_pid)
    journal(
        "hello",
        pid=os.getpid(),
        session=os.getsid(0),
        cwd=os.getcwd(),
        tag=own_limit(),
        instance=hello.instance,
        supervisor=hello.supervisor_pid,
        nofile=[hello.nofile_soft, *resource.getrlimit(resource.RLIMIT_NOFILE)],
        urls=[listener.url for listener in hello.listeners],
        kinds=[listener.kind for listener in hello.listeners],
        beat_seconds=hello.beat_seconds,
        record=hello.record,
        descriptors=sorted(int(name) for name in os.listdir("/proc/self/fd")),
        environment=sorted(os.environ),
        stdin=os.readlink("/proc/self/fd/0"),
        same_output=os.fstat(1) == os.fstat(2),
    )
    if options.fake_exit is not None:
        sys.stdout.write("this must not reach the supervisor's stdout\n")
        return int(options.fake_exit)
    if options.fake_run:
        set_own_tag(tag_value(hello.instance, 7))
        subprocess.Popen(["/bin/sh", "-c", options.fake_run], start_new_session=True)
    if options.fake_late:
        while channel.receive() != {"type": "reload"}:
            continue
        channel.send({"type": "reloaded", "error": None})
    channel.send({"type": "ready"})
    if options.fake_stopping:
        channel.send({"type": "stopping"})
    if options.fake_after is not None:
        return int(options.fake_after)
    for _ in range(options.fake_beats):
        channel.send({"type": "beat"})

    stdio = next((listener.stdio for listener in hello.listeners if listener.stdio), None)
    watched = [channel.fileno(), supervisor, *([stdio[0]] if stdio else [])]
    reloads = 0
    while True:
        readable = select.select(watched, [], [])[0]
        if supervisor in readable:
            journal("orphaned", survivors=kill_descendants(hello.instance, roots=[os.getpid()]))
            return 1
        if channel.fileno() in readable:
            message = channel.receive()
            if message == {"type": "stop"}:
                journal("stop")
                if not options.fake_stuck:
                    return 0
            if message == {"type": "reload"}:
                journal("reload")
                reloads += 1
                if reloads == options.fake_reloads:
                    for _ in range(reloads):
                        channel.send({"type": "reloaded", "error": options.fake_reload_error})
                    reloads = 0
        if stdio and stdio[0] in readable:
            data = os.read(stdio[0], 4096)
            if not data:
                channel.send({"type": "stopping"})
                return 0
            os.write(stdio[1], data.upper())


if __name__ == "__main__":
    sys.exit(main())
