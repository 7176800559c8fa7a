"""The exit statuses of the command line, and how it leaves a pipe that nobody reads any more."""

from __future__ import annotations

import os
import sys

CLEAN, PROBLEMS, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130


def abandon_stdout() -> None:
    """Gives up standard output, whose reader is gone."""
    # Otherwise the interpreter's own flush at exit would complain.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
