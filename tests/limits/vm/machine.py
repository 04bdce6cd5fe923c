"""Run the tests of limits in a machine with cgroup v2: `python -m tests.limits.vm.machine`.

The machine has the installed kernel of `linux-image-cloud-amd64`, and the root file system of this host,
shared read-only by virtiofs, below a layer in its memory. Nothing that it writes stays. Exit status 0 if all
tests passed.
"""

from __future__ import annotations

import glob
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent

MODULES = ("virtio_pci", "virtiofs", "overlay")

PASSED = "LIMITS PASSED"

ACCELERATORS = os.environ.get("LIMITS_VM_ACCELERATOR", "kvm tcg").split()
"""Tried in this order. `tcg` emulates the processor, ten times slower, where KVM does not work."""

BOOT_SECONDS = 30.0
"""How long KVM may take for the first line of the machine's own, before it counts as not working."""

_MEMORY = "4G"

_FILES = 200_000
"""Descriptors of virtiofsd, one for each file that the machine knows."""


def main() -> int:
    """Start the machine, and print what it prints."""
    kernels = sorted(glob.glob("/boot/vmlinuz-*-cloud-amd64"))
    missing = [
        path for path in ("/dev/kvm", "/usr/lib/qemu/virtiofsd", "/bin/busybox") if not os.path.exists(path)
    ]
    if not kernels or missing:
        print(f"missing: {missing or 'a cloud kernel'}; say `make limits-vm-setup`, on a machine with KVM")
        return 1
    version = kernels[-1].removeprefix("/boot/vmlinuz-")
    with tempfile.TemporaryDirectory(prefix="limits-vm-") as name:
        folder = Path(name)
        command_line = f"console=ttyS0 panic=-1 execserver.start={HERE / 'guest.sh'} loglevel=3"
        command_line += f" execserver.tests={os.environ.get('LIMITS_VM_TESTS', 'test')}"
        command_line += f" execserver.users={os.environ.get('LIMITS_VM_USERS', 'root,ordinary')}"
        _make_initial_files(folder, version, command_line)
        for accelerator in ACCELERATORS:
            status = _run(folder, kernels[-1], command_line, accelerator)
            if status is not None:
                return status
            print(f"the machine does not start with {accelerator}")
        return 1


def _run(folder: Path, kernel: str, command_line: str, accelerator: str) -> int | None:
    """The exit status of the tests; None if the machine did not start."""
    socket = folder / accelerator
    files = subprocess.Popen(
        [
            *("/usr/lib/qemu/virtiofsd", f"--socket-path={socket}", f"--rlimit-nofile={_FILES}"),
            *("-o", "source=/", "-o", "sandbox=chroot"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not socket.exists():
        time.sleep(0.01)
    machine = subprocess.Popen(
        [
            *("qemu-system-x86_64", "-accel", accelerator, "-cpu", "max", "-smp", "2", "-m", _MEMORY),
            *(
                "-object",
                f"memory-backend-memfd,id=memory,size={_MEMORY},share=on",
                "-numa",
                "node,memdev=memory",
            ),
            *("-chardev", f"socket,id=files,path={socket}"),
            *("-device", "vhost-user-fs-pci,chardev=files,tag=root"),
            *("-kernel", kernel, "-initrd", str(folder / "initial"), "-append", command_line),
            *("-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert machine.stdout is not None
    started = passed = False
    try:
        if accelerator != "tcg" and not select.select([machine.stdout], [], [], BOOT_SECONDS)[0]:
            return None
        for line in machine.stdout:
            print(line, end="", flush=True)
            started = started or line.startswith("== users")
            passed = passed or line.strip() == PASSED
    finally:
        machine.kill()
        machine.wait()
        files.terminate()
        files.wait()
    return (0 if passed else 1) if started else None


def _make_initial_files(folder: Path, version: str, command_line: str) -> None:
    """An archive with busybox, the modules in the order in which they are loaded, and `init`."""
    root = folder / "root"
    for name in ("bin", "modules"):
        (root / name).mkdir(parents=True)
    order: dict[str, None] = {}
    for module in MODULES:
        listed = subprocess.run(
            ["modprobe", "-S", version, "--show-depends", module], check=True, capture_output=True, text=True
        )
        for line in listed.stdout.splitlines():
            kind, path, *_ = line.split()
            if kind == "insmod":
                order.setdefault(path)
    for path in order:
        (root / "modules" / Path(path).name).write_bytes(Path(path).read_bytes())
    (root / "modules/order").write_text("".join(f"{Path(path).name}\n" for path in order))
    (root / "cmdline").write_text(command_line)
    for source, target in (("/bin/busybox", "bin/busybox"), (HERE / "init", "init")):
        (root / target).write_bytes(Path(source).read_bytes())
        (root / target).chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    archive = subprocess.run(
        ["cpio", "-o", "-H", "newc"], cwd=root, input=names.encode(), capture_output=True, check=True
    )
    (folder / "initial").write_bytes(archive.stdout)


if __name__ == "__main__":
    sys.exit(main())
