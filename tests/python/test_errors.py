"""The error tree: built-in classes, texts, attributes, equality, pickling."""

from __future__ import annotations

import copy
import errno
import io
import pickle
import queue
import traceback

import pytest

import mqstore
from mqstore import errors

SAMPLES: list[tuple[mqstore.MQStoreError, type[BaseException], str]] = [
    (mqstore.MQStoreError("all is lost"), Exception, "all is lost"),
    (mqstore.StoreLockedError("/s", 42), BlockingIOError, "/s: locked by process 42"),
    (mqstore.StoreLockedError("/s"), BlockingIOError, "/s: locked by"),
    (mqstore.StoreClosedError("/s"), ValueError, "/s: the store is closed"),
    (mqstore.ForkedProcessError("/s"), RuntimeError, "fork"),
    (mqstore.StoreReadOnlyError("/s", "append"), io.UnsupportedOperation, 'mode "rw"'),
    (mqstore.StorePoisonedError("/s", "a sync", "EIO"), OSError, "a sync failed (EIO)"),
    (mqstore.StoreIOError("/s/lock", "opening", errno.EMFILE, "too many"), OSError, "/s/lock: opening: too many"),
    (mqstore.StorePermissionError("/s", "opening", errno.EACCES, "no"), PermissionError, "/s: opening: no"),
    (
        mqstore.StoreChangedError("s3://b/s/f", "replaced: open it again"),
        OSError,
        "s3://b/s/f: replaced: open it again",
    ),
    (mqstore.RemoteStoreError("s3://b/s", "repair it"), io.UnsupportedOperation, "s3://b/s: cannot repair it: a store"),
    (mqstore.RemoteStoreError("a://b", "write", "no"), io.UnsupportedOperation, "a://b: cannot write: no"),
    (mqstore.ResultExistsError("a://b", "a result is there"), FileExistsError, "a://b: a result is there; choose"),
    (mqstore.ResultNotFoundError("a://b"), FileNotFoundError, "a://b: no result is published here"),
    (mqstore.ResultNotFoundError("/a"), FileNotFoundError, "/a: no archive is here"),
    (
        mqstore.MissingPackageError("obstore", "mqstore[cloud]"),
        ImportError,
        'obstore is not installed: run pip install "mqstore[cloud]"',
    ),
    (
        mqstore.MissingPackageError("paramiko", "paramiko", "sftp://host/a"),
        ImportError,
        "sftp://host/a: paramiko is not installed: run pip install paramiko",
    ),
    (mqstore.DiskFullError("/s", "growing it"), OSError, "no space left"),
    (mqstore.NotAStoreError("/s", "no commitlog"), FileNotFoundError, "/s: not a store: no commitlog"),
    (mqstore.CorruptionError("/s/f", 7, "bad magic"), ValueError, "/s/f at offset 7: bad magic"),
    (mqstore.UnsupportedFormatError("/s", "RocksDB"), NotImplementedError, "/s: RocksDB"),
    (mqstore.MessageTooLargeError("body", 9, 5), ValueError, "body is 9 bytes; the limit is 5"),
    (mqstore.InvalidMessageError("a key has a space"), ValueError, "a key has a space"),
    (mqstore.InvalidFilterError("a >", 3, "expected 5"), ValueError, "filter 'a >', column 4: expected 5"),
    (mqstore.InvalidOptionError("segment_size", "too small"), ValueError, "option segment_size: too small"),
    (mqstore.TopicNotFoundError("t"), KeyError, "no topic t"),
    (mqstore.TopicNotFoundError("t", 3), KeyError, "topic t has no queue 3"),
    (mqstore.TopicNotFoundError("ordres", None, "orders"), KeyError, "no topic ordres; did you mean orders?"),
    (mqstore.OffsetOutOfRangeError("t", 0, 9, 1, 5), IndexError, "holds 1 to 5"),
    (mqstore.RefusedError("topic t takes no messages"), ValueError, "topic t takes no messages"),
    (mqstore.StoreTimeoutError("the writer", 1.5), TimeoutError, "timed out after 1.5 s"),
    (mqstore.StoreBusyError("try again"), BlockingIOError, "try again"),
    (mqstore.ConsumerClosedError("g"), ValueError, "the consumer of group g is closed"),
    (mqstore.QueueNotAssignedError("g", "t", 1), LookupError, "queue t/1 is not assigned"),
    (mqstore.LeaseLostError("t", 0, 7, 2), RuntimeError, "message t/0 offset 7"),
    (mqstore.Empty("work queue t"), queue.Empty, "nothing to get from work queue t"),
    (mqstore.Full("work queue t", 3), queue.Full, "work queue t holds 3 messages"),
    (mqstore.QuotaFull("/s", "t", "max_messages", 9, 8), mqstore.Full, "topic t is full: it holds 8 messages"),
    (mqstore.QuotaFull("/s", None, "max_bytes", 99, 98), queue.Full, "/s: the log is full: its segments have 98 bytes"),
    (mqstore.ShutDown("work queue t"), getattr(queue, "ShutDown", Exception), "work queue t was shut down"),
]


def test_every_class_has_a_sample() -> None:
    classes = {getattr(errors, name) for name in errors.__all__} - {errors.StoreWarning}
    assert classes == {type(error) for error, _, _ in SAMPLES}


@pytest.mark.parametrize(("error", "builtin", "text"), SAMPLES, ids=lambda value: getattr(value, "__name__", None))
def test_error(error: mqstore.MQStoreError, builtin: type[BaseException], text: str) -> None:
    assert isinstance(error, mqstore.MQStoreError)
    assert isinstance(error, builtin)
    assert text in str(error)
    assert error.message == str(error)
    assert getattr(mqstore, type(error).__name__) is type(error)
    assert type(error).__module__ == "mqstore"
    assert type(error).__doc__
    assert eval(repr(error), vars(mqstore)) == error

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert again == error
        assert hash(again) == hash(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
    assert copy.copy(error) == error
    assert copy.deepcopy(error) == error


def test_errors_differ_by_value() -> None:
    assert mqstore.TopicNotFoundError("a") != mqstore.TopicNotFoundError("b")
    assert mqstore.InvalidMessageError("a") != mqstore.StoreBusyError("a")
    assert mqstore.InvalidMessageError("a") != ValueError("a")


def test_errors_are_frozen_but_can_be_raised() -> None:
    error = mqstore.CorruptionError("/s", 7, "bad")
    with pytest.raises(AttributeError, match="frozen"):
        error.offset = 8
    error.add_note("while testing")
    try:
        raise error from KeyError("cause")
    except mqstore.CorruptionError as caught:
        assert caught.__cause__ is not None
        assert "while testing" in "".join(traceback.format_exception(caught))
        assert caught.with_traceback(None) is caught
    again = pickle.loads(pickle.dumps(error))
    assert again.__notes__ == ["while testing"]


def test_os_errors_carry_numbers_and_names() -> None:
    error = mqstore.StorePermissionError("/s/lock", "opening", errno.EACCES, "Permission denied")
    assert (error.errno, error.strerror, error.filename) == (errno.EACCES, "Permission denied", "/s/lock")
    assert mqstore.DiskFullError("/s", "growing").errno == errno.ENOSPC
    assert mqstore.NotAStoreError("/s", "x").errno == errno.ENOENT
    assert mqstore.StoreLockedError("/s").errno == errno.EAGAIN


def test_key_error_prints_its_text_and_not_a_repr() -> None:
    assert str(mqstore.TopicNotFoundError("orders")) == "no topic orders"
