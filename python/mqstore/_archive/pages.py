"""Parts of a Parquet file, found by its footer and its page index, so that a read fetches ranges and not the file.

pyarrow decodes whole column chunks only, and does not return the places of pages. This module reads these places
itself, splits a page of bytes into its values, and tests Bloom filters. Everything else is left to pyarrow. The bytes
come from a disk: each number is checked before it is used. Source of the format: `parquet.thrift` and
`BloomFilter.md` of Apache Parquet.
"""

from __future__ import annotations

import io
import struct
import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mqstore import _extras

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Bytes after the footer: its length and the magic."""

_MOST_DEPTH = 16

# Codecs by their numbers, with the names that pyarrow gives them. Files of an archive have zstd.
_CODECS = {0: None, 6: "zstd"}
_DATA_PAGE = 0
_PLAIN = 0

# Multipliers of the split block Bloom filter.
_SALT = (0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31)
_BLOCK = 32

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_ALL = (1 << 64) - 1


class WrongBytesError(ValueError):
    """Bytes that are not what a Parquet file has at their place."""


class _Thrift:
    """Decodes a struct of Thrift's compact protocol to a dict of values by field id."""

    def __init__(self, content: bytes | memoryview) -> None:
        # The bytes of pyarrow are signed.
        self._content = memoryview(content).cast("B")
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Returns the struct at the position, which moves past it."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            number = number + delta if delta else self._zigzag()
            found[number] = self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise WrongBytesError("values are nested too deep")
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._take(8)
        if kind == 8:
            return self._take(self.varint())
        if kind in (9, 10):
            head = self._byte()
            count = head >> 4 if head >> 4 != 15 else self.varint()
            if count > len(self._content):
                raise WrongBytesError("a list is longer than its file")
            # A boolean in a list is a byte of its own.
            item = 3 if head & 15 in (1, 2) else head & 15
            return [self._value(item, depth + 1) for _ in range(count)]
        if kind == 12:
            return self.struct(depth + 1)
        raise WrongBytesError(f"a field has the unknown type {kind}")

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self._content):
            raise WrongBytesError("the bytes end too early")
        found = bytes(self._content[self.at : end])
        self.at = end
        return found

    def _byte(self) -> int:
        try:
            found = self._content[self.at]
        except IndexError:
            raise WrongBytesError("the bytes end too early") from None
        self.at += 1
        return found

    def varint(self) -> int:
        """Returns the number at the position, which moves past it."""
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
            if shift > 63:
                raise WrongBytesError("a number is too long")

    def _zigzag(self) -> int:
        found = self.varint()
        return (found >> 1) ^ -(found & 1)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The place of one column in a row group."""

    start: int
    length: int
    codec: int
    has_dictionary: bool
    index: tuple[int, int] | None
    """Place of the offset index: first byte and length."""
    bloom: tuple[int, int] | None
    """Place of the Bloom filter."""


@dataclass(slots=True)
class Group:
    """A row group."""

    number: int
    first_row: int
    rows: int
    chunks: dict[str, Chunk]
    """By the path of the column."""
    pages: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    """Pages of a column: first byte, length with the header, and first row in the group."""

    def span(self, name: str, first: int, end: int) -> tuple[int, int, int] | None:
        """Returns the range of the pages with some rows, and their first row; None if the places are not known."""
        pages = self.pages.get(name)
        chunk = self.chunks.get(name)
        if not pages or chunk is None or chunk.has_dictionary:
            return None
        rows = [row for *_, row in pages]
        low, high = max(bisect_right(rows, first) - 1, 0), max(bisect_right(rows, end - 1) - 1, 0)
        start, stop = pages[low][0], pages[high][0] + pages[high][1]
        if not chunk.start <= start < stop <= chunk.start + chunk.length:
            raise WrongBytesError(f"the page index of column {name} points outside the column")
        return start, stop - start, rows[low]

    def page_end(self, name: str, row: int) -> int:
        """Returns the row after the page that contains a row; the end of the group if the places are not known."""
        rows = [first for *_, first in self.pages.get(name, ())]
        after = bisect_right(rows, row)
        return rows[after] if after < len(rows) else self.rows


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file, with the places of its parts."""

    metadata: Any
    """The footer for pyarrow."""
    groups: list[Group]
    bytes: int
    """Approximate memory."""

    def group_of(self, row: int) -> Group:
        """Returns the group with a row of the file."""
        firsts = [group.first_row for group in self.groups]
        return self.groups[bisect_right(firsts, row) - 1]


def footer_length(tail: bytes) -> int:
    """Returns the length of the footer, from the last bytes of a file."""
    if len(tail) < TAIL_BYTES or tail[-4:] != MAGIC:
        raise WrongBytesError("it does not end like a Parquet file")
    return int.from_bytes(tail[-8:-4], "little")


def footer_of(content: bytes, size: int) -> Footer:
    """Returns the footer that `content`, the end of a file of `size` bytes, contains."""
    length = footer_length(content)
    if length + TAIL_BYTES > len(content):
        raise WrongBytesError("its footer is incomplete")
    values = _Thrift(memoryview(content)[-TAIL_BYTES - length : -TAIL_BYTES]).struct()
    groups: list[Group] = []
    row = 0
    try:
        for number, group in enumerate(values[4]):
            chunks = dict(_chunk(column, size) for column in group[1])
            groups.append(Group(number, row, group[3], chunks))
            row += group[3]
        if row != values[3]:
            raise WrongBytesError("the row groups have another number of rows than the file")
    except (KeyError, TypeError, AttributeError):
        raise WrongBytesError("a part of its footer is missing") from None
    pa, parquet = _extras.pyarrow(), _extras.module("pyarrow.parquet", "arrow")
    metadata = parquet.read_metadata(pa.BufferReader(content))
    return Footer(metadata, groups, 8 * length)


def _chunk(column: dict[int, Any], size: int) -> tuple[str, Chunk]:
    facts = column[3]
    has_dictionary = 0 < facts.get(11, 0) < facts[9]
    start = facts[11] if has_dictionary else facts[9]
    places = [(start, facts[7]), (column.get(4), column.get(5)), (facts.get(14), facts.get(15))]
    for first, length in places:
        if first is not None and length is not None and not 0 <= first <= first + length <= size:
            raise WrongBytesError("its footer points outside the file")
    index, bloom = ((first, length) if first and length else None for first, length in places[1:])
    name = b".".join(facts[3]).decode()
    return name, Chunk(start, facts[7], facts[4], has_dictionary, index, bloom)


def pages_of(content: bytes | memoryview) -> list[tuple[int, int, int]]:
    """Returns the pages of an offset index: first byte, length with the header, and first row in the group."""
    try:
        found = [(page[1], page[2], page[3]) for page in _Thrift(content).struct()[1]]
    except (KeyError, TypeError):
        raise WrongBytesError("a page index is incomplete") from None
    if any(length <= 0 or first < 0 for _, length, first in found) or (found and found[0][2] != 0):
        raise WrongBytesError("a page index is wrong")
    if any(before[2] >= after[2] for before, after in pairwise(found)):
        raise WrongBytesError("a page index is not in the order of the rows")
    return found


def values_of(content: memoryview, codec: int, rows: int) -> list[memoryview] | None:
    """Returns the first values of neighbouring pages of bytes without nulls.

    None if pyarrow must decode the pages: their encoding or their codec is another one, or a value is null.
    """
    if codec not in _CODECS:
        return None
    found: list[memoryview] = []
    at = 0
    while len(found) < rows:
        thrift = _Thrift(content[at:])
        header = thrift.struct()
        length, unpacked, data = header.get(3), header.get(2), header.get(5)
        if header.get(1) != _DATA_PAGE or data is None or data.get(2) != _PLAIN:
            return None
        start = at + thrift.at
        if not isinstance(length, int) or not isinstance(unpacked, int) or not 0 < length <= len(content) - start:
            raise WrongBytesError("a page is longer than its place")
        body = content[start : start + length]
        crc = header.get(4)
        if crc is not None and zlib.crc32(body) != crc & 0xFFFFFFFF:
            raise WrongBytesError("a page does not match its checksum")
        count = data.get(1, 0)
        values = _split(_unpacked(body, codec, unpacked), count)
        if values is None:
            return None
        found += values
        at = start + length
    return found


def _unpacked(body: memoryview, codec: int, length: int) -> memoryview:
    if codec == 0:
        return body
    pa = _extras.pyarrow()
    if length > 1 << 31:
        raise WrongBytesError("a page is too long")
    try:
        return memoryview(pa.Codec(_CODECS[codec]).decompress(pa.py_buffer(body), decompressed_size=length))
    except (pa.ArrowException, OSError) as error:
        raise WrongBytesError(f"a page cannot be decompressed: {error}") from None


def _split(page: memoryview, count: int) -> list[memoryview] | None:
    """Returns the values of an uncompressed page; None if it has nulls."""
    if len(page) < 4:
        raise WrongBytesError("a page is too short")
    (levels,) = struct.unpack_from("<I", page)
    at = 4 + levels
    # One run of the level 1: every value is there.
    thrift = _Thrift(page[4:at])
    if levels > len(page) - 4 or thrift.varint() != count << 1 or bytes(page[4 + thrift.at : at]) != b"\1":
        return None
    found = []
    end = len(page)
    for _ in range(count):
        if at + 4 > end:
            raise WrongBytesError("a page has too few values")
        (length,) = struct.unpack_from("<I", page, at)
        at += 4
        if at + length > end:
            raise WrongBytesError("a value is longer than its page")
        found.append(page[at : at + length])
        at += length
    return found


def may_contain(content: bytes | memoryview, hashed: int) -> bool:
    """Returns whether a Bloom filter, with its header, may contain a value with this hash."""
    thrift = _Thrift(content)
    header = thrift.struct()
    blocks = memoryview(content)[thrift.at :]
    length = header.get(1)
    if not isinstance(length, int) or length % _BLOCK or not 0 < length <= len(blocks):
        raise WrongBytesError("a Bloom filter is incomplete")
    if any(set(header.get(number, {})) - {1} for number in (2, 3, 4)):
        # Another algorithm, hash or compression.
        return True
    block = ((hashed >> 32) * (length // _BLOCK) >> 32) * _BLOCK
    words = struct.unpack_from("<8I", blocks, block)
    key = hashed & 0xFFFFFFFF
    return all(word >> ((key * salt & 0xFFFFFFFF) >> 27) & 1 for word, salt in zip(words, _SALT, strict=True))


def hash_of(value: bytes) -> int:
    """Returns the hash of a value in a Bloom filter: XXH64 with the seed 0."""
    length = len(value)
    at = 0
    if length >= 32:
        lanes = [(_P1 + _P2) & _ALL, _P2, 0, -_P1 & _ALL]
        while at + 32 <= length:
            words = struct.unpack_from("<4Q", value, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        found = sum(_turned(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _ALL
    else:
        found = _P5
    found = (found + length) & _ALL
    while at + 8 <= length:
        found ^= _round(0, int.from_bytes(value[at : at + 8], "little"))
        found = (_turned(found, 27) * _P1 + _P4) & _ALL
        at += 8
    if at + 4 <= length:
        found ^= int.from_bytes(value[at : at + 4], "little") * _P1 & _ALL
        found = (_turned(found, 23) * _P2 + _P3) & _ALL
        at += 4
    for byte in value[at:]:
        found ^= byte * _P5 & _ALL
        found = _turned(found, 11) * _P1 & _ALL
    found = (found ^ found >> 33) * _P2 & _ALL
    found = (found ^ found >> 29) * _P3 & _ALL
    return found ^ found >> 32


def _round(lane: int, word: int) -> int:
    return _turned((lane + word * _P2) & _ALL, 31) * _P1 & _ALL


def _turned(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _ALL


class Ranges(io.RawIOBase):
    """A file for pyarrow; only some of its ranges are known."""

    def __init__(self, size: int, parts: list[tuple[int, bytes | memoryview]]) -> None:
        super().__init__()
        self._size = size
        self._parts = parts
        self._at = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def tell(self) -> int:
        """Returns the position."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Moves the position."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, length: int = -1) -> bytes:
        """Returns bytes of a known range."""
        end = self._size if length < 0 else min(self._at + length, self._size)
        for start, content in self._parts:
            if start <= self._at and end <= start + len(content):
                found = bytes(content[self._at - start : end - start])
                self._at = end
                return found
        if end <= self._at:
            return b""
        raise WrongBytesError(f"its footer does not name the bytes {self._at} to {end}")


def table_of(footer: Footer, size: int, group: Group, names: list[str], parts: Any) -> pa.Table:
    """Decodes columns of a row group from ranges that contain them."""
    parquet = _extras.module("pyarrow.parquet", "arrow")
    source = Ranges(size, parts)
    options = {"pre_buffer": False, "page_checksum_verification": True}
    with parquet.ParquetFile(source, metadata=footer.metadata, **options) as file:
        return file.read_row_group(group.number, columns=names, use_threads=False)
