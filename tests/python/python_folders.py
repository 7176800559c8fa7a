"""A transport in Python for archives in folders, which tests change: requests are counted, fail, or end badly."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mqstore._paths import is_url, object_path
from mqstore._publish import place as places
from mqstore._remote.failure import RequestFailure


class Directory:
    """Files below a folder, with the methods of `mqstore._publish.target.Target`."""

    def __init__(self, path: str) -> None:
        self.root = Path(path)

    def listed(self, folder: str) -> list[tuple[str, int, int, str]]:
        found = []
        for one in (self.root / folder).rglob("*"):
            # Another writer can remove a file between the list and this call.
            with contextlib.suppress(FileNotFoundError):
                stat = one.stat()
                if one.is_file():
                    name = one.relative_to(self.root).as_posix()
                    found.append((name, stat.st_size, stat.st_mtime_ns // 1_000_000, ""))
        return found

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        names: tuple[list[str], list[str]] = [], []
        if (self.root / folder).is_dir():
            for one in (self.root / folder).iterdir():
                names[one.is_file()].append(one.name)
        return names

    def get(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def read(self, ranges: list[tuple[str, str, int, int]]) -> list[bytes]:
        found = []
        for path, _, start, length in ranges:
            try:
                with (self.root / path).open("rb") as file:
                    found.append(os.pread(file.fileno(), length, start))
            except FileNotFoundError:
                raise RequestFailure("changed", path, "it is missing") from None
        return found

    def put(self, path: str, source: Path | bytes, length: int) -> None:
        self._write(path, (source if isinstance(source, bytes) else source.read_bytes())[:length])

    def _write(self, path: str, content: bytes) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.root / path).open("xb") as file:
            file.write(content)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        new = f"{path}.{uuid.uuid4().hex}.new"
        # No test changes this step.
        self._write(new, content)
        try:
            os.link(self.root / new, self.root / path)
        except FileExistsError:
            return False
        finally:
            (self.root / new).unlink()
        return True

    def delete(self, paths: list[str]) -> None:
        for path in paths:
            (self.root / path).unlink(missing_ok=True)

    def settle(self, folder: str) -> None:
        pass


def with_directories(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for `mqstore._publish.place._transport_of` that returns a `Directory` for a folder."""

    def transport_of(text: str, options: Mapping[str, Any] | None, action: str) -> Any:
        return plain(text, options, action) or Directory(object_path(text, "") if is_url(text) else text)

    return transport_of


@contextlib.contextmanager
def python_transport() -> Iterator[None]:
    """Lets new archives in folders use a `Directory`, as those at URLs use a transport."""
    plain = places._transport_of
    places._transport_of = with_directories(plain)
    try:
        yield
    finally:
        places._transport_of = plain
