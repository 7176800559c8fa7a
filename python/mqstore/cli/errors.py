"""Texts of errors on the command line: with the options of the verb, where an error names arguments of Python."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, get_type_hints

from mqstore._store import TO_SHARE
from mqstore.errors import DiskFullError, InvalidOptionError, MQStoreError, StoreLockedError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

# What errors advise in Python, and the same on the command line.
_ADVICE = (
    (r'mode "create", or ', ""),
    (r'(?:open|read) the store with mode "r"', "use a verb that only reads"),
    (r'with mode "r"', "with a verb that only reads"),
    (r'(?:continue after [a-z ]+|open it) with recovery[= ]"salvage"', "run mqstore repair"),
    (r"(?:, or )?(?:open|create) the store with a larger \w+$", ""),
    (r", or name the other folders of the log in commit_log_paths", ""),
    (r"\bupdate_topic$", "mqstore topic alter --max-messages"),
    (r"\buse force$", "use --force"),
    (r", then start the job again", ", or wait for it with --lock-timeout"),
)
# Arguments of Python that the command line takes from the environment.
_OF_ENVIRONMENT = ("storage_options", "target_options", "archive_options")
# What the texts of errors of the system advise. A class stands before its base.
_SYSTEM_ADVICE: tuple[tuple[type[OSError], str], ...] = (
    (FileNotFoundError, "check the path"),
    (NotADirectoryError, "a part of the path is a file; choose another path"),
    (IsADirectoryError, "give the name of a file"),
    (PermissionError, "check the permissions"),
)
_OF_PYARROW = re.compile(r"Failed to open local file '(.*)'\. Detail: ", re.DOTALL)
_ARGUMENT = re.compile(r"""\b([a-z_]+)=(?:True\b|"(\w+)"|'(\w+)')""")
_NAME = re.compile(r"(?<![\w/.-])[a-z]+_[a-z_]+\b")

# The function of the verb that runs.
_verbs: list[Callable[..., Any]] = []


def name_options_of(work: Callable[..., Any]) -> None:
    """Makes texts name the options of a verb from now on."""
    _verbs[:] = [work]


def error_text(error: Exception) -> str:
    """Returns the text of an error of mqstore or of the system."""
    options = _options()
    if isinstance(error, StoreLockedError) and error.advice in {None, TO_SHARE}:
        error = StoreLockedError(error.path, error.pid, "close it there, or wait for it with --lock-timeout")
    if isinstance(error, DiskFullError):
        # An option of an open store.
        error = DiskFullError(error.path, error.action, error.reason, error.requested, error.free, option="")
    text = _system_text(error) if isinstance(error, OSError) and not isinstance(error, MQStoreError) else str(error)
    if isinstance(error, InvalidOptionError) and error.option in options:
        text = f"{options[error.option]}: {error.reason}"
    elif isinstance(error, InvalidOptionError) and error.option in _OF_ENVIRONMENT:
        text = error.reason.replace("there, not in the URL", "in environment variables, not in the URL")
    elif isinstance(error, TopicNotFoundError) and error.nearest is None:
        verb, parts = ("topics", "topics") if error.queue_id is None else ("topics --queues", "queues")
        text += f"; mqstore {verb} lists the {parts}"
    for python, instead in _ADVICE:
        text = re.sub(python, instead, text)
    if "create" in options:
        text = text.replace("create a store there (mqstore append --create)", "pass --create to create a store there")
    text = _ARGUMENT.sub(lambda found: _spelled(found, options), text)
    if type(error) is ValueError:
        text = _NAME.sub(lambda found: options.get(found[0], found[0]), text)
    return text


def error_text_of(store: str, error: Exception) -> str:
    """Returns the text of an error of one store of several: with the store, if the error does not name it."""
    text = error_text(error)
    return text if store in text else f"{store}: {text}"


def _system_text(error: OSError) -> str:
    """Returns the text of an error of the system: the path, the cause, and advice if there is one."""
    opened = _OF_PYARROW.match(error.strerror or "")
    path = opened[1] if opened else error.filename
    if error.errno is None or path is None:
        return str(error)
    cause = os.strerror(error.errno)
    advice = next((text for kind, text in _SYSTEM_ADVICE if isinstance(error, kind)), None)
    return f"{os.fsdecode(path)}: {cause[:1].lower()}{cause[1:]}" + (f": {advice}" if advice else "")


def _spelled(argument: re.Match[str], options: dict[str, str]) -> str:
    """Returns an argument of Python as an option, if the verb has it."""
    name, *values = argument.groups()
    value = next((f" {one}" for one in values if one), "")
    return f"{options[name]}{value}" if name in options else argument[0]


def _options() -> dict[str, str]:
    """Returns the options of the verb by the names of its parameters."""
    from typer.models import OptionInfo

    found = {}
    for work in _verbs:
        for name, hint in get_type_hints(work, include_extras=True).items():
            for info in getattr(hint, "__metadata__", ()):
                if isinstance(info, OptionInfo):
                    # In an annotation, typer keeps the first name as the default.
                    names = (str(info.default), *(info.param_decls or ()))
                    given = [text for text in names if text.startswith("--")]
                    found[name] = given[0].partition("/")[0] if given else f"--{name.replace('_', '-')}"
    return found
