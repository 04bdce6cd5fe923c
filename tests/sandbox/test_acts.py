"""Every act of the tables, under every policy that it is listed for, and without a sandbox."""

from __future__ import annotations

import pytest

from tests.sandbox.acts import FORBIDDEN, PERMITTED, POLICIES, Act, prepared, variables
from tests.sandbox.host import Done, Host
from tests.sandbox.profiles import READ_ONLY
from tests.sandbox_user import in_private_mounts


def name_of(act: Act) -> str:
    return act.name


def under_its_policies(host: Host, act: Act) -> dict[str, Done]:
    """Do it under all its policies at once, each in a tree of its own."""
    running = {}
    for policy in act.policies:
        tree = prepared(host)
        sandbox = tree.context(POLICIES[policy](tree))
        running[policy] = host.start(tree, act.argv, sandbox, env=variables(host, tree), tty=act.tty)
    return {policy: host.finish(process) for policy, process in running.items()}


def test_commands_run_as_the_user_of_the_daemon(anyones_host: Host) -> None:
    tree, script = anyones_host.tree(), "id -u; id -g; id -G"
    free = anyones_host.shell(tree, script)
    assert free.output.split()[:2] == [b"%d" % anyones_host.user.uid, b"%d" % anyones_host.user.gid]
    assert anyones_host.shell(tree, script, tree.context(READ_ONLY)).output == free.output


@pytest.mark.parametrize("act", FORBIDDEN, ids=name_of)
def test_forbidden_act_fails_in_the_sandbox(anyones_host: Host, act: Act) -> None:
    done = under_its_policies(anyones_host, act)
    worked = [policy for policy, each in done.items() if each.exit_code == 0]
    assert not worked, {policy: done[policy] for policy in worked}
    # A command that could not even begin proves nothing.
    assert not [each for each in done.values() if each.exit_code in (126, 127)], done
    assert {each.sandbox_type for each in done.values()} == {"linuxSeccomp"}


@pytest.mark.parametrize("act", FORBIDDEN, ids=name_of)
def test_forbidden_act_works_without_a_sandbox(host: Host, act: Act) -> None:
    if act.needs_root and not host.user.is_root:
        pytest.skip("only root can do it anyway, and the tests do not run as root")
    tree = prepared(host)
    argv = in_private_mounts(host.user, *act.argv)
    done = host.run(tree, argv, env=variables(host, tree), tty=act.tty)
    assert done.exit_code == 0, done


@pytest.mark.parametrize("act", PERMITTED, ids=name_of)
def test_permitted_act_works_in_the_sandbox(anyones_host: Host, act: Act) -> None:
    done = under_its_policies(anyones_host, act)
    assert {each.exit_code for each in done.values()} == {0}, done
