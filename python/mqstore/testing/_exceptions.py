"""The exceptions of RocketMQ's Python client, for its stand-ins: those that they raise, and what they all are."""

from __future__ import annotations

__all__ = [
    "BadRequestException",
    "ClientException",
    "IllegalArgumentException",
    "IllegalStateException",
    "NotFoundException",
    "UnsupportedException",
]


class ClientException(Exception):  # noqa: N818 - the name in RocketMQ's client
    """What all of them are; `code` is the status of the server, where one answered."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self._code = code

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self._code}, {text}" if self._code else text

    @property
    def code(self) -> int | None:
        """The status of the server, or None."""
        return self._code


class BadRequestException(ClientException):
    """The broker cannot do what it is asked for: a receipt handle is void, a transaction is over."""


class NotFoundException(ClientException):
    """There is no such thing."""


class UnsupportedException(ClientException):
    """The stand-ins do not do that."""


class IllegalArgumentException(ClientException):
    """An argument is missing or wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class IllegalStateException(ClientException):
    """The client is not running."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


for _name in __all__:
    globals()[_name].__module__ = "mqstore.testing.rocketmq"
