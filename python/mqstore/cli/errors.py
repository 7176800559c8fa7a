"""Texts of errors on the command line: with its options, where the text of an error names those of Python."""

from __future__ import annotations

from mqstore.errors import DiskFullError, StoreLockedError

# What errors advise in Python, and the same on the command line.
_ADVICE = {
    '(mode "create", or mqstore append --create)': "(mqstore append --create)",
    'on_damage="skip" (--on-damage skip)': "--on-damage skip",
    'on_damage="skip"': "--on-damage skip",
    "overwrite=True": "--overwrite",
    "on_missing='skip'": "--on-missing skip",
}


def error_text(error: Exception) -> str:
    """Returns the text of an error of mqstore or of the system."""
    if isinstance(error, StoreLockedError) and error.advice is None:
        error = StoreLockedError(error.path, error.pid, "close it there, or wait for it with --lock-timeout")
    if isinstance(error, DiskFullError):
        # An option of an open store.
        error = DiskFullError(error.path, error.action, error.reason, error.requested, error.free, option="")
    text = str(error)
    for python, option in _ADVICE.items():
        text = text.replace(python, option)
    return text
