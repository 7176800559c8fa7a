"""Exports to files: JSON lines, Parquet and Arrow, as one file, as a folder of parts, or as parts at a URL."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mqstore import _extras, _native
from mqstore._admin.export.columns import column_file
from mqstore._admin.export.counts import Counts
from mqstore._admin.export.partial import Partial, only_writer
from mqstore._admin.export.partitions import Partitions
from mqstore._admin.export.parts import Parts
from mqstore._admin.export.run import Export
from mqstore._admin.files import locked_folder
from mqstore._read.scan import Scan

if TYPE_CHECKING:
    from mqstore._admin.export.parts import UrlParts
    from mqstore._admin.export.rules import Rules

# Bytes of columns in a part.
_PART_BYTES = 256 << 20


class FileExport(Export):
    """An export to files."""

    partitions = Partitions(None, None)
    """The folders of the parts."""

    def _choice(self) -> dict[str, Any]:
        names, left_out = self.partitions.names, sorted(self.partitions.left_out)
        return {**super()._choice(), **({"partition_by": [names, left_out]} if names else {})}

    def to_file(self, kind: str) -> Counts:
        """Writes one file."""
        return self.to_lines() if kind == "jsonl" else self.to_columns(kind)

    def to_lines(self) -> Counts:
        """Writes JSON lines to a file, or resumes an interrupted call."""
        self._must_be_free(self.dest)
        counts = Counts()
        with only_writer(self.dest):
            partial = Partial(self.dest, self._digest("jsonl"), rules := self.rules(self.dest))
            start = self._resume(partial, counts)
            stream = _native.scan_lines(self.source, self._chosen(rules, start), rules.get())
            with closing(stream):
                if start is None and self._request["columns"] is None:
                    partial.write(self._settings().line())
                self._tell(stream, stream.start if start is None else start)
                fresh = 0
                for text, rows, left_out, end in stream:
                    partial.write(text)
                    fresh += len(text)
                    counts.messages += rows
                    counts.leave_out(left_out)
                    if partial.is_due(fresh):
                        partial.save(end, counts)
                        fresh = 0
                    self._tell(stream, end)
            self._must_be_free(self.dest)
            counts.bytes = partial.publish()
        return counts

    def to_columns(self, kind: str) -> Counts:
        """Writes a Parquet or Arrow file, from the beginning."""
        self._must_be_free(self.dest)
        counts = Counts()
        pyarrow = _extras.pyarrow()
        path = Path(f"{self.dest}.partial")
        schema = Scan(self._place, self._request).schema
        rules = self.rules(self.dest)
        stream = _native.scan_export(self.source, self._chosen(rules, None), rules.get())
        try:
            with closing(stream), column_file(kind, path, schema) as write:
                for rows, left_out, end in stream:
                    counts.leave_out(left_out)
                    if rows is not None:
                        write(pyarrow.record_batch(rows))
                        counts.messages += len(rows)
                    self._tell(stream, end)
            counts.bytes = path.stat().st_size
            self._must_be_free(self.dest)
            _native.publish_file(path, self.dest)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return counts

    def to_parts(self, kind: str) -> Counts:
        """Writes a folder of Parquet or Arrow files, or resumes an interrupted call."""
        self._must_be_free(self.dest, folder=True)
        counts = Counts()
        schema = Scan(self._place, self._request).schema
        with locked_folder(Path(f"{self.dest}.partial")):
            parts = Parts(self.dest, kind, self._digest(f"{kind} parts"), rules := self.rules(self.dest))
            self._add_parts(parts, schema, rules, parts.resume(counts), counts)
            self._must_be_free(self.dest, folder=True)
            parts.publish()
        return counts

    def to_column_parts(self, parts: UrlParts, rules: Rules) -> Counts:
        """Writes the columns as parts at a URL."""
        counts = Counts()
        self._add_parts(parts, Scan(self._place, self._request).schema, rules, None, counts)
        return counts

    def _add_parts(self, parts: Parts | UrlParts, schema: Any, rules: Rules, start: int | None, counts: Counts) -> None:
        pyarrow = _extras.pyarrow()
        with closing(_native.scan_export(self.source, self._chosen(rules, start), rules.get())) as stream:
            group: list[Any] = []
            end = start
            for rows, left_out, end in stream:
                counts.leave_out(left_out)
                if rows is not None:
                    group.append(pyarrow.record_batch(rows))
                    counts.messages += len(rows)
                if sum(batch.nbytes for batch in group) >= _PART_BYTES:
                    parts.add(self.partitions.split(pyarrow.Table.from_batches(group, schema)), end, counts)
                    group.clear()
                self._tell(stream, end)
            # Without messages, one empty part still shows the columns.
            if group or not parts.count:
                parts.add(self.partitions.split(pyarrow.Table.from_batches(group, schema)), end, counts)

    def to_line_parts(self, parts: UrlParts, rules: Rules) -> Counts:
        """Writes JSON lines as parts at a URL. All parts together are the file of `to_lines`."""
        counts = Counts()
        with closing(_native.scan_lines(self.source, self._chosen(rules, None), rules.get())) as stream:
            is_complete = False
            first = self._settings().line() if self._request["columns"] is None else b""
            while not is_complete:
                with parts.path().open("wb") as file:
                    file.write(first if not parts.count else b"")
                    is_complete = self._fill(file, stream, counts)
                    is_empty = not file.tell()
                if not (is_empty and parts.count):
                    parts.upload(counts)
        return counts

    def _fill(self, file: IO[bytes], stream: Any, counts: Counts) -> bool:
        """Writes the lines of one part. Returns whether it is the last one."""
        for text, rows, left_out, end in stream:
            file.write(text)
            counts.messages += rows
            counts.leave_out(left_out)
            self._tell(stream, end)
            if file.tell() >= _PART_BYTES:
                return False
        return True
