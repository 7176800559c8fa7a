"""Compares the number of instructions of the hot paths with the numbers in ``benches/instructions.json``.

Noise changes every time, but not a number of instructions. If a number grew by more than 5 %, the code, a dependency or
the compiler has changed. Each case runs in a separate process: under callgrind for the instructions, and without it for
the time. The time is printed as a multiple of a copy and two checksums of 1 KiB, measured in turns with it.

``--update`` writes the new numbers. This is not a part of the tests. The exit status is 1 if a number grew, for a check
before a release.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "benches" / "instructions.json"
GROWN = 0.05


def main() -> int:
    """Count, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="only these")
    parser.add_argument("--update", action="store_true", help="write what is counted")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("bench-check: skipped: valgrind is not installed", file=sys.stderr)
        return 0
    program = build(ROOT / "target", {})
    # valgrind hides the kernel page from which rustix reads the time. Through libc, it is found.
    watched = build(ROOT / "target" / "valgrind", {"RUSTFLAGS": "--cfg=rustix_use_libc"})
    known = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.exists() else {"instructions": {}}
    names = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    if unknown := set(given.cases) - set(names):
        parser.error(f"there is no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    found = {}
    grown = []
    print(f"{'case':<20}{'instructions':>14}{'committed':>12}{'change':>9}{'time':>12}{'x limit':>9}")
    for name in given.cases or names:
        timed = json.loads(subprocess.run([program, name], check=True, capture_output=True, text=True).stdout)
        found[name] = counted(watched, name)
        before = known["instructions"].get(name)
        change = None if before is None else found[name] / before - 1
        told = "new" if change is None else f"{change:+.1%}"
        was = "-" if before is None else f"{before:,}"
        ratio = timed["ns"] / timed["limit_ns"]
        print(f"{name:<20}{found[name]:>14,.0f}{was:>12}{told:>9}{timed['ns']:>9,.0f} ns{ratio:>9.2f}")
        if change is not None and change > GROWN:
            grown.append(f"{name} by {change:.1%}")
    if machine() != known.get("machine", machine()):
        print(f"\nThe committed counts are of {known['machine']}; this is {machine()}. Other versions count otherwise.")
    if given.update:
        counts = {name: round(count) for name, count in (known["instructions"] | found).items() if name in names}
        text = json.dumps({"machine": machine(), "instructions": counts}, indent=2)
        COMMITTED.write_text(f"{text}\n", encoding="utf-8")
        return 0
    if grown:
        print(f"\nGrown by more than {GROWN:.0%}: {', '.join(grown)}")
    return 1 if grown else 0


def build(target: Path, settings: dict[str, str]) -> Path:
    """Build the cases into a folder."""
    subprocess.run(
        ["cargo", "build", "--release", "--locked", "-q", "-p", "mqstore-bench", "--bin", "mqstore-instructions"],
        check=True,
        cwd=ROOT,
        env=os.environ | settings | {"CARGO_TARGET_DIR": str(target)},
    )
    return target / "release" / "mqstore-instructions"


def counted(program: Path, name: str) -> float:
    """Count the instructions of one operation."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=*measured*", f"--callgrind-out-file={out}"]
        ran = subprocess.run([*command, program, name], check=True, capture_output=True, text=True)
        totals = re.search(r"^(?:totals|summary): (\d+)", out.read_text(encoding="utf-8"), re.MULTILINE)
    if totals is None or int(totals[1]) == 0:
        msg = f"callgrind saw nothing of {name}"
        raise RuntimeError(msg)
    return int(totals[1]) / json.loads(ran.stdout)["operations"]


def machine() -> str:
    """Return the parts of the environment on which the counts depend."""
    rust = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return f"{platform.machine()}, rustc {rust.split()[1]}, {' '.join(platform.libc_ver())}"


if __name__ == "__main__":
    sys.exit(main())
