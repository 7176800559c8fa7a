"""A proxy that cuts its connections after random numbers of bytes, also inside a frame."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Cutter:
    """Passes bytes between a slave and the port of a master. A context manager."""

    def __init__(self, port: int, seed: int, most: int) -> None:
        """Each connection ends after at most `most` bytes from the master, until `keep_whole` is called."""
        self._port, self._random, self._most = port, random.Random(seed), most
        self.cuts = 0
        self._whole = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        """Return the proxy."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take no more connections."""
        self._listener.close()

    def keep_whole(self) -> None:
        """Cut no later connection."""
        self._whole.set()

    def _serve(self) -> None:
        while True:
            try:
                slave, _ = self._listener.accept()
            except OSError:
                return
            with slave, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as master:
                self._pass(slave, master)

    def _pass(self, slave: socket.socket, master: socket.socket) -> None:
        back = threading.Thread(target=self._copy, args=(slave, master, None), daemon=True)
        back.start()
        self._copy(master, slave, None if self._whole.is_set() else self._random.randrange(1, self._most))
        for end in (slave, master):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        back.join()
        self.cuts += 1

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while left is None or left > 0:
                data = source.recv(1 << 16 if left is None else min(left, 1 << 16))
                if not data:
                    break
                target.sendall(data)
                left = left if left is None else left - len(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
