"""The exit statuses of the command line, and the handling of a closed pipe."""

from __future__ import annotations

import os
import sys

CLEAN, PROBLEMS, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130


def abandon_stdout() -> None:
    """Replaces standard output, whose reader has closed the pipe."""
    # Prevents an error of the interpreter's flush at exit.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
