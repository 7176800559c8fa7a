"""The manifest of a result at a URL: the list of its objects. The header of `mqstore._publish` draws the layout."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from mqstore._remote.failure import RequestFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqstore._remote.cache import Source
    from mqstore._remote.failure import Row

FOLDER = "_mqstore"
"""The folder of everything that belongs to a result, below its URL. Spark and Hive ignore names that begin with `_`."""

NAME = f"{FOLDER}/manifest.json"

ATTEMPT = "attempt-"
"""The folder of an attempt begins with this."""

_VERSION = 1
_KIND = "mqstore result"
_OBJECT = re.compile(rf"{ATTEMPT}[0-9a-f]{{32}}/[A-Za-z0-9._-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 256 << 20


class ManifestError(ValueError):
    """A manifest that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the result."""

    path: str
    """Path in the directory that a fetch assembles."""
    object: str
    """Path of the object below `FOLDER`."""
    bytes: int
    """Length of the object."""
    zeros: int
    """Number of zero bytes that follow these bytes in the file."""
    sha256: str
    """Digest of the object."""

    @property
    def length(self) -> int:
        """The length of the file."""
        return self.bytes + self.zeros


@dataclass(frozen=True, slots=True)
class Manifest:
    """A published result."""

    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    attempt: str
    """The folder of the attempt that published it."""
    identity: str | None
    """Digest of the call and of its input, if a repeated call gives the same result."""
    created_ms: int
    report: dict[str, Any]
    """The report of the call."""
    files: tuple[Entry, ...]
    folders: tuple[str, ...] = ()
    """Folders without files."""
    mapping: Entry | None = None
    """The file with old and new positions, which is next to the directory."""

    def objects(self) -> list[Entry]:
        """Returns the files that have objects."""
        return [*self.files, *(() if self.mapping is None else (self.mapping,))]

    def encoded(self) -> bytes:
        """Returns the content of the object."""
        values = {"kind": _KIND, "version": _VERSION, **asdict(self)}
        return json.dumps({**values, "checksum": _checksum(values)}, indent=1).encode() + b"\n"

    @classmethod
    def decoded(cls, content: bytes) -> Manifest:
        """Returns the manifest in an object.

        Raises:
            ManifestError: the content is damaged, or of another version.
        """
        try:
            values = json.loads(content)
        except ValueError:
            values = None
        if not isinstance(values, dict) or values.get("kind") != _KIND:
            raise ManifestError("it is no manifest of mqstore, or incomplete")
        if values.get("version") != _VERSION:
            raise ManifestError(f"it has the version {values.get('version')!r}, and this mqstore reads {_VERSION}")
        if values.pop("checksum", None) != _checksum(values):
            raise ManifestError("its content does not match its checksum")
        try:
            found = cls(
                **{
                    **{field.name: values[field.name] for field in fields(cls)},
                    "files": tuple(Entry(**one) for one in values["files"]),
                    "folders": tuple(values["folders"]),
                    "mapping": None if values["mapping"] is None else Entry(**values["mapping"]),
                }
            )
        except (KeyError, TypeError):
            raise ManifestError("a member is missing or unknown") from None
        found._check()
        return found

    def _check(self) -> None:
        """Refuses paths outside the directory, and numbers that are no lengths."""
        for one in self.objects():
            is_right = _is_path(one.path) and _matches(_OBJECT, one.object)
            if not (is_right and _is_length(one.bytes) and _is_length(one.zeros) and _matches(_DIGEST, one.sha256)):
                raise ManifestError(f"the entry {one.path!r} is wrong")
        if not all(map(_is_path, self.folders)):
            raise ManifestError("a folder has a wrong path")
        if type(self.report) is not dict or type(self.created_ms) is not int:
            raise ManifestError("a member has a wrong type")
        names = [one.path for one in self.files]
        if len({*names, *self.folders}) != len(names) + len(self.folders):
            raise ManifestError("a path is in it twice")
        if {*names} & {parent for name in (*names, *self.folders) for parent in _parents(name)}:
            raise ManifestError("a path is both a file and a folder")


def manifest_in(source: Source, rows: Iterable[Row]) -> Manifest | None:
    """Returns the manifest of a URL, whose objects are `rows`; None if it has none.

    Raises:
        RequestFailure: the manifest is damaged (cause `damaged`), or a request failed.
    """
    row = next((row for row in rows if row[0] == NAME), None)
    if row is None:
        return None
    _, size, _, version = row
    if size > _MOST_BYTES:
        raise RequestFailure("damaged", NAME, f"the manifest cannot be used: it has {size:,} bytes")
    content = source.read([(NAME, version, 0, size)])[0] if size else b""
    return decoded(bytes(content))


def decoded(content: bytes) -> Manifest:
    """Returns the manifest in an object.

    Raises:
        RequestFailure: the manifest is damaged (cause `damaged`).
    """
    try:
        return Manifest.decoded(content)
    except ManifestError as error:
        remedy = "write the result to another URL"
        raise RequestFailure("damaged", NAME, f"the manifest cannot be used: {error}; {remedy}") from None


def missing(entry: Entry, rows: dict[str, int]) -> RequestFailure | None:
    """Returns the failure for an object that is not there in its full length; `rows` are the lengths of the objects."""
    path = f"{FOLDER}/{entry.object}"
    if path not in rows:
        return RequestFailure("damaged", path, "the manifest names this object, and it is missing")
    if rows[path] != entry.bytes:
        reason = f"the manifest says {entry.bytes:,} bytes, and the object has {rows[path]:,}"
        return RequestFailure("damaged", path, reason)
    return None


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _is_path(path: object) -> bool:
    """Returns whether a path is inside the directory."""
    return isinstance(path, str) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def _is_length(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
