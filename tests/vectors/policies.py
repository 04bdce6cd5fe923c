"""The policies that the vectors name, each as its permissions and the tree that it needs."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.sandbox.host import Host, Tree
from tests.sandbox.profiles import (
    DISABLED,
    MINIMAL,
    READ_ONLY,
    READ_ROOT,
    WORKSPACE,
    WORKSPACE_WITH_NETWORK,
    WORKSPACE_WITHOUT_TMP,
    WRITE_WORKSPACE,
    at,
    glob,
    restricted,
    special,
    unrestricted,
)
from tests.support.wire import Json


def _deny(tree: Tree) -> Json:
    return restricted(
        READ_ROOT,
        WRITE_WORKSPACE,
        at(tree.out / "secret.txt", "deny"),
        at(tree.out / "sdir", "deny"),
        at(tree.ws / "denied.txt", "deny"),
        glob("**/.env"),
    )


PERMISSIONS: dict[str, Callable[[Tree], Json]] = {
    "ro": lambda tree: READ_ONLY,
    "ws": lambda tree: WORKSPACE,
    "ws_notmp": lambda tree: WORKSPACE_WITHOUT_TMP,
    "wsnet": lambda tree: WORKSPACE_WITH_NETWORK,
    "full": lambda tree: unrestricted(),
    "disabled": lambda tree: DISABLED,
    "external": lambda tree: {"type": "external", "network": "restricted"},
    "min": lambda tree: MINIMAL,
    "readroot": lambda tree: restricted(special("minimal", "read"), WRITE_WORKSPACE, at(tree.out, "read")),
    "deny": _deny,
    "rosub": lambda tree: restricted(
        READ_ROOT, WRITE_WORKSPACE, special("project_roots", "read", subpath="ro")
    ),
    "rwinro": lambda tree: restricted(
        READ_ROOT, WRITE_WORKSPACE, at(tree.ws / "ro", "read"), at(tree.ws / "ro/rw", "write")
    ),
    "rwindeny": lambda tree: restricted(
        READ_ROOT, WRITE_WORKSPACE, at(tree.ws / "dd", "deny"), at(tree.ws / "dd/rw", "write")
    ),
    "missingroot": lambda tree: restricted(READ_ROOT, WRITE_WORKSPACE, at(tree.out / "notthere", "write")),
    "ws_hard": lambda tree: WORKSPACE,
    "ws_sym": lambda tree: WORKSPACE,
    "ws_gitfile": lambda tree: WORKSPACE,
    "ws_kill": lambda tree: WORKSPACE,
    "ws_daemon": lambda tree: WORKSPACE,
}


def sandbox(policy: str, tree: Tree) -> Json:
    """The `sandbox` member for a policy; `None` for `none`."""
    return None if policy == "none" else tree.context(PERMISSIONS[policy](tree))


def prepare(host: Host, policy: str) -> Tree:
    """A fresh tree, with what the policy speaks of."""
    tree = host.tree()
    match policy:
        case "rosub" | "rwinro":
            (tree.ws / "ro/rw").mkdir(parents=True)
            tree.add({"ws/ro/f0": "f0\n"})
        case "rwindeny":
            (tree.ws / "dd/rw").mkdir(parents=True)
            tree.add({"ws/dd/f0": "f0\n"})
        case "ws_hard":
            os.link(tree.out / "readable.txt", tree.ws / "hard")
        case "ws_sym":
            tree.add({}, {"ws/prelink": str(tree.out)})
        case "ws_gitfile":
            for name in ("hooks/sample", "HEAD", "config"):
                (tree.ws / ".git" / name).unlink()
            (tree.ws / ".git/hooks").rmdir()
            (tree.ws / ".git").rmdir()
            tree.add({"ws/.git": f"gitdir: {tree.ws}/realgit\n", "ws/realgit/HEAD": "ref: refs/heads/main\n"})
        case _:
            pass
    return tree


def placeholders(host: Host, tree: Tree) -> dict[str, str]:
    """What stands for the names in braces."""
    return {
        "WS": str(tree.ws),
        "OUT": str(tree.out),
        "OUTBASE": tree.out.name,
        "BASE": str(tree.base),
        "PORT": str(host.listeners.port),
        "ABS": host.listeners.abstract,
        "SOCK": host.listeners.path,
        "VPID": str(host.victim.pid),
    }
