"""`follow`: a live copy of a RocketMQ master, in a thread of this program."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack

from mqstore import _native
from mqstore._options import StoreOptions, check_address, native_form, normalise
from mqstore._paths import home_of
from mqstore._reports import FollowStatus
from mqstore._running import Running
from mqstore._times import duration_of, seconds_of
from mqstore.errors import (
    ForkedProcessError,
    InvalidOptionError,
    MQStoreError,
    StoreClosedError,
    StoreTimeoutError,
)

if TYPE_CHECKING:
    from mqstore.types import Duration, ReplicaProtocol, StoreOptionsDict, StorePath

Begin: TypeAlias = Literal["oldest", "last"]

_log = logging.getLogger("mqstore")

_STEP_MS = 200
"""Milliseconds of a step that waits for bytes of the master; a close waits for its end."""

_LOOK = 0.01
"""Seconds between two looks of `Follower.wait`."""

_QUIET = 0.2
"""Seconds without a byte after which a master that does not tell its end has sent everything."""

_OWN = ("durability", "visibility", "replication", "replicated", "compaction_interval", "on_event", "before_delete")
"""Options of a store that has appends of its own, or functions of its program."""


def follow(
    master: str,
    path: StorePath,
    *,
    metadata: str | None = None,
    protocol: ReplicaProtocol = "default",
    begin: Begin = "oldest",
    durable_acks: bool = False,
    full_copy: bool = False,
    metadata_interval: Duration = 10.0,
    broker_id: int | None = None,
    learner: bool | None = None,
    options: StoreOptions | None = None,
    **overrides: Unpack[StoreOptionsDict],
) -> Follower:
    """Follows a RocketMQ master: makes the directory `path` a live copy of its store, in a thread of this program.

    The copy has the master's log byte for byte, at the same log offsets, and this program makes its queues and key
    index. Other programs read it at the same time (`mqstore.open(path)`, `mqstore.scan`, Spark), and a broker can take
    it over. A lost connection is made again. A copy that exists continues where it ends, after its last message was
    compared with the master's.

    Args:
        master: host and port of the master's HA service (`brokerIP2:haListenPort`, 10912 by default).
        path: directory of the copy. It must be empty, missing, or have a copy: of an earlier follower, or of the files
            of the master, for example from a backup.
        metadata: host and port of the broker (10911 by default), for topics, groups, offsets of groups and the progress
            of delay levels, and for the size of its segments and the begin of its log. Without it, the copy has only
            the log.
        protocol: what the master speaks, which the connection does not show: `"default"`, `"autoswitch"` for a broker
            in controller mode, or `"mqstore"` for a store of yours: then this copy is its standby, and gets its
            metadata and the size of its segments, too.
        begin: where an empty copy begins: with the `"oldest"` segment of the master, or with its `"last"` one.
        durable_acks: whether the master gets an acknowledgement only after the copy has synced: a master that waits for
            its slaves (`SYNC_MASTER`) then has each message on two disks. False acknowledges as RocketMQ does, with the
            message in the page cache, unless a store of yours asks for more (`Master.durable_acks`).
        full_copy: whether to remove the copy and copy everything again. A directory that is no copy is refused.
        metadata_interval: seconds between two looks at the tables of the broker, at least 0.1; 10 by default. After a
            look that failed it is at least a minute.
        broker_id: the id of this copy for a master that asks for it, other than those of its other replicas. None, the
            default, is a number that the copy keeps, and that no other one has. With `metadata`, the copy also gets
            RocketMQ's file `brokerIdentity`, with which a controller knows a broker that continues on it.
        learner: whether the master leaves this copy out of those that its appends wait for; not with the protocol
            `"default"`, which has no such copies. None is True for `"autoswitch"`, and False for `"mqstore"`.
        options: options of the copy. `retention` and `retention_bytes` remove its old segments, whatever the master
            removes. `segment_size` must be that of the master (`mappedFileSizeCommitLog`); with `metadata`, it is.
        overrides: single options by name; they replace those in `options`.

    Returns:
        The follower. Use it in a `with` block; its end closes the copy.

    Raises:
        StoreLockedError: another process has the directory open for writing, for example another follower.
        NotAStoreError: the directory has other files.
        RefusedError: `full_copy`, and the directory is no copy.
        InvalidOptionError: an option is out of bounds, or the copy has segments of another size than the master.
        StoreIOError, OSError: the broker at `metadata` does not answer.
    """
    for name, address in (("master", master), ("metadata", metadata)):
        if address is not None:
            _check_address(name, address)
    if metadata is not None and protocol == "mqstore":
        raise InvalidOptionError("metadata", "a standby gets the metadata of a store from its master: leave it out")
    pause = duration_of("metadata_interval", metadata_interval)
    if pause < 0.1:
        raise InvalidOptionError("metadata_interval", f"must be at least 0.1 seconds, not {metadata_interval!r}")
    if broker_id is not None and not 0 <= broker_id < 1 << 63:
        raise InvalidOptionError("broker_id", f"must be a number from 0 to 2^63 - 1, not {broker_id!r}")
    home = home_of(path, "follow a master there")
    chosen, plain = normalise(options, overrides), StoreOptions()
    for name in _OWN:
        if getattr(chosen, name) != getattr(plain, name):
            raise InvalidOptionError(name, "a copy of a master has no such option")
    _native.watch_forks()
    session = _native.FollowSession(
        master,
        home,
        protocol=protocol,
        metadata=metadata,
        metadata_interval_ms=math.ceil(pause * 1000),
        begin=begin,
        broker_id=broker_id,
        learner=protocol != "mqstore" if learner is None else learner,
        durable_acks=durable_acks,
        full_copy=full_copy,
        options=native_form(chosen),
    )
    return Follower(session, master, home, end_is_known=protocol != "default" or metadata is not None)


def promote(path: StorePath) -> str | None:
    """Makes a copy of a master a store of its own, which can be opened for writing. It must not be followed now.

    The log ends with the last whole message that the copy got. A standby (protocol `"mqstore"`) then has the metadata
    of its master: topics, groups, and the state of work queues. Make sure that the old master does not continue: its
    later messages are not in this store.

    Args:
        path: directory of the copy.

    Returns:
        Host and port of the former master; None if the store follows none.

    Raises:
        StoreLockedError: a follower or another program has it open.
        CorruptionError: the metadata of the master are damaged; nothing was changed.
    """
    return _native.promote_copy(home_of(path, "promote it"))


def demote(path: StorePath, master: str, *, protocol: ReplicaProtocol = "mqstore") -> None:
    """Makes a former master a copy of the new one, which `follow` continues. It must not be open for writing now.

    The next follower compares the epochs of both logs. It removes the messages that the new master does not have, keeps
    them in `mqstore/lost+found`, and says so.

    Args:
        path: directory of the former master: a store that was open with the option `replication`.
        master: host and port of the new master.
        protocol: the protocol of the new master: `"mqstore"`, or `"autoswitch"` for a broker in controller mode. The
            other one sends no epochs.

    Raises:
        StoreLockedError: a program has it open for writing.
        RefusedError: the log has no epochs: make a new copy instead.
    """
    _check_address("master", master)
    _native.demote_store(home_of(path, "demote it"), master, protocol)


def _check_address(name: str, address: object) -> None:
    if not isinstance(address, str):
        raise TypeError(f"{name} must be a str, not {type(address).__name__}")
    check_address(name, address)


class Follower(Running):
    """A copy that follows a master, from `mqstore.follow`."""

    def __init__(self, session: _native.FollowSession, master: str, path: str, *, end_is_known: bool) -> None:
        """Starts the thread. Programs call `mqstore.follow` instead."""
        self._session, self._master, self._path, self._end_is_known = session, master, path, end_is_known
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name="mqstore-follow", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<mqstore.Follower of {self._master} in {self._path!r}>"

    @property
    def path(self) -> str:
        """Directory of the copy."""
        return self._path

    def status(self) -> FollowStatus:
        """Returns how far the copy is. It waits for nothing."""
        return self._look()[0]

    def _look(self) -> tuple[FollowStatus, float]:
        """Returns the status, and the seconds since the end of the copy last moved."""
        self._check_process()
        found = self._session.status()
        lag_ms, quiet_ms = found.pop("lag_ms"), found.pop("quiet_ms")
        status = FollowStatus(
            master=self._master,
            lag_bytes=found["master_end"] - found["log_end"],
            lag_seconds=lag_ms / 1000,
            running=self.running,
            **found,
        )
        return status, quiet_ms / 1000

    def wait(self, offset: int | None = None, timeout: Duration | None = None) -> FollowStatus:
        """Waits until the copy has the log up to `offset`, or without it, everything that the master has.

        A master of the protocol `"default"` does not tell its end. Without `offset` and without `metadata`, the wait
        then ends when it has sent nothing for 0.2 seconds.

        Args:
            offset: a log offset of the master, for example `log_end` of its last message.
            timeout: longest wait; None has no limit.

        Returns:
            The status then.

        Raises:
            StoreTimeoutError: the timeout is over.
            StoreClosedError: the follower was closed.
            RefusedError: the copy is none of the master's log.
            MQStoreError, OSError: the error that ended the follower.
        """
        limit = math.inf if timeout is None else seconds_of("timeout", timeout)
        started = time.monotonic()
        while True:
            status, quiet_seconds = self._look()
            if offset is not None:
                is_there = status.log_end >= offset
            elif self._end_is_known:
                is_there = status.lag_bytes == 0 and status.lag_seconds < 1
            else:
                is_there = quiet_seconds >= _QUIET
            # Only then the copy is known to be one of this master.
            if is_there and status.state == "following":
                return status
            if not self.running:
                self._raise()
                raise StoreClosedError(self._path)
            waited = time.monotonic() - started
            if waited >= limit:
                what = f"the copy {self._path} has the log up to {status.log_end}"
                raise StoreTimeoutError(what, waited)
            self._ended.wait(min(_LOOK, limit - waited))

    def close(self) -> None:
        """Ends the connection, makes the copy durable and closes it. A second call does nothing.

        Raises:
            MQStoreError, OSError: the error that ended the follower before.
        """
        self._check_process()
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        self._session.close()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcessError(self._path)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                for line in self._session.step(_STEP_MS):
                    _log.warning("%s", line)
            except (MQStoreError, OSError) as error:
                self._error = error
                _log.error("the copy of %s has ended: %s", self._master, error)
                return


for _public in (Follower, demote, follow, promote):
    _public.__module__ = "mqstore"
