"""The image of `examples/container/Containerfile`, built and run without an engine: `make container-check`.

The base is made by debootstrap, buildah carries out the Containerfile on it (`--isolation chroot`), and
namespaces run the result as an engine would. `EXECSERVER_IMAGE_FOLDER` names a folder that keeps the base for
the next run. Needs root, debootstrap, buildah and Debian's and Python's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.container import checks
from tests.container.container import Container
from tests.docs.pages import ROOT

CONTAINERFILE = ROOT / "examples/container/Containerfile"
CERTIFICATES = "/run/host-certificates.crt"
BASE, IMAGE = "localhost/base", "localhost/execserver"
SLOW = 3600

pytestmark = pytest.mark.timeout(SLOW)


class Image:
    """The built image.

    Args:
        folder: for base, image and build context; a base that is there is used again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if BASE not in self._buildah("images", "--format", "{{.Name}}").split():
            self._make_base()
        self._build()
        inspected = json.loads(self._buildah("inspect", "--type", "image", IMAGE))
        self.config: dict[str, Any] = inspected["Docker"]["config"]
        self._container = self._buildah("from", IMAGE).strip()
        self.root = Path(self._buildah("mount", self._container).strip())

    def close(self) -> None:
        self._buildah("rm", self._container)
        self._buildah("rmi", IMAGE)

    @property
    def environment(self) -> list[str]:
        return ["env", "-i", *self.config["Env"]]

    @property
    def as_user(self) -> list[str]:
        """A command that runs another as the image says: user, variables, folder."""
        uid, _, gid = self.config["User"].partition(":")
        user = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--inh-caps=-all"]
        return [*user, *self.environment, f"--chdir={self.config['WorkingDir']}"]

    @property
    def process_1(self) -> list[str]:
        return [*self.as_user, *self.config["Entrypoint"], *self.config["Cmd"]]

    def _make_base(self) -> None:
        base = self._folder / "base"
        _do("debootstrap", "--variant=minbase", _release(), str(base))
        made = self._buildah("from", "scratch").strip()
        self._buildah("add", "--quiet", made, str(base), "/")
        self._buildah("commit", "--quiet", made, BASE)
        self._buildah("rm", made)
        shutil.rmtree(base)

    def _build(self) -> None:
        context = self._folder / "context"
        shutil.rmtree(context, ignore_errors=True)
        for name in ("constraints.txt", "examples/container/healthcheck.py"):
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, context / name)
        _do("make", "dist", f"DIST={context}/dist")
        certificates = []
        if (file := os.environ.get("PIP_CERT")) is not None:  # a registry behind a certificate of the machine
            (self._folder / "pip.conf").write_text(f"[global]\ncert = {CERTIFICATES}\n")
            certificates = ["--volume", f"{file}:{CERTIFICATES}:ro"]
            certificates += ["--volume", f"{self._folder}/pip.conf:/etc/pip.conf:ro"]
        self._buildah(
            "bud", "--isolation", "chroot", "--format", "docker", "--from", BASE, "--tag", IMAGE,
            *certificates, "--file", str(CONTAINERFILE), str(context),
        )  # fmt: skip

    def _buildah(self, *arguments: str) -> str:
        places = ["--root", f"{self._folder}/storage", "--runroot", f"{self._folder}/run"]
        return _do("buildah", *places, "--storage-driver", "vfs", *arguments)


def _do(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _release() -> str:
    """The release that the Containerfile begins with: `FROM debian:bookworm-slim`."""
    first = next(line for line in CONTAINERFILE.read_text().splitlines() if line.startswith("FROM "))
    return first.partition(":")[2].removesuffix("-slim")


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    kept = os.environ.get("EXECSERVER_IMAGE_FOLDER")
    folder = Path(kept or tempfile.mkdtemp(prefix="image-", dir="/var/tmp"))
    image = Image(folder)
    yield image
    image.close()
    if not kept:
        shutil.rmtree(folder)


@pytest.fixture
def volumes(image: Image, tmp_path: Path) -> dict[str, Path]:
    """Fresh volumes, as an engine makes them: with owner and mode of the folder in the image."""
    made = {}
    for target in image.config["Volumes"]:
        inside = (image.root / target.lstrip("/")).stat()
        made[target] = tmp_path / target.replace("/", "-")
        made[target].mkdir()
        made[target].chmod(inside.st_mode & 0o7777)
        os.chown(made[target], inside.st_uid, inside.st_gid)
    return made


def start(image: Image, volumes: dict[str, Path], *flags: str, read_only: bool = False) -> Container:
    command = [*image.process_1, *flags]
    return Container(image.root, command, image.as_user, volumes, read_only=read_only)


def check_health(image: Image, container: Container) -> int:
    kind, *command = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    return container.run(*command).returncode


def test_it_names_its_licence_and_an_ordinary_user(image: Image) -> None:
    labels = image.config["Labels"]
    assert labels["org.opencontainers.image.title"] == "execserver"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert image.config["User"].split(":")[0] not in ("", "0")
    assert image.config["StopSignal"] == "SIGTERM"


def test_it_serves_reaps_confines_and_stops(image: Image, volumes: dict[str, Path]) -> None:
    with start(image, volumes) as container:
        assert container.said == "unix:///run/execserver/execserver.sock"
        assert check_health(image, container) == 0
        checks.check_life(container, "execserver")
        found = checks.check_doctor(container, "execserver")
        print("doctor:", found)
        assert found["sandbox"] == found["bubblewrap"] == found["state folder"] == "ok"
        checks.check_confined(container, "/opt/execserver/bin/python", "/work")
        seconds = checks.check_stop(container, "execserver")
        print(f"stopped after {seconds:.2f} s")
    assert sorted(path.name for path in volumes["/var/lib/execserver"].iterdir())
    with start(image, volumes) as container:  # the next container has the same volumes
        assert check_health(image, container) == 0


@pytest.mark.parametrize(
    "flags",
    [["--require-sandbox"], ["--require-sandbox", "--bubblewrap", "/none", "--allow-landlock"]],
    ids=["bubblewrap", "landlock"],
)
def test_commands_are_confined_by_either_backend(
    image: Image, volumes: dict[str, Path], flags: Sequence[str]
) -> None:
    with start(image, volumes, *flags) as container:
        checks.check_confined(container, "/opt/execserver/bin/python", "/work")
        refused = container.run("execserver", "run", "--", "true")
        assert "require_sandbox" in refused.stderr
        code = "/opt/execserver/lib/made"
        assert container.run("touch", code).returncode != 0  # its own user cannot change the program


def test_it_needs_no_place_to_write_but_its_volumes(image: Image, volumes: dict[str, Path]) -> None:
    with start(image, volumes, "--require-sandbox", read_only=True) as container:
        assert container.run("touch", "/home/agent/file").returncode != 0
        assert check_health(image, container) == 0
        checks.check_confined(container, "/opt/execserver/bin/python", "/work")
        assert checks.check_doctor(container, "execserver")["spool folder"] == "ok"


def test_another_command_can_be_given(image: Image, volumes: dict[str, Path]) -> None:
    command = [*image.as_user, *image.config["Entrypoint"], "--version"]
    with Container(image.root, command, image.as_user, volumes) as container:
        assert container.said.startswith("execserver ")


if __name__ == "__main__":
    sys.exit(pytest.main(["-q", "-s", "-o", "python_files=image_check.py", __file__]))
