"""A transport for kombu, so that Celery runs over a store: `Celery(broker="mqstore:////var/lib/shop/store")`.

The import registers the scheme `mqstore`. This file owns the table of bindings (the topic `kombu-bindings`), which all
processes share. Each queue of kombu is a work queue. A message is delivered until it is acknowledged, so after a kill
of a worker its messages are redelivered when their leases end. A fanout exchange is one topic: each bound queue reads
the messages that were published after it was bound, and a kill ends the queue.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore.errors import ForkedProcessError, MissingPackageError, ShutDown, StoreClosedError, TopicNotFoundError
from mqstore.integrations._lease_keeper import LeaseKeeper
from mqstore.integrations._store_handle import StoreHandle, keys_of, topic_of

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.utils.json import dumps, loads
except ModuleNotFoundError as error:
    raise MissingPackageError((error.name or "kombu").partition(".")[0], "mqstore[celery]") from error

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Channel", "Transport"]

_BINDINGS = "kombu-bindings"
_GROUP = "kombu"

# Values of the table of bindings: kinds of queues.
_TRANSIENT, _LASTING = b"transient", b"lasting"

# The longest delay of a message in a work queue.
_LONGEST_DELAY = timedelta(days=30)


class QoS(virtual.QoS):
    """Acknowledges and returns messages by their leases."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledges a message."""
        self.channel.finish(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Returns a message to its queue, or drops it."""
        if requeue:
            self.channel.give_back(delivery_tag)
        else:
            self.channel.finish(delivery_tag)
        super().ack(delivery_tag)


class Channel(virtual.Channel):
    """A channel of kombu. Its methods are those that kombu asks of a virtual transport."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        """Is called by kombu."""
        super().__init__(connection, **kwargs)
        self._shared = connection.shared
        # Queues whose messages need no acknowledgement, and all queues that this channel has consumed.
        self._without_ack: set[str] = set()
        self._consumed: set[str] = set()

    def finish(self, delivery_tag: str) -> None:
        """Acknowledges the message with this tag, if it is not finished yet."""
        if (lease := self._shared.leases.pop(delivery_tag, None)) is not None:
            self._shared.keeper.finish(lease)

    def give_back(self, delivery_tag: str) -> None:
        """Returns the message with this tag to its queue, if it is not finished yet."""
        if (lease := self._shared.leases.pop(delivery_tag, None)) is not None:
            self._shared.keeper.give_back(lease)

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **kwargs: Any
    ) -> Any:
        """Begins to consume a queue."""
        self._consumed.add(queue)
        if no_ack:
            self._without_ack.add(queue)
        return super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Returns the next message of a queue, or None."""
        message = super().basic_get(queue, no_ack, **kwargs)
        if no_ack and message is not None:
            self.finish(message.delivery_tag)
        return message

    def close(self) -> None:
        """Returns the messages that are not acknowledged, and deletes the exclusive queues of this channel."""
        if not self.closed:
            with suppress(ForkedProcessError, StoreClosedError):
                for queue in self._shared.transient & self._consumed:
                    self.queue_delete(queue)
        super().close()

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Returns the bindings of an exchange, by all processes."""
        found = (tuple(json.loads(key)) for key in self._shared.bindings())
        return [
            (routing_key, pattern or None, queue) for name, routing_key, pattern, queue in found if name == exchange
        ]

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_kwargs: Any) -> None:  # noqa: ARG002
        """Deletes a queue and its bindings by all processes."""
        if not (if_empty and self._size(queue)):
            self._delete(queue)
            self.state.queue_bindings_delete(queue)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **_kwargs: Any
    ) -> None:
        """Removes a binding."""
        self.state.binding_delete(queue, exchange, routing_key)
        meta = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, arguments)
        self._shared.unbind(_binding(exchange, *meta))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        if self.typeof(exchange).type == "fanout":
            self._shared.subscribe(queue, exchange)
        else:
            self._shared.bind(_binding(exchange, routing_key, pattern, queue), queue)

    def _new_queue(self, queue: str, auto_delete: bool = False, exclusive: bool = False, **_kwargs: Any) -> None:
        # The first message or consumer makes the topic: a queue of a fanout exchange needs none.
        if auto_delete or exclusive:
            self._shared.transient.add(queue)

    def _has_queue(self, queue: str, **_kwargs: Any) -> bool:
        return queue in self._shared.fanouts or self._shared.has_topic(queue)

    def _put(self, queue: str, message: dict[str, Any], **_kwargs: Any) -> None:
        self._shared.put(queue, message)

    def _put_fanout(self, exchange: str, message: dict[str, Any], *_args: Any, **_kwargs: Any) -> None:
        self._shared.handle.store.append(_fanout_topic(exchange), dumps(message).encode())

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 - it never waits
        payload, lease = self._shared.get(queue)
        tag = payload["properties"]["delivery_tag"] = self._next_delivery_tag()
        if lease is not None:
            if lease.attempt > 1:
                payload["headers"]["redelivered"] = True
                payload["properties"]["delivery_info"]["redelivered"] = True
            if queue in self._without_ack:
                lease.ack()
            else:
                self._shared.leases[tag] = lease
                self._shared.keeper.hold(lease)
        return payload

    def _restore(self, message: Any) -> None:
        self.give_back(message.delivery_tag)

    def _size(self, queue: str) -> int:
        if queue in self._shared.fanouts or not self._shared.has_topic(queue):
            return 0
        return self._shared.queue(queue).qsize()

    def _purge(self, queue: str) -> int:
        if queue in self._shared.fanouts or not self._shared.has_topic(queue):
            return 0
        return self._shared.queue(queue).purge()

    def _delete(self, queue: str, *_args: Any, **_kwargs: Any) -> None:
        self._shared.delete(queue)


class _Shared:
    """What the channels of a connection share: the store, the leases by delivery tag, and the fanout queues."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        timeout = float(options.pop("visibility_timeout", 30))
        self._prefix = options.pop("prefix", "kombu-")
        self._durable = bool(options.pop("durable", False))
        self._options: dict[str, Any] = {
            "visibility_timeout": timeout,
            "max_attempts": options.pop("max_attempts", None),
        }
        self.handle = StoreHandle(path, options.pop("mode", "share"), options)
        self.keeper = LeaseKeeper("mqstore-kombu", timeout)
        self.leases: dict[str, mqstore.LeasedMessage] = {}
        self.fanouts: dict[str, mqstore.Consumer] = {}
        # Queues that this connection declared as transient, and queues that are known not to be.
        self.transient: set[str] = set()
        self._lasting: set[str] = set()

    def has_topic(self, queue: str) -> bool:
        return topic_of(self._prefix, queue) in self.handle.store.topics()

    def queue(self, queue: str) -> mqstore.WorkQueue:
        return self.handle.work_queue(topic_of(self._prefix, queue), self._group_of(queue), **self._options)

    def _group_of(self, queue: str) -> str | None:
        # The names of transient queues are random, and the store would keep a group for each of them.
        return _GROUP if queue in self.transient else None

    def put(self, queue: str, message: dict[str, Any]) -> None:
        body = dumps(message).encode()
        options: dict[str, Any] = {
            "keys": keys_of(message["properties"].get("correlation_id") or ""),
            "tags": (message.get("headers") or {}).get("task"),
            "durable": self._durable,
        }
        if self._is_transient(queue):
            # A handle for each would stay open, because their names are random.
            self.handle.store.append(topic_of(self._prefix, queue), body, **options)
        else:
            # It registers the group, so a retention keeps the message until the first worker comes.
            self.queue(queue).put(body, deliver_at=_due(message), **options)

    def _is_transient(self, queue: str) -> bool:
        """Returns whether a process declared this queue as exclusive or to be deleted."""
        if queue not in self._lasting:
            bindings = self.bindings().items()
            if any(message.body == _TRANSIENT and json.loads(key)[-1] == queue for key, message in bindings):
                return True
            self._lasting.add(queue)
        return False

    def get(self, queue: str) -> tuple[dict[str, Any], mqstore.LeasedMessage | None]:
        if (consumer := self.fanouts.get(queue)) is not None:
            if not (found := consumer.poll(1, timeout=0)):
                raise Empty
            return loads(found[0].body), None
        lease = self.queue(queue).get_nowait()
        try:
            payload = loads(lease.body)
            payload["properties"]["delivery_info"], payload["headers"]
        except (KeyError, TypeError, ValueError) as error:
            self.keeper.bury(lease, self.handle.store, self.queue(queue), repr(error))
            raise Empty from None
        return payload, lease

    def bindings(self) -> mqstore.Table:
        return self.handle.table(_BINDINGS)

    def bind(self, key: str, queue: str) -> None:
        if key not in (table := self.bindings()):
            table[key] = _TRANSIENT if queue in self.transient else _LASTING

    def unbind(self, key: str) -> None:
        with suppress(KeyError):
            del self.bindings()[key]

    def subscribe(self, queue: str, exchange: str) -> None:
        """Makes a queue of a fanout exchange: it gets the messages from now on."""
        store, topic = self.handle.store, _fanout_topic(exchange)
        store.create_topic(topic, queues=1)
        self.fanouts[queue] = store.consumer(_GROUP, topic, start="latest", broadcast=True)

    def delete(self, queue: str) -> None:
        if (consumer := self.fanouts.pop(queue, None)) is not None:
            consumer.close()
            return
        for key in list(self.bindings()):
            if json.loads(key)[-1] == queue:
                self.unbind(key)
        topic = topic_of(self._prefix, queue)
        self.handle.close_queue(topic, self._group_of(queue))
        with suppress(TopicNotFoundError):
            self.handle.store.delete_topic(topic)

    def close(self) -> None:
        self.keeper.close()
        for consumer in self.fanouts.values():
            consumer.close()
        self.fanouts.clear()
        self.handle.close()


class Transport(virtual.Transport):
    """The transport of `mqstore:////absolute/path` and `mqstore:///relative/path`.

    Options of `transport_options`: `mode`, `visibility_timeout` (seconds after which the messages of a killed worker
    are redelivered), `max_attempts` (deliveries after which a message becomes a dead letter; None is no limit),
    `durable` (whether a publication waits until the message is on the disk), `prefix` of the topics, `polling_interval`
    (seconds), and the arguments of `mqstore.open`.
    """

    Channel = Channel
    driver_type = "mqstore"
    driver_name = "mqstore"
    # A look into an empty queue takes microseconds.
    polling_interval = 0.02
    connection_errors: Any = (
        *virtual.Transport.connection_errors,
        ForkedProcessError,
        ShutDown,
        StoreClosedError,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """Is called by kombu.

        Raises:
            ValueError: the URL has no path, or it has a host.
        """
        super().__init__(client, **kwargs)
        if client.hostname or client.virtual_host in (None, "", "/"):
            raise ValueError("the URL of the broker needs three slashes and the path of a store: mqstore:///data/store")
        options = dict(client.transport_options)
        for name in _OPTIONS_OF_KOMBU:
            options.pop(name, None)
        self.shared = _Shared(client.virtual_host, options)

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """The parts of a URL that kombu adds to a copy of a connection: none."""
        return {}

    def establish_connection(self) -> Any:
        """Opens the store."""
        self.shared.handle.store  # noqa: B018 - an error of the open belongs here
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Closes the channels, and the store if nothing else in this process uses it."""
        super().close_connection(connection)
        self.shared.close()

    def driver_version(self) -> str:
        """Returns the version of mqstore."""
        return mqstore.__version__


# Options that kombu and Celery themselves use.
_OPTIONS_OF_KOMBU = (
    "body_encoding", "callback", "confirm_publish", "deadletter_queue", "errback", "interval_max", "interval_start",
    "interval_step", "max_retries", "polling_interval", "retry_errors",
)  # fmt: skip


def _binding(exchange: str | None, routing_key: str, pattern: str | None, queue: str) -> str:
    """Returns the key of a binding in the table. Blanks would separate keys."""
    text = json.dumps([exchange, routing_key, pattern or "", queue], separators=(",", ":"))
    return text.replace(" ", "\\u0020")


def _fanout_topic(exchange: str) -> str:
    return topic_of("kombu-fanout-", exchange)


def _due(message: dict[str, Any]) -> datetime | None:
    """Returns the time before which no worker needs a task of Celery: its `eta`, if the store can wait so long."""
    try:
        due = datetime.fromisoformat((message.get("headers") or {}).get("eta") or "")
    except (TypeError, ValueError):
        return None
    if due.tzinfo is None:
        return None
    return due if timedelta() < due - datetime.now(UTC) < _LONGEST_DELAY else None


TRANSPORT_ALIASES["mqstore"] = f"{__name__}:Transport"
