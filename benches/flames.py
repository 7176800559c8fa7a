"""The time of the hot paths as flame graphs for benches/RESULTS.md.

``make bench-flames`` builds with function names and frame pointers, records each path with perf, and draws
``benches/plots/flame-CASE.svg`` with inferno (`cargo install inferno`). Only this target needs perf and inferno.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLOTS = ROOT / "benches" / "plots"
SECONDS = 5
SAMPLES_A_SECOND = 499
HOTTEST = {
    "append-dispatched": "An append of 1 KiB with its queue entry and two index entries, by one thread",
    "read": "A queue read in order, 1 KiB, each record checked",
    "compact": "A compaction, 1 KiB: scan, decision, survivors written and synced",
}


def main() -> int:
    """Build, record, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(HOTTEST), help=f"{', '.join(HOTTEST)} by default")
    given = parser.parse_args()
    missing = [name for name in ("perf", "inferno-collapse-perf", "inferno-flamegraph") if shutil.which(name) is None]
    if missing:
        print(f"bench-flames: skipped: {', '.join(missing)} not on the PATH", file=sys.stderr)
        return 0
    program = build()
    PLOTS.mkdir(exist_ok=True)
    for case in given.cases:
        draw(program, case)
    return 0


def build() -> Path:
    """Build a program that only repeats one case, with the debug information for stacks."""
    target = ROOT / "target" / "flames"
    flags = {"RUSTFLAGS": "-C force-frame-pointers=yes", "CARGO_PROFILE_RELEASE_DEBUG": "1"}
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "mqstore-bench"]
    command += ["--bin", "mqstore-instructions", "--target-dir", str(target)]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | flags | {"CARGO_PROFILE_RELEASE_STRIP": "none"})
    return target / "release" / "mqstore-instructions"


def draw(program: Path, case: str) -> None:
    """Record one case, and draw its stacks."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "perf.data")
        record = ["perf", "record", "-q", "-F", str(SAMPLES_A_SECOND), "-g", "-o", str(data)]
        subprocess.run([*record, program, case, str(SECONDS)], check=True)
        script = subprocess.run(["perf", "script", "-i", str(data)], check=True, capture_output=True)
        folded = subprocess.run(["inferno-collapse-perf"], check=True, input=script.stdout, capture_output=True)
        title = HOTTEST.get(case, case)
        options = ["--title", title, "--minwidth", "0.5", "--deterministic", "--colors", "rust", "--width", "1200"]
        drawn = subprocess.run(["inferno-flamegraph", *options], check=True, input=folded.stdout, capture_output=True)
    path = PLOTS / f"flame-{case}.svg"
    path.write_bytes(without_scripts(drawn.stdout))
    print(path.relative_to(ROOT))


def without_scripts(drawing: bytes) -> bytes:
    """Remove inferno's scripts and their elements, because no script runs in a page of the documentation."""
    scripts = rb'<script.*?</script>| onload="init\(evt\)"|<text id="(?:details|unzoom|search|matched)".*?</text>'
    return re.sub(scripts, b"", drawing, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())
