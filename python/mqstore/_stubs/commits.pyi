"""Stubs of the native module for durable steps on files; a part of `_mqstore.pyi`."""

from os import PathLike
from pathlib import Path
from typing import Self, TypeAlias, final

_Path: TypeAlias = str | PathLike[str]

def sync_part(path: _Path) -> None: ...
def publish_file(path: _Path, dest: _Path) -> None: ...
def publish_folder(folder: _Path, dest: _Path) -> None: ...
def replace_cached(path: _Path, new: _Path, content: bytes) -> None: ...
def remove_export_state(dest: _Path) -> None: ...

@final
class PartialFile:
    """The file of an export in progress, and its state. A call at a time."""

    def __new__(cls, dest: _Path, digest: str) -> Self: ...
    def left(self) -> str | None:
        """Returns the state of an interrupted call with the same arguments, as JSON."""
    def resume(self, bytes: int) -> None:
        """Begins to write after the first bytes; the rest of the file goes."""
    def write(self, content: bytes) -> None:
        """Appends bytes, which `save` makes durable."""
    def save(self, members: str, rules: bytes | None) -> None:
        """Syncs the file, then records its state: JSON, and the rules in the first state of a call."""
    def publish(self) -> int:
        """Gives the file its final name, and returns its length."""

@final
class PartialFolder:
    """The folder of an export of parts in progress, and its state. A call at a time."""

    def __new__(cls, dest: _Path, digest: str, format: str) -> Self: ...
    def left(self) -> str | None:
        """Returns the state of an interrupted call with the same arguments, as JSON."""
    def resume(self, parts: int) -> None:
        """Begins to write after the first parts; all other files of the folder go."""
    @property
    def parts(self) -> int:
        """The number of durable parts."""
    def next_path(self, folder: str) -> Path:
        """Returns the path of one more part in a folder, which is created; "" is the folder of the export."""
    def add(self, members: str, rules: bytes | None) -> None:
        """Makes the next parts durable, then records the state: JSON, and the rules in the first state of a call."""
    def publish(self) -> None:
        """Gives the folder its final name."""
