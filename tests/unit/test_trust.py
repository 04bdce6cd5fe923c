"""What decides who may connect is refused when another user could change it or put something in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from execserver.relay.client_list import ClientList, ClientListError
from execserver.relay.key_files import KeyFileError, load_key_pair
from execserver.supervisor import config_file
from execserver.supervisor.listeners import ListenError, UnixListener
from execserver.transports.authentication import (
    AuthenticationOptions,
    ConfigurationError,
    authenticator_from,
)
from execserver.trust import UntrustedError, check_way
from tests.sandbox_user import NOBODY, NOT_ROOT


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder in a folder, both closed."""
    place = tmp_path / "outer" / "inner"
    place.mkdir(parents=True, mode=0o700)
    place.parent.chmod(0o700)
    return place


def read_settings(path: Path) -> None:
    config_file.read(str(path))


def read_token(path: Path) -> None:
    authenticator_from(
        AuthenticationOptions(ws_auth="capability-token", ws_token_file=path.name), path.parent
    )


def read_secret(path: Path) -> None:
    options = AuthenticationOptions(ws_auth="signed-bearer-token", ws_shared_secret_file=str(path))
    authenticator_from(options, "/")


def read_clients(path: Path) -> None:
    ClientList(path).read()


def read_key(path: Path) -> None:
    load_key_pair(path, create=True)


def listen(path: Path) -> None:
    path.unlink()
    listener = UnixListener(str(path))
    listener.bind()
    listener.close()


USES = [read_settings, read_token, read_secret, read_clients, read_key, listen]
REFUSALS = (
    config_file.ConfigFileError,
    ConfigurationError,
    ClientListError,
    KeyFileError,
    ListenError,
)


def file_for(use: object, place: Path) -> Path:
    path = place / "file"
    if use is not read_key:
        path.write_text("#" * 40)
        path.chmod(0o600)
    return path


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("writable", [".", ".."])
def test_a_folder_on_the_way_that_others_may_write_is_refused_with_owner_and_mode(
    use: object, writable: str, place: Path
) -> None:
    assert callable(use)
    path = file_for(use, place)
    use(path)  # it works where others only read
    path = file_for(use, place)
    place.parent.chmod(0o755)
    place.chmod(0o755)
    use(path)
    path = file_for(use, place)
    folder = (place / writable).resolve()
    folder.chmod(0o757)
    with pytest.raises(
        REFUSALS, match=rf"folder {folder} of .*uid {os.geteuid()}.* \(mode 0757\): chmod go-w"
    ):
        use(path)


@pytest.mark.parametrize("use", [read_settings, read_token, read_secret, read_clients])
@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_a_file_that_others_may_write_is_refused(use: object, mode: int, place: Path) -> None:
    assert callable(use)
    path = file_for(use, place)
    path.chmod(0o644)
    use(path)
    path.chmod(mode)
    with pytest.raises(REFUSALS, match=rf"file {path} of .* can be written by others \(mode {mode:04o}\)"):
        use(path)


def test_the_folders_that_a_link_leads_through_are_checked(place: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("outer/inner/../inner")
    check_way(f"{tmp_path}/link/file")
    place.chmod(0o702)
    with pytest.raises(UntrustedError, match=f"folder {place} "):
        check_way(f"{tmp_path}/link/file")


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_in_a_sticky_folder_what_another_user_made_is_refused_and_ours_is_not(place: Path) -> None:
    place.chmod(0o1777)
    (place / "file").touch()
    check_way(f"{place}/file")
    check_way(f"{place}/missing")
    os.chown(place / "file", NOBODY, NOBODY)
    with pytest.raises(UntrustedError, match=rf"{place}/file belongs to nobody .* in {place} \(mode 1777\)"):
        check_way(f"{place}/file")
    (place / "link").symlink_to("/etc")
    os.lchown(place / "link", NOBODY, NOBODY)
    with pytest.raises(UntrustedError, match=f"{place}/link belongs to nobody"):
        check_way(f"{place}/link/passwd")


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_a_folder_of_another_user_on_the_way_is_refused(place: Path) -> None:
    os.chown(place.parent, NOBODY, NOBODY)
    with pytest.raises(UntrustedError, match=rf"folder {place.parent} belongs to nobody \(uid {NOBODY}\)"):
        check_way(f"{place}/file")


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    check_way(f"{tmp_path}/a/b")
