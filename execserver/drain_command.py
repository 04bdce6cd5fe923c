"""`execserver drain`: ask the supervisor of a running daemon to drain, and wait for the last session.

Uses the standard library only, and none of the daemon's settings: a container runs it before its end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from execserver.supervisor.control_socket import ControlClient, Message, control_sockets
from execserver.supervisor.packets import ChannelError

POLL_SECONDS = 0.1

REPORT_SECONDS = 10.0
"""How long the server may take to report its sessions, if it is being restarted."""

NO_DAEMON = 69
"""The exit status if no daemon runs, as that of the client's commands."""


class DrainError(Exception):
    """The daemon cannot be asked; the text is for people."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def run(url: str | None, environment: Mapping[str, str], *, wait: float | None, cancel: bool) -> int:
    """Drain a daemon, or cancel its drain; returns the exit status.

    Args:
        url: of the daemon; None: the only one that runs.
        environment: the variables, which name the folders of running instances.
        wait: seconds to wait until no session is left; None: do not wait.
        cancel: cancel the drain instead.
    """
    try:
        client = _find(url, environment)
        try:
            if cancel:
                _ask(client, "cancel")
                return 0
            return _drain(client, wait)
        finally:
            client.close()
    except DrainError as error:
        print(f"execserver: {error}", file=sys.stderr)  # noqa: T201
        return error.status
    except (OSError, ChannelError) as error:
        print(f"execserver: the daemon does not answer: {error}", file=sys.stderr)  # noqa: T201
        return 1


def _drain(client: ControlClient, wait: float | None) -> int:
    answer = _ask(client, "drain")
    began = time.monotonic()
    while answer is not None:
        sessions = answer["sessions"]
        if not answer["draining"]:
            raise DrainError("the drain was cancelled")
        if sessions == 0 or (wait is None and sessions is not None):
            print(f"draining: {_amount(sessions)}")  # noqa: T201
            return 0
        limit = max(wait or 0.0, REPORT_SECONDS) if sessions is None else wait or 0.0
        if time.monotonic() - began >= limit:
            raise DrainError(f"{_amount(sessions)} after {limit:g} s; the daemon is still draining")
        time.sleep(POLL_SECONDS)
        answer = _ask(client, "status")
    print("the service has ended")  # noqa: T201
    return 0


def _amount(sessions: object) -> str:
    if sessions is None:
        return "an unknown number of sessions is left"
    return "1 session is left" if sessions == 1 else f"{sessions or 'no'} sessions are left"


def _ask(client: ControlClient, kind: str) -> Message | None:
    answer = client.ask(kind)
    if answer is not None and "error" in answer:
        raise DrainError(str(answer["error"]))
    return answer


def _find(url: str | None, environment: Mapping[str, str]) -> ControlClient:
    """The only running daemon, or that of the URL.

    Raises:
        DrainError: there is none, or there are several.
    """
    paths, searched = control_sockets(environment)
    found: list[tuple[ControlClient, list[str]]] = []
    for path in paths:
        try:
            client = ControlClient(path)
        except OSError:
            continue  # of a daemon that is gone, or of another user
        answer = _ask(client, "status")
        if answer is not None and isinstance(answer["urls"], list):
            found.append((client, answer["urls"]))
    matching = [each for each in found if url is None or url in each[1]]
    # A daemon over stdio is meant only if there is no other.
    serving = [each for each in matching if url is not None or "stdio" not in each[1]] or matching
    for each in found:
        if len(serving) != 1 or each is not serving[0]:
            each[0].close()
    if len(serving) == 1:
        return serving[0][0]
    if serving:
        listed = ", ".join(" ".join(urls) for _, urls in serving)
        raise DrainError(f"several daemons run: name one with --url. Their URLs: {listed}")
    missing = "no daemon runs here" if url is None else f"no daemon with the URL {url} runs here"
    raise DrainError(
        f"{missing} as this user; its record would be in {' or '.join(searched)}. Run this command with the "
        "daemon's XDG_STATE_HOME, HOME or RUNTIME_DIRECTORY",
        NO_DAEMON,
    )
