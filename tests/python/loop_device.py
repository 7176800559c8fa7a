"""File systems that a test can make fail: images on loop devices, and tmpfs. Needs root on Linux."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SHUTDOWN = 0x8004587D
"""The ioctl that makes ext4, xfs and f2fs behave as after a power loss: `_IOR('X', 125, __u32)`."""
WITHOUT_LOG_FLUSH = 2
FREEZE, THAW = 0xC0045877, 0xC0045878


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    if done.returncode:
        msg = f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}"
        raise OSError(msg)
    return done.stdout


class Disk:
    """A mounted file system."""

    def __init__(self, folder: Path, kind: str, size: int, options: str = "") -> None:
        self.kind = kind
        self.image = folder / f"{kind}.img"
        self.path = folder / f"{kind}.disk"
        self.options = options
        self.size = size
        self.path.mkdir()
        if kind != "tmpfs":
            with self.image.open("wb") as file:
                file.truncate(size)
            if kind == "ext4":
                # Reserve no blocks for root, because root runs this test.
                run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", self.image)
            else:
                run("mkfs." + kind, "-q", self.image)
        self.mount()

    def mount(self) -> None:
        if self.kind == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={self.size}", "none", self.path)
        else:
            loop = ["loop", self.options] if self.options else ["loop"]
            run("mount", "-t", self.kind, "-o", ",".join(loop), self.image, self.path)

    def unmount(self) -> None:
        run("umount", self.path)

    def remount(self) -> None:
        self.unmount()
        self.mount()

    def _ioctl(self, request: int, argument: int) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, request, struct.pack("I", argument))
        finally:
            os.close(folder)

    def cut_the_power(self) -> None:
        """From this call on, nothing reaches the device, not even the journal of the file system."""
        self._ioctl(SHUTDOWN, WITHOUT_LOG_FLUSH)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Makes every sync hang, as on a device that has stopped answering."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, FREEZE, 0)
            try:
                yield
            finally:
                fcntl.ioctl(folder, THAW, 0)
        finally:
            os.close(folder)

    def fail_to_read_only(self) -> None:
        """Makes ext4 detect an error, after which it is read-only (`errors=remount-ro`)."""
        device = run("findmnt", "-n", "-o", "SOURCE", self.path).strip()
        (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("1")

    def fill(self) -> Path:
        """Uses all the free space."""
        filler = self.path / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
                        os.fsync(file.fileno())
        return filler

    def remove(self) -> None:
        for command in (("umount", self.path), ("umount", "-l", self.path)):
            with contextlib.suppress(OSError):
                run(*command)
                break
        self.image.unlink(missing_ok=True)


@cache
def obstacle(kind: str) -> str | None:
    """The reason why this machine cannot mount and break a file system of this kind, or None if it can."""
    if sys.platform != "linux":
        return "loop devices and their ioctls are Linux's"
    if os.geteuid() != 0:
        return "only root may mount"
    for tool in ("mount", "umount", "findmnt", *([] if kind == "tmpfs" else [f"mkfs.{kind}"])):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    with tempfile.TemporaryDirectory() as folder:
        try:
            disk = Disk(Path(folder), kind, 320 << 20 if kind == "xfs" else 32 << 20)
        except OSError as error:
            return f"this system lets nobody mount {kind}: {error}"
        try:
            if kind != "tmpfs":
                disk.cut_the_power()
        except OSError as error:
            return f"{kind} cannot be shut down here: {error}"
        finally:
            disk.remove()
    return None
