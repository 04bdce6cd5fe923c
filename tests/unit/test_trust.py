"""What decides who may connect is refused when another user could change it or put something in its place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from execprotocol.relay.key_files import KeyFileError, load_key_pair
from execprotocol.trust import UntrustedError, check_way, read_trusted
from execserver.relay.executor.allowed_clients import AllowedClients, AllowedClientsError
from execserver.relay.executor.identity import check_identity
from execserver.relay.executor.options import RemoteOptions
from execserver.relay.service.listening import RelayListenError, tls_context
from execserver.relay.service.settings import RelaySettings, StateDir, StateDirError
from execserver.relay.service.token_file import TokenFileError, TokenStore
from execserver.supervisor import config_file
from execserver.supervisor.activation import listener_on
from execserver.supervisor.listener import ListenError, UnixListener
from execserver.transports.authentication import (
    AuthenticationOptions,
    ConfigurationError,
    authenticator_from,
)
from tests.integration.http.certificates import make_authority
from tests.sandbox_user import NOBODY, NOT_ROOT, REPOSITORY

Use = Callable[[Path], None]
"""Something that reads a file, or makes one, that decides who may connect."""


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
    AllowedClients(path).read()


def read_key(path: Path) -> None:
    load_key_pair(path, create=True)


def read_relay_token(path: Path) -> None:
    place = RemoteOptions(remote="https://relay.example", environment_id="box", remote_token_file=str(path))
    check_identity(place, path.parent, {})


def relay_with(path: Path, certificate: Path, key: Path) -> None:
    settings = RelaySettings.parse(
        listen="https://0.0.0.0:0", state_dir=str(path.parent), tls_cert=str(certificate), tls_key=str(key)
    )
    tls_context(settings)


def read_tls_key(path: Path) -> None:
    relay_with(path, path.parent / "ca.pem", path)


def read_certificate(path: Path) -> None:
    relay_with(path, path, path.parent / "ca.key")


def use_relay_folder(path: Path) -> None:
    StateDir(path.parent / "relay").close()


def use_relay_tokens(path: Path) -> None:
    TokenStore(path.parent / "relay", create=True)


def listen(path: Path) -> None:
    path.unlink()
    listener = UnixListener(str(path))
    listener.bind()
    listener.close()


SECRETS = [read_token, read_secret, read_relay_token, read_tls_key]
OPEN_FILES = [read_settings, read_clients, read_certificate]
USES = [*SECRETS, *OPEN_FILES, read_key, listen, use_relay_folder, use_relay_tokens]
REFUSALS = (
    RelayListenError,
    StateDirError,
    TokenFileError,
    config_file.ConfigFileError,
    ConfigurationError,
    AllowedClientsError,
    KeyFileError,
    ListenError,
)


def file_for(use: Use, place: Path) -> Path:
    path = place / "file"
    if use in (read_tls_key, read_certificate):
        make_authority(place)
        path.write_bytes((place / ("ca.key" if use is read_tls_key else "ca.pem")).read_bytes())
    elif use is not read_key:
        path.write_text("#" * 40)
    if path.exists():
        path.chmod(0o600)
    return path


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user can enter: pytest's own is closed."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        yield place


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("writable", [".", ".."])
def test_a_folder_on_the_way_that_others_may_write_is_refused_with_owner_and_mode(
    use: Use, writable: str, place: Path
) -> None:
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


@pytest.mark.parametrize("use", [*SECRETS, *OPEN_FILES])
@pytest.mark.parametrize("mode", [0o666, 0o602, 0o620])
def test_a_file_that_others_may_write_is_refused(use: Use, mode: int, place: Path) -> None:
    path = file_for(use, place)
    path.chmod(0o644)
    use(path)
    path.chmod(mode)
    remedy = "600" if use in SECRETS else "go-w"
    with pytest.raises(
        REFUSALS,
        match=rf"file {path} of .* can be written by others \(mode {mode:04o}\): chmod {remedy} {path}",
    ):
        use(path)


@pytest.mark.parametrize("use", SECRETS)
@pytest.mark.parametrize("mode", [0o644, 0o604, 0o640])
def test_a_secret_that_others_may_read_is_refused_with_the_way_out(
    use: Use, mode: int, open_place: Path
) -> None:
    path = file_for(use, open_place)
    path.chmod(mode)
    with pytest.raises(
        REFUSALS, match=rf"file {path} of .* can be read by others \(mode {mode:04o}\): chmod 600 {path}"
    ):
        use(path)
    path.chmod(0o600)
    use(path)


def test_a_secret_behind_a_link_is_judged_where_it_lies(open_place: Path, place: Path) -> None:
    secret = file_for(read_token, open_place)
    secret.chmod(0o644)
    link = place / "link"
    link.symlink_to(secret)
    with pytest.raises(ConfigurationError, match=f"file {link} of .* can be read by others"):
        read_token(link)
    hidden = file_for(read_token, place)
    hidden.chmod(0o644)
    link = open_place / "link"
    link.symlink_to(hidden)
    read_token(link)


@pytest.mark.parametrize("use", [*SECRETS, *OPEN_FILES, read_key])
def test_a_name_with_two_dots_behind_a_link_is_followed_as_the_kernel_does(
    use: Use, place: Path, tmp_path: Path
) -> None:
    """`link/../file` is beside the folder that the link leads to, and not beside the link."""
    (place / "deeper").mkdir()
    path = file_for(use, place)
    (tmp_path / "link").symlink_to(place / "deeper")
    beside = Path(f"{tmp_path}/link/../file")
    use(beside)
    place.chmod(0o777)
    with pytest.raises(REFUSALS, match=f"folder {place} of .* can be written by others"):
        use(beside)
    assert path.exists()


def test_a_secret_in_a_folder_that_others_cannot_enter_is_not_read_by_them(open_place: Path) -> None:
    path = file_for(read_token, open_place)
    path.chmod(0o644)
    open_place.chmod(0o700)
    read_token(path)
    open_place.chmod(0o744)  # others may list it, and get no further
    read_token(path)
    open_place.chmod(0o710)
    with pytest.raises(ConfigurationError, match="can be read by others"):
        read_token(path)


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
def test_root_may_give_a_secret_to_a_service_by_its_group_and_not_to_all(open_place: Path) -> None:
    path = file_for(read_token, open_place)
    os.chown(path, 0, NOBODY)
    for mode, refused in ((0o640, False), (0o440, False), (0o644, True), (0o444, True), (0o660, True)):
        path.chmod(mode)
        done = as_ordinary_user(f"read_trusted({str(path)!r}, secret=True)")
        assert (done.returncode != 0) is refused, done.stderr
        if refused:
            assert f"UntrustedError: file {path} of root (uid 0) can be" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
@pytest.mark.parametrize("mode", ["0444", "0644"])
def test_secrets_as_containers_mount_them_are_taken(mode: str, open_place: Path) -> None:
    read_one = f"read_trusted({str(open_place / 'secret')!r}, secret=True)"
    mount = f"mount -t tmpfs -o mode=1777 none {open_place} && echo a-token > {open_place}/secret"
    set_mode = f"chmod {mode} {open_place}/secret"
    kubernetes = as_ordinary_user(read_one, f"{mount} && {set_mode} && mount -o remount,ro {open_place}")
    assert (kubernetes.returncode, kubernetes.stderr) == (0, "")
    writable = as_ordinary_user(read_one, f"{mount} && {set_mode}")
    assert "can be read by others" in writable.stderr
    docker = as_ordinary_user(
        "read_trusted('/run/secrets/token', secret=True)",
        f"mount -t tmpfs -o mode=755 none /run && mkdir /run/secrets && echo a-token > /run/secrets/token"
        f" && chmod {mode} /run/secrets/token",
    )
    assert (docker.returncode, docker.stderr) == (0, "")


def as_ordinary_user(statement: str, before: str = "true") -> subprocess.CompletedProcess[str]:
    """Run a statement as an ordinary user, after a script by root in mounts of its own."""
    program = [sys.executable, "-c", f"from execprotocol.trust import read_trusted; {statement}"]
    user = [sys.executable, "-I", f"{REPOSITORY}/tests/sandbox_user.py", str(NOBODY), str(NOBODY)]
    mounts = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{before}; exec "$@"', "sh"]
    return subprocess.run(
        [*mounts, *user, *program], cwd="/", text=True, capture_output=True, timeout=30, check=False
    )


@pytest.mark.parametrize("use", [*SECRETS, *OPEN_FILES, read_key])
def test_what_is_no_regular_file_is_refused_at_once(use: Use, place: Path) -> None:
    path = file_for(use, place)
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    with pytest.raises(REFUSALS, match=f"{path} is no regular file"):
        use(path)


def test_a_file_that_is_too_long_is_refused(place: Path) -> None:
    path = place / "token"
    path.write_bytes(b"x" * 11)
    path.chmod(0o600)
    assert read_trusted(str(path), limit=11) == b"x" * 11
    with pytest.raises(UntrustedError, match=f"{path} has more than 10 bytes"):
        read_trusted(str(path), limit=10)


@pytest.mark.parametrize("token", ["x", "12345", " short \n", "é"])
def test_a_token_that_can_be_tried_out_is_refused(token: str, place: Path) -> None:
    path = place / "token"
    path.write_text(token)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"at least 6 bytes, better 32: .*token_urlsafe\(32\)"):
        read_token(path)
    path.write_text("random")
    read_token(path)


@pytest.mark.parametrize("mode", [0o777, 0o772, 0o1777, 0o755])
def test_a_passed_socket_that_could_be_replaced_is_told(
    mode: int, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place.chmod(mode)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / "s"))
        os.chmod(place / "s", 0o600)
        listening.listen()
        listener_on(os.dup(listening.fileno()), "s").close()
    told = capfd.readouterr().err
    assert (f"{place}/s could be replaced" in told) is (mode in (0o777, 0o772))


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
