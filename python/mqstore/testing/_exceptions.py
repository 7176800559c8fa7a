"""The exceptions of RocketMQ's Python client, for the stand-ins."""

from __future__ import annotations

__all__ = [
    "BadRequestException", "ClientException", "IllegalArgumentException", "IllegalStateException", "NotFoundException",
    "UnsupportedException",
]  # fmt: skip


class ClientException(Exception):  # noqa: N818 - the name in RocketMQ's client
    """Base class of all of them; `code` is the status of the server, if it answered."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self._code = code

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self._code}, {text}" if self._code else text

    @property
    def code(self) -> int | None:
        """Status of the server, or None."""
        return self._code


class BadRequestException(ClientException):
    """The broker cannot serve the request: a receipt handle is not valid, or a transaction has ended."""


class NotFoundException(ClientException):
    """The requested object does not exist."""


class UnsupportedException(ClientException):
    """The stand-ins do not support the call."""


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
