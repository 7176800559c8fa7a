"""The command line: `mqstore VERB DIR ...`, also `python -m mqstore`.

Data goes to stdout, notes and errors go to stderr. Exit statuses of every verb:

::

    0    success, no problems
    1    problems found, or `get`, `lookup`, `cat`, `last` or `topics --hours` found no message
    2    wrong command line
    3    could not run: not a store, no such topic, locked, too damaged to read, or an error of the system
    130  Ctrl-C

Machine formats (`json`, `jsonl`) are stable and pure ASCII. They bypass the terminal library. This module imports
nothing large, so that `mqstore --version` answers quickly.
"""

from __future__ import annotations

import io
import sys
from typing import NoReturn

from mqstore.cli.status import CLEAN, FAILED, INTERRUPTED, USAGE, abandon_stdout


def main() -> NoReturn:
    """Runs the command line and exits the process with its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without UTF-8 gets escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs the command line with `arguments` and returns the exit status."""
    if arguments == ["--version"]:
        from mqstore import __version__

        return _guard(lambda: print(f"mqstore {__version__}"))
    return _guard(lambda: _application(arguments))


def _application(arguments: list[str]) -> None:
    try:
        # Each import adds the verbs of the file.
        from mqstore.cli import (  # noqa: F401
            bench,
            compact,
            export,
            groups,
            jobs,
            logic,
            progress,
            repair,
            spark,
            write,
        )
        from mqstore.cli.app import app
        from mqstore.cli.expiry import expire, reclaim, retention  # noqa: F401
        from mqstore.cli.info import processes  # noqa: F401
        from mqstore.cli.info import verbs as info_verbs  # noqa: F401
        from mqstore.cli.messages import verbs as messages_verbs  # noqa: F401
        from mqstore.cli.targets import archive, backup, follow, results  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("rich", "typer"):
            raise
        message = f"{error.name} is not installed: run pip install 'mqstore[cli]'"
        print(f"mqstore: {message}", file=sys.stderr)
        sys.exit(FAILED)
    app(args=arguments, prog_name="mqstore")


def _guard(work: object) -> int:
    """Runs `work`, flushes its output, and returns an exit status for any exception."""
    assert callable(work)
    status = CLEAN
    try:
        try:
            work()
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else CLEAN if left.code is None else FAILED
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe, as in `mqstore cat | head`.
        abandon_stdout()
    except Exception as error:  # noqa: BLE001 - every exception becomes an exit status
        status = _failure(error)
    return status


def _failure(error: Exception) -> int:
    from mqstore.errors import MQStoreError

    if isinstance(error, MQStoreError | OSError):
        from mqstore.cli.errors import error_text

        print(f"mqstore: {error_text(error)}", file=sys.stderr)
    elif isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # A surrogate stands for a byte of an argument that is not UTF-8. Names of files can have such bytes.
        print(f"mqstore: the argument {error.object!a} is not UTF-8: check the encoding", file=sys.stderr)
        return USAGE
    else:
        import traceback

        traceback.print_exception(error)
        print("mqstore: internal error, please report it with the traceback above", file=sys.stderr)
    return FAILED
