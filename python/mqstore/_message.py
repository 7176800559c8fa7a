"""`Message`: an element for `append_many` that has more than a body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mqstore._times import milliseconds_of

if TYPE_CHECKING:
    from mqstore.types import BytesLike, Keys, Properties, Time


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """A message to append: frozen, equal by value, picklable.

    Args:
        body: any bytes-like object; its bytes are copied.
        keys: one key or several; a key contains no space.
        tags: tag for filters.
        properties: your own properties. `append` refuses RocketMQ's reserved names, except `UNIQ_KEY`, which replaces
            the generated unique id.
        flag: number of your application, 32 bits.
        born_timestamp: time of creation; None is the time of the append.

    Raises:
        TypeError: an argument has the wrong type, for example a `str` as body.
    """

    body: bytes
    keys: tuple[str, ...] = ()
    tags: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    born_timestamp: int | None = None

    def __init__(
        self,
        body: BytesLike,
        *,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        flag: int = 0,
        born_timestamp: Time | None = None,
    ) -> None:
        settle = object.__setattr__
        settle(self, "body", _bytes_of(body))
        settle(self, "keys", _keys_of(keys))
        settle(self, "tags", _text_of("tags", tags))
        settle(self, "properties", MappingProxyType(_properties_of(properties)))
        settle(self, "flag", _flag_of(flag))
        when = None if born_timestamp is None else milliseconds_of("born_timestamp", born_timestamp)
        settle(self, "born_timestamp", when)

    def __hash__(self) -> int:
        pairs = frozenset(self.properties.items())
        return hash((self.body, self.keys, self.tags, pairs, self.flag, self.born_timestamp))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.body, self.keys, self.tags, dict(self.properties), self.flag, self.born_timestamp)
        return (_restore, fields)

    def __repr__(self) -> str:
        shown = [repr(self.body) if len(self.body) <= 40 else f"{self.body[:40]!r}... ({len(self.body)} bytes)"]
        for name, default in (("keys", ()), ("tags", None), ("properties", {}), ("flag", 0), ("born_timestamp", None)):
            value = getattr(self, name)
            if value != default:
                shown.append(f"{name}={dict(value) if name == 'properties' else value!r}")
        return f"Message({', '.join(shown)})"


def _restore(
    body: bytes,
    keys: tuple[str, ...],
    tags: str | None,
    properties: dict[str, str],
    flag: int,
    born_timestamp: int | None,
) -> Message:
    return Message(body, keys=keys, tags=tags, properties=properties, flag=flag, born_timestamp=born_timestamp)


def _bytes_of(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        msg = "body must be bytes-like, not str: encode it, for example body.encode()"
        raise TypeError(msg)
    try:
        return memoryview(body).tobytes()  # type: ignore[arg-type]
    except TypeError:
        msg = f"body must be bytes-like, not {type(body).__name__}"
        raise TypeError(msg) from None


def _keys_of(keys: object) -> tuple[str, ...]:
    if isinstance(keys, str):
        return (keys,)
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        msg = f"keys must be a str or an iterable of str, not {type(keys).__name__}"
        raise TypeError(msg)
    found = tuple(keys)
    for key in found:
        if not isinstance(key, str):
            msg = f"keys must be str, not {type(key).__name__}"
            raise TypeError(msg)
    return found


def _text_of(name: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    msg = f"{name} must be a str or None, not {type(value).__name__}"
    raise TypeError(msg)


def _properties_of(properties: object) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        msg = f"properties must be a mapping of str to str, not {type(properties).__name__}"
        raise TypeError(msg)
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            msg = f"properties must map str to str; {name!r} maps to {type(value).__name__}"
            raise TypeError(msg)
    return dict(properties)


def _flag_of(flag: object) -> int:
    if isinstance(flag, bool) or not isinstance(flag, int):
        msg = f"flag must be an int, not {type(flag).__name__}"
        raise TypeError(msg)
    if not -(1 << 31) <= flag < 1 << 31:
        msg = f"flag {flag} does not fit 32 bits"
        raise ValueError(msg)
    return flag


Message.__module__ = "mqstore"
