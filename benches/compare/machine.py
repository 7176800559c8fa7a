"""The machine of the figures: processor, memory, disk, versions, and the bytes written to the disk meanwhile."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

SECTOR_BYTES = 512
"""The unit of the kernel's counters, for any sector size of the disk."""


def file_system(folder: Path) -> str:
    """Return the type of the file system of `folder`."""
    found, longest = "unknown", -1
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        mount = mount.encode().decode("unicode_escape")
        if folder.is_relative_to(mount) and len(mount) > longest:
            found, longest = kind, len(mount)
    return found


def device_bytes_written(folder: Path) -> int | None:
    """Return the bytes written to the disk of `folder` since boot, or None if the system does not count them."""
    number = folder.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    if not counters.is_file():
        return None
    return int(counters.read_text().split()[6]) * SECTOR_BYTES


def free_bytes(folder: Path) -> int:
    """Return the free bytes for this user on the disk of `folder`."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def describe(folder: Path) -> dict[str, str]:
    """Return facts about the machine and its tools that a reader of the figures needs."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{pages / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "file system": file_system(folder),
        "rust": _first_line(["rustc", "--version"]),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _first_line(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.splitlines()[0] if done.stdout else "unknown"
