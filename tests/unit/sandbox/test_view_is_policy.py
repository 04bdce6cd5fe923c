"""For any tree and any rules, a sandbox allows exactly the access of the policy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from execserver.sandbox.policy import PROTECTED_NAMES, Access, Policy, Rule, depth, is_below
from tests.unit.sandbox.rig import DENY, READ, WRITE, Rig, policy

NAMES = ("a", "b", ".git")
FILES = ("f", ".codex")

# For each path that is given, a line: whether it can be read (r), and written to (w).
TRY = """
while IFS= read -r path; do
  r=- w=-
  if [ -d "$path" ]; then
    if ls "$path" >/dev/null 2>&1; then r=r; fi
    if mkdir "$path/probe" 2>/dev/null; then w=w; rmdir "$path/probe"; fi
  else
    if { read -r content <"$path"; } 2>/dev/null && [ "$content" = marked ]; then r=r; fi
    if { true >>"$path"; } 2>/dev/null; then w=w; fi
  fi
  echo "$r$w"
done <<'PATHS'
%s
PATHS
while IFS= read -r path; do
  if [ -e "$path" ]; then echo there
  elif mkdir -p "$path" 2>/dev/null; then echo made; rmdir "$path"
  else echo closed; fi
done <<'PATHS'
%s
PATHS
"""

# Afterwards: everything that a command might do to get folders out of the way.
ATTACK = """
while IFS= read -r path; do
  mv "$path" "$path.moved" 2>/dev/null; mkdir -p "$path" 2>/dev/null; rm -rf "$path.moved" 2>/dev/null
done <<'PATHS'
%s
PATHS
true
"""


@dataclass(frozen=True)
class Case:
    folders: tuple[str, ...]
    files: tuple[str, ...]
    rules: tuple[tuple[str, Access, bool], ...]
    """Relative paths, "" for the folder of it all and "/" for the root."""
    network: bool


_folders = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    folders = {""}
    for path in draw(st.lists(_folders, max_size=6)):
        folders |= {path.rsplit("/", count)[0] for count in range(path.count("/") + 1)}
    ordered = tuple(sorted(folders))
    files = {
        f"{folder}/{name}".lstrip("/")
        for folder, name in draw(
            st.lists(st.tuples(st.sampled_from(ordered), st.sampled_from(FILES)), max_size=6)
        )
    }
    there = (*ordered, *sorted(files))
    # Most rules are for what is there; some are for what is not.
    paths = st.one_of(st.sampled_from(there), st.sampled_from(there), st.sampled_from(there), _folders)
    chosen = draw(
        st.dictionaries(paths, st.tuples(st.sampled_from([DENY, READ, WRITE]), st.booleans()), max_size=6)
    )
    rules = [(path, access, skip) for path, (access, skip) in chosen.items()]
    if draw(st.booleans()):
        rules.append(("/", READ, False))
    return Case(ordered, tuple(sorted(files)), tuple(rules), draw(st.booleans()))


class Oracle:
    """The documented access to a path: the most specific rule, and protected names."""

    def __init__(self, limits: Policy) -> None:
        self._rules = {rule.path: rule.access for rule in limits.rules}
        explicit = dict(self._rules)
        for path, access in explicit.items():
            if access is WRITE and os.path.isdir(path):
                for name in PROTECTED_NAMES:
                    self._rules.setdefault(f"{path}/{name}", READ)

    def access(self, path: str) -> Access:
        above = [rule for rule in self._rules if is_below(path, rule)]
        return self._rules[max(above, key=depth)] if above else DENY

    def may_be_seen_into(self, path: str) -> bool:
        """Whether a folder is visible for more than for deeper paths."""
        return self.access(path) is not DENY


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    made = Rig(tmp_path_factory.mktemp("rig").resolve() / "state")
    yield made
    made.close()


def _made(case: Case, top: Path) -> Policy:
    shutil.rmtree(top, ignore_errors=True)
    for folder in case.folders:
        (top / folder).mkdir(parents=True, exist_ok=True)
    for file in case.files:
        (top / file).write_text("marked\n")
    rules = [
        Rule(path if path == "/" else f"{top}/{path}".rstrip("/"), access, skip)
        for path, access, skip in case.rules
    ]
    return policy(*rules, network=case.network, minimal=True)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_access_in_the_sandbox_equals_the_policy(rig: Rig, case: Case) -> None:
    top = Path(rig.state).parent / "top"
    limits = _made(case, top)
    oracle = Oracle(limits)
    there = [f"{top}/{path}".rstrip("/") for path in (*case.folders, *case.files)]
    missing = [rule.path for rule in limits.rules if not os.path.lexists(rule.path)]
    missing += [
        f"{rule.path}/{name}"
        for rule in limits.rules
        if rule.access is WRITE and os.path.isdir(rule.path)
        for name in PROTECTED_NAMES
        if not os.path.lexists(f"{rule.path}/{name}")
    ]
    script = TRY % ("\n".join(there), "\n".join(missing)) + ATTACK % "\n".join(sorted(there, key=depth))
    inodes = {path: os.lstat(path).st_ino for path in there}

    lines = rig.run(limits, script).output.splitlines()

    for path, seen in zip(there, lines, strict=False):
        expected = {DENY: "--", READ: "r-", WRITE: "rw"}[oracle.access(path)]
        if expected == "--" and seen == "r-" and os.path.isdir(path) and _leads_further(path, limits, rig):
            continue  # The names on the way to something open; there is nothing else in it.
        assert seen == expected, (path, limits.rules)
    skipped = {rule.path for rule in limits.rules if rule.skip_missing}
    for path, seen in zip(missing, lines[len(there) :], strict=False):
        if oracle.access(path) is not WRITE and path not in skipped:
            assert seen in ("closed", "there"), (path, limits.rules)
    assert len(lines) >= len(there) + len(missing)
    for path in there:
        if oracle.access(path) is not WRITE:
            assert os.lstat(path).st_ino == inodes[path], (path, limits.rules)
            if os.path.isfile(path):
                assert Path(path).read_text() == "marked\n", (path, limits.rules)
    for path in set(missing) - skipped:
        if oracle.access(path) is not WRITE:
            assert not os.path.lexists(path), (path, limits.rules)


def _leads_further(path: str, limits: Policy, rig: Rig) -> bool:
    """Whether something below, or our own state, is open: then a folder is there to hold it."""
    return any(
        rule.access is not DENY
        and rule.path != path
        and is_below(rule.path, path)
        and os.path.exists(rule.path)
        for rule in limits.rules
    ) and not any(rule.path == path for rule in limits.rules)
