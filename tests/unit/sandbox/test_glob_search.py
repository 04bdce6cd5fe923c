"""The search for matches of glob patterns, on a disk that commands can change."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from execprotocol.errors import InvalidRequest
from execserver.sandbox import glob_search
from execserver.sandbox.glob_search import Budget, expand


def found(pattern: str, *folders: str, depth: int | None = None, denies: bool = False) -> list[str]:
    return sorted(expand(pattern, folders, depth, Budget(), denies=denies))


def make(base: Path, *names: str) -> list[str]:
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("")
    return [str(base / name) for name in names]


def test_matches_are_found_hidden_or_not(base: Path) -> None:
    expected = make(base, ".env", ".hidden/.env", "a/b/c/.env")
    make(base, "a/env", ".envrc")
    assert found(f"{base}/**/.env") == sorted(expected)


def test_names_of_any_bytes_are_found(base: Path) -> None:
    for name in (b"two\nlines.key", b"\xff\xfe.key", b"[a]*?.key"):
        with open(os.path.join(os.fsencode(base), name), "w"):
            pass
    assert len(found(f"{base}/*.key")) == 3


def test_a_folder_that_matches_is_not_searched_any_further(base: Path) -> None:
    make(base, "x.d/y.d/z")
    assert found(f"{base}/**/*.d") == [f"{base}/x.d"]


def test_links_are_found_and_for_grants_not_followed(base: Path) -> None:
    make(base, "real/a.key")
    (base / "link").symlink_to("real")
    (base / "b.key").symlink_to("/nowhere")
    assert found(f"{base}/**/*.key") == [f"{base}/b.key", f"{base}/real/a.key"]


def denied(pattern: str, *folders: str, depth: int | None = None) -> list[str]:
    """The matches of a denying pattern, relative to the folder."""
    return sorted({os.path.realpath(path) for path in found(pattern, *folders, depth=depth, denies=True)})


def test_denials_follow_links_to_folders_by_chains_and_two_dots(base: Path) -> None:
    expected = make(base, "out/deep/.env", "far/.env")
    (base / "w/sub").mkdir(parents=True)
    (base / "hop").symlink_to("out")
    (base / "w/chain").symlink_to(base / "hop")
    (base / "w/sub/up").symlink_to("../../far")
    assert denied(f"{base}/w/**/.env") == sorted(expected)
    assert found(f"{base}/w/**/.env") == []


@pytest.mark.parametrize("end", ["", "/", "/."])
def test_the_end_of_a_links_text_hides_no_name_behind_it(base: Path, end: str) -> None:
    (base / "out/real").mkdir(parents=True)
    (base / "out/.envd").symlink_to("real")
    (base / "out/a").symlink_to(f".envd{end}")
    (base / "w").mkdir()
    (base / "w/notes").symlink_to(f"../out/a{end}")
    assert denied(f"{base}/w/**/.envd") == [f"{base}/out/real"]


@pytest.mark.parametrize("text", ["{out}/.env", "../out/.env", "hop", "{out}/dotted/../.env"])
def test_a_link_is_denied_by_the_names_that_it_leads_to(base: Path, text: str) -> None:
    secret, _ = make(base, "out/.env", "out/dotted/x")
    (base / "w").mkdir()
    (base / "w/hop").symlink_to("../out/.env")
    (base / "w/notes").symlink_to(text.format(out=base / "out"))
    assert denied(f"{base}/w/note{{s,}}/**") == []
    assert denied(f"{base}/w/*.env") == [secret]
    assert denied(f"{base}/w/**/.env") == [secret]


def test_a_folder_is_denied_by_the_name_that_a_link_leads_to(base: Path) -> None:
    key, other = make(base, "out/.ssh/id", "out/open/id")
    (base / "w").mkdir()
    (base / "w/keys").symlink_to(base / "out/.ssh")
    (base / "w/open").symlink_to(base / "out/open")
    assert denied(f"{base}/w/**/.ssh/**") == [key]
    assert denied(f"{base}/w/.ss?/*") == [key]
    assert denied(f"{base}/w/keys/*") == [key]
    assert denied(f"{base}/w/*/id") == sorted([key, other])


def test_links_in_circles_end_and_hide_nothing(base: Path) -> None:
    expected = make(base, "w/a/.env", "out/b/.env")
    for name, text in {"w/self": ".", "w/a/up": "..", "w/out": "../out", "out/back": "../w"}.items():
        (base / name).symlink_to(text)
    assert denied(f"{base}/w/**/.env") == sorted(expected)
    assert denied(f"{base}/w/*/*/*/.env") == sorted(expected)


def test_a_folder_is_searched_again_for_what_may_match_by_another_path(base: Path) -> None:
    (secret,) = make(base, "w/a/secret/x.key")
    (base / "w/link").symlink_to("a")
    (base / "w/b").mkdir()
    (base / "w/b/inner").symlink_to("../a/secret")
    assert denied(f"{base}/w/link/secret/*.key") == [secret]
    assert denied(f"{base}/w/b/**/*.key") == [secret]
    assert denied(f"{base}/w/{{a/none,b/inner}}/*.key") == [secret]


def test_links_that_lead_nowhere_or_into_proc_are_passed_over(base: Path) -> None:
    (secret,) = make(base, "w/.env")
    for name, text in {
        "gone": "/none",
        "loop": "loop",
        "cwd": "/proc/self/cwd",
        "fd": "/dev/fd",
        "other": "/proc/1/cwd",
    }.items():
        (base / "w" / name).symlink_to(text)
    assert denied(f"{base}/w/**/.env") == [secret]


def long_chain(base: Path, links: int) -> str:
    """A chain of links, each through two thousand names."""
    (base / "a").mkdir()
    (base / "end").mkdir()
    target = "end"
    for number in range(links):
        (base / f"hop{number}").symlink_to("a/../" * ((4000 - len(target)) // 5) + target)
        target = f"hop{number}"
    return f"{base}/{target}"


@pytest.mark.parametrize("links", [20, 60])
def test_links_that_take_long_to_follow_are_an_error_that_names_one(base: Path, links: int) -> None:
    chain = long_chain(base, links)
    (base / "w").mkdir()
    for number in range(200):
        (base / "w" / f"link{number}").symlink_to(chain)
    began = time.perf_counter()
    with pytest.raises(InvalidRequest, match=f"remove the symbolic link {base}/w/link"):
        denied(f"{base}/w/**/.env")
    assert time.perf_counter() - began < 5, "200 links take 10 s and more"


@pytest.mark.parametrize("target", ["/sys", "/sys/class", "/proc", "/proc/self/root/sys"])
def test_links_into_folders_of_the_kernel_are_not_searched(
    base: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 2)
    (base / "link").symlink_to(target)
    assert denied(f"{base}/**/.env") == []


def test_many_ordinary_links_cost_no_more_than_other_names(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 102)
    make(base, "store/package/file")
    (base / "w").mkdir()
    for number in range(100):
        (base / "w" / f"link{number}").symlink_to("../w/.././store/package")
    assert denied(f"{base}/w/**/.env") == []


def test_the_depth_counts_folders_behind_links_too(base: Path) -> None:
    one, two = make(base, "out/k", "out/a/k")
    (base / "w/x/y").mkdir(parents=True)
    (base / "w/x/y/deep").symlink_to(base / "out")
    assert denied(f"{base}/w/**/k", depth=3) == []
    assert denied(f"{base}/w/**/k", depth=4) == [one]
    assert denied(f"{base}/w/**/k", depth=5) == sorted([one, two])
    (base / "w/near").symlink_to(base / "out")  # The shorter way counts.
    assert denied(f"{base}/w/**/k", depth=2) == [one]


def test_a_link_to_too_much_is_an_error_that_names_it_and_the_pattern(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, *(f"out/{number}" for number in range(20)), "w/x")
    (base / "w/link").symlink_to("../out")
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 19)
    pattern = f"{base}/w/**/none"
    with pytest.raises(InvalidRequest) as refusal:
        denied(pattern)
    assert f"or remove the symbolic link {base}/w/link (the pattern is {pattern!r})" in str(refusal.value)
    (base / "w/link").unlink()
    assert denied(pattern) == []


def test_the_depth_is_counted_from_the_patterns_own_folder(base: Path) -> None:
    one, two, three = make(base, "w/k", "w/a/k", "w/a/b/k")
    assert found(f"{base}/w/**/k", depth=1) == [one]
    assert found(f"{base}/w/**/k", depth=2) == sorted([one, two])
    assert found(f"{base}/w/**/k") == sorted([one, two, three])


def test_a_pattern_without_a_folder_is_looked_for_where_it_is_told(base: Path) -> None:
    expected = make(base, "w/k", "v/k")
    make(base, "u/k")
    assert found("/**/k", f"{base}/w", f"{base}/v", f"{base}/w") == sorted(expected)
    assert found("/**/k") == []


def test_a_folder_that_is_missing_or_none_has_no_matches(base: Path) -> None:
    make(base, "file")
    (base / "loop").symlink_to("loop")
    for name in ("missing", "file", "loop"):
        assert found(f"{base}/{name}/*", denies=True) == []


def test_no_more_is_looked_at_than_can_match(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(base, "a.key", *(f"big/{number}" for number in range(50)))
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 10)
    assert found(f"{base}/*.key") == [f"{base}/a.key"]


def test_too_many_names_are_an_error_that_says_what_to_do(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, *(str(number) for number in range(20)))
    monkeypatch.setattr(glob_search, "MAX_SCANNED", 19)
    with pytest.raises(InvalidRequest, match="look at more than 19 names; set glob_scan_max_depth"):
        found(f"{base}/**/none")


def test_too_many_matches_are_an_error_that_says_what_to_do(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(base, *(f"{number}.key" for number in range(4)))
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 4)
    assert len(found(f"{base}/*.key")) == 4
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 3)
    with pytest.raises(InvalidRequest, match="match more than 3 paths; name their folder instead"):
        found(f"{base}/*.key")


def test_many_links_to_one_denied_file_are_one_match(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 3)
    targets = make(base, "out/a.key", "out/b.key")
    (base / "w").mkdir()
    links = [base / "w" / f"link{number}" for number in range(20)]
    for number, link in enumerate(links):
        link.symlink_to(f"../out/{'ab'[number % 2]}.key")
    assert denied(f"{base}/w/**/*.key") == targets
    make(base, "out/c.key", "out/d.key")
    (base / "w" / "c").symlink_to("../out/c.key")
    (base / "w" / "d").symlink_to("../out/d.key")
    with pytest.raises(InvalidRequest, match="match more than 3 paths"):
        denied(f"{base}/w/**/*.key")


def test_all_patterns_of_a_policy_share_one_budget(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(base, "a.key", "b.key")
    monkeypatch.setattr(glob_search, "MAX_MATCHES", 3)
    budget = Budget()
    assert len(list(expand(f"{base}/*.key", (), None, budget))) == 2
    with pytest.raises(InvalidRequest):
        list(expand(f"{base}/*.key", (), None, budget))


# -- folders made to hide files in


@pytest.fixture
def too_deep(base: Path) -> Iterator[Path]:
    """Nested folders, deeper than any path can name."""
    home = os.open(".", os.O_PATH)
    levels = 30
    os.chdir(base)
    try:
        for _ in range(levels):
            os.mkdir("n" * 200)
            os.chdir("n" * 200)
        with open(".env", "w"):
            pass
        yield base
    finally:
        os.chdir(base)
        for _ in range(levels):
            os.chdir("n" * 200)
        os.unlink(".env")
        for _ in range(levels):
            os.chdir("..")
            os.rmdir("n" * 200)
        os.fchdir(home)
        os.close(home)


def test_a_path_that_is_too_deep_is_an_error(too_deep: Path) -> None:
    with pytest.raises(InvalidRequest, match="paths are too long; remove these folders"):
        found(f"{too_deep}/**/.env", denies=True)


def test_too_many_folders_in_each_other_are_an_error_that_says_what_to_do(base: Path) -> None:
    (base / "/".join("n" * (glob_search.MAX_LEVELS - 1))).mkdir(parents=True)
    assert found(f"{base}/**/.env") == []
    (base / "/".join("n" * glob_search.MAX_LEVELS)).mkdir()
    with pytest.raises(InvalidRequest, match="128 folders in each other; set glob_scan_max_depth"):
        found(f"{base}/**/.env")
    assert found(f"{base}/**/.env", depth=5) == []


def test_an_error_with_a_folder_that_is_there_is_not_passed_over(base: Path) -> None:
    make(base, "a/.env")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # No descriptor is to be had for the listing.
    taken = [os.open("/", os.O_PATH)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        while True:
            try:
                taken.append(os.open("/", os.O_PATH))
            except OSError:
                break
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            found(f"{base}/**/.env")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert found(f"{base}/**/.env") == [f"{base}/a/.env"]


@pytest.fixture
def ordinary() -> Iterator[Path]:
    """A folder of an ordinary user, and the test runs as that user."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    as_root = os.geteuid() == 0
    if as_root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if as_root:
            os.seteuid(0)
        else:
            for path in folder.iterdir():
                path.chmod(0o700)
        shutil.rmtree(folder)


def test_a_folder_that_its_owner_has_closed_counts_as_a_match_for_a_denial(ordinary: Path) -> None:
    make(ordinary, "hidden/.env")
    (ordinary / "hidden").chmod(0)
    assert found(f"{ordinary}/**/.env", denies=True) == [f"{ordinary}/hidden"]
    assert found(f"{ordinary}/**/.env") == []


def test_a_folder_that_another_user_has_closed_does_not(ordinary: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a folder of another user")
    os.seteuid(0)
    make(ordinary, "hidden/.env")
    (ordinary / "hidden").chmod(0)
    os.seteuid(65534)
    assert found(f"{ordinary}/**/.env", denies=True) == []
