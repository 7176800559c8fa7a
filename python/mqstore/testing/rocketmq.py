"""Stand-ins for RocketMQ's Python client (`rocketmq-python-client` 5), with the same names, over a store.

Use them to test a program that uses the package `rocketmq`, without a broker, a port or a container::

    def test_an_order_is_announced(mqstore_rocketmq):
        import program  # uses `from rocketmq import Producer`

        program.announce(order=5)
        mqstore.testing.assert_appended(mqstore_rocketmq.store, "orders", 1, body={"order": 5})

With this fixture, `import rocketmq` returns these classes. Without it, put them in the place of the real classes,
inside `with Broker(store):`. They behave like the client for messages, receipts, filters by tag and SQL92, invisible
durations, delays and recalls, transactions, message groups, and dead letters. Lite topics and priorities raise an
exception.
"""

# The stand-ins ignore some parameters of the client.
# ruff: noqa: ARG002

from __future__ import annotations

import re
import sys
import threading
import time
import uuid
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore.testing import _exceptions
from mqstore.testing._broker import Broker, Draft, Held, running
from mqstore.testing._exceptions import (
    BadRequestException,
    ClientException,
    IllegalArgumentException,
    IllegalStateException,
    NotFoundException,
    UnsupportedException,
)
from mqstore.testing._rocketmq_message import FilterExpression, FilterType, Message, SendReceipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "BadRequestException", "Broker", "ClientConfiguration", "ClientException", "ConsumeResult", "Credentials",
    "FilterExpression", "FilterType", "IllegalArgumentException", "IllegalStateException", "Message", "MessageListener",
    "NotFoundException", "Producer", "PushConsumer", "SendReceipt", "SimpleConsumer", "Transaction",
    "TransactionChecker", "TransactionResolution", "UnsupportedException", "installed",
]  # fmt: skip

_NAME = re.compile(r"^[%a-zA-Z0-9_-]+$")
_MOST_BODY_BYTES = 4 << 20

# Type numbers in the client's protocol, and the wait between two tries of a listener.
_PUSH_CONSUMER, _SIMPLE_CONSUMER = 2, 3
_PUSH_WAIT = 0.1
_PUSH_INVISIBLE = 3600.0


class TransactionResolution:
    """Outcome of a transaction."""

    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class ConsumeResult(Enum):
    """Result of a listener for one message."""

    SUCCESS = 0
    FAILURE = 1


class Credentials:
    """An access key and its secret; the stand-ins do not check them."""

    def __init__(self, ak: str = "", sk: str = "") -> None:
        self.ak = ak or ""
        self.sk = sk or ""


class ClientConfiguration:
    """Endpoints of the broker; the stand-ins use the broker of this process instead."""

    def __init__(
        self, endpoints: str, credentials: Credentials, namespace: str = "", request_timeout: float = 3
    ) -> None:
        self.rpc_endpoints = endpoints
        self.credentials = credentials
        self.namespace = namespace
        self.request_timeout = request_timeout


class MessageListener:
    """Base class for the listener of a push consumer."""

    def consume(self, message: Message) -> ConsumeResult:
        """Processes a message. After FAILURE or an exception it is redelivered."""
        raise NotImplementedError


class TransactionChecker:
    """Base class for the checker of open transactions."""

    def check(self, message: Message) -> int:
        """Returns the outcome of the transaction of `message`, a value of `TransactionResolution`."""
        raise NotImplementedError


class _Client:
    """The life cycle of producers and consumers."""

    def __init__(self, client_configuration: ClientConfiguration) -> None:
        self.client_configuration = client_configuration
        self.client_id = f"mqstore-testing@{uuid.uuid4().hex}"
        self._broker: Broker | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._had_shutdown = False

    @property
    def is_running(self) -> bool:
        """Whether it was started and not shut down."""
        return self._broker is not None

    def startup(self) -> None:
        """Starts it. A client can be started only once."""
        if self._had_shutdown:
            raise IllegalStateException(f"{self} had shutdown, can't startup again.")
        self._broker = running()

    def shutdown(self) -> None:
        """Stops it."""
        if self._broker is None:
            return
        self._broker = None
        self._had_shutdown = True
        if self._pool is not None:
            self._pool.shutdown()

    def _running(self, doing: str) -> Broker:
        if self._broker is None:
            raise IllegalStateException(f"unable to {doing} because the client is not running")
        return self._broker

    def _later(self, doing: str, call: Callable[[], Any]) -> Future[Any]:
        self._running(doing)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(4, thread_name_prefix="mqstore-rocketmq")
        return self._pool.submit(call)


class Transaction:
    """A message that is hidden until `commit`; from `Producer.begin_transaction`, filled by `Producer.send`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._message: Message | None = None
        self._receipt: SendReceipt | None = None

    def add_half_message(self, message: Message) -> None:
        """Adds the only message of the transaction."""
        if message is None:
            raise IllegalArgumentException("add half message error, message is none.")
        if self._message is not None:
            raise IllegalArgumentException(f"message already existed in transaction, topic:{message.topic}")
        self._message = message

    def add_send_receipt(self, send_receipt: SendReceipt | None) -> None:
        """Adds the receipt of the message."""
        if self._message is None:
            raise IllegalArgumentException("add send receipt error, no message in transaction.")
        if send_receipt is None or send_receipt.message_id != self._message.message_id:
            raise IllegalArgumentException("can't add another send receipt to a half message.")
        self._receipt = send_receipt

    def commit(self) -> None:
        """Makes the message visible."""
        self._end(commit=True)

    def rollback(self) -> None:
        """Drops the message."""
        self._end(commit=False)

    @property
    def message_id(self) -> str | None:
        """Id of the message."""
        return None if self._message is None else self._message.message_id

    def _end(self, *, commit: bool) -> None:
        if self._message is None:
            raise IllegalArgumentException("no message in transaction.")
        if self._receipt is None or self._receipt.transaction_id is None:
            raise IllegalArgumentException("no transaction_id in transaction, must send half message at first.")
        broker = self._producer._running("end transaction")
        broker.end_transaction(self._receipt.transaction_id, commit=commit)


class Producer(_Client):
    """Sends messages."""

    def __init__(
        self,
        client_configuration: ClientConfiguration,
        topics: Any = None,
        checker: TransactionChecker | None = None,
        tls_enable: bool = False,
    ) -> None:
        super().__init__(client_configuration)
        self.topics = set(topics or ())
        self._checker = checker

    def send(self, message: Message, transaction: Transaction | None = None) -> SendReceipt:
        """Sends a message; a message of a transaction is visible after its commit."""
        broker = self._running("send")
        draft = _draft(message, broker, in_transaction=transaction is not None)
        if transaction is not None:
            transaction.add_half_message(message)
            receipt = SendReceipt(
                draft.message_id, broker.begin(draft, self._check), SimpleNamespace(topic=draft.topic), 0
            )
            transaction.add_send_receipt(receipt)
            return receipt
        if message.delivery_timestamp is not None:
            handle = broker.delay(draft, message.delivery_timestamp)
            return SendReceipt(draft.message_id, None, SimpleNamespace(topic=draft.topic), 0, handle)
        result = broker.send(draft)
        queue = SimpleNamespace(topic=result.topic, queue_id=result.queue_id)
        return SendReceipt(draft.message_id, None, queue, result.queue_offset)

    def send_async(self, message: Message) -> Future[Any]:
        """Like `send`; returns a future of the receipt."""
        return self._later("send", lambda: self.send(message))

    def recall_message(self, topic: str, recall_handle: str) -> str:
        """Recalls a delayed message that is not due and returns its id."""
        return self._running("recall message").recall(topic, recall_handle)

    def recall_message_async(self, topic: str, recall_handle: str) -> Future[Any]:
        """Like `recall_message`; returns a future of the id."""
        return self._later("recall message", lambda: self.recall_message(topic, recall_handle))

    def begin_transaction(self) -> Transaction:
        """Begins a transaction for one message."""
        self._running("begin transaction")
        if self._checker is None:
            raise IllegalArgumentException("Transaction checker should not be null.")
        return Transaction(self)

    def _check(self, draft: Draft) -> int:
        if self._checker is None or not self.is_running:
            return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        return self._checker.check(Message._of_draft(draft))


class _Consumer(_Client):
    """The group and the subscriptions of consumers."""

    def __init__(
        self,
        client_configuration: ClientConfiguration,
        consumer_group: str,
        subscription: dict[str, FilterExpression] | None,
    ) -> None:
        if not consumer_group or not consumer_group.strip():
            raise IllegalArgumentException("consumerGroup should not be null")
        if not _NAME.match(consumer_group):
            raise IllegalArgumentException(f"consumerGroup does not match the regex [regex={_NAME.pattern}]")
        super().__init__(client_configuration)
        self.consumer_group = consumer_group
        self._subscriptions = {topic: _condition(given) for topic, given in (subscription or {}).items()}

    def subscribe(self, topic: str, filter_expression: FilterExpression | None = None) -> None:
        """Subscribes to a topic, with all messages or those that match a filter."""
        self._running("add subscription")
        if not _NAME.match(topic):
            raise IllegalStateException("unable to add subscription because topic name is invalid")
        self._subscriptions[topic] = _condition(filter_expression)

    def unsubscribe(self, topic: str) -> None:
        """Ends the subscription to a topic."""
        self._running("remove subscription")
        self._subscriptions.pop(topic, None)


class SimpleConsumer(_Consumer):
    """Receives messages by explicit calls and acknowledges them."""

    def __init__(
        self,
        client_configuration: ClientConfiguration,
        consumer_group: str,
        subscription: dict[str, FilterExpression] | None = None,
        await_duration: float = 20,
        client_type: int = _SIMPLE_CONSUMER,
        tls_enable: bool = False,
    ) -> None:
        if await_duration is None:
            raise IllegalArgumentException("awaitDuration should not be null")
        super().__init__(client_configuration, consumer_group, subscription)
        self.await_duration = await_duration
        self._turn = 0

    def receive(self, max_message_num: int, invisible_duration: float) -> list[Message]:
        """Returns messages of the next topic in turn; none after `await_duration` seconds of the machine's clock.

        If the broker has a `ManualClock`, it does not wait: no message comes before the test does something.

        Args:
            max_message_num: maximum number of messages.
            invisible_duration: seconds of the broker's clock until an unacknowledged message is redelivered.
        """
        broker = self._running("receive message")
        if not self._subscriptions:
            raise IllegalArgumentException("There is no topic to receive message")
        if max_message_num <= 0:
            raise IllegalArgumentException("max_message_num must be greater than 0")
        topics = list(self._subscriptions)
        topic = topics[self._turn % len(topics)]
        self._turn += 1
        held = broker.receive(
            self.consumer_group,
            topic,
            self._subscriptions[topic],
            max_message_num,
            float(invisible_duration),
            0.0 if broker.is_manual else float(self.await_duration),
            lambda: self.is_running,
        )
        return [Message._of_held(each) for each in held]

    def receive_async(self, max_message_num: int, invisible_duration: float) -> Future[Any]:
        """Like `receive`; returns a future of the messages."""
        return self._later("receive message", lambda: self.receive(max_message_num, invisible_duration))

    def ack(self, message: Message) -> None:
        """Acknowledges the message for the group."""
        broker = self._running("ack message")
        broker.acknowledge(self.consumer_group, message.topic or "", message.receipt_handle)

    def ack_async(self, message: Message) -> Future[Any]:
        """Like `ack`; returns a future of None. The real client does not return it."""
        return self._later("ack message", lambda: self.ack(message))

    def change_invisible_duration(self, message: Message, invisible_duration: float) -> None:
        """Hides the message for `invisible_duration` seconds from now."""
        broker, topic = self._running("change invisible duration"), message.topic or ""
        seconds = float(invisible_duration)
        message.receipt_handle = broker.hide(self.consumer_group, topic, message.receipt_handle, seconds)

    def change_invisible_duration_async(self, message: Message, invisible_duration: float) -> Future[Any]:
        """Like `change_invisible_duration`; returns a future of None. The real client does not return it."""
        return self._later(
            "change invisible duration", lambda: self.change_invisible_duration(message, invisible_duration)
        )


class PushConsumer(_Consumer):
    """Passes messages to a listener, in its own threads, from `startup` to `shutdown`."""

    def __init__(
        self,
        client_configuration: ClientConfiguration,
        consumer_group: str,
        message_listener: MessageListener | None,
        subscription: dict[str, FilterExpression],
        max_cache_message_count: int = 1024,
        max_cache_message_size: int = 64 * 1024 * 1024,
        consumption_thread_count: int = 20,
        tls_enable: bool = False,
        client_type: int = _PUSH_CONSUMER,
    ) -> None:
        if message_listener is None:
            raise IllegalArgumentException("message_listener should not be null")
        if not subscription:
            raise IllegalArgumentException("subscription should not be null")
        super().__init__(client_configuration, consumer_group, subscription)
        self._listener = message_listener
        self._count = consumption_thread_count
        self._threads: list[threading.Thread] = []

    def startup(self) -> None:
        """Starts it; the listener gets calls from now on."""
        super().startup()
        self._threads = [
            threading.Thread(target=self._consume, name=f"mqstore-rocketmq-{number}", daemon=True)
            for number in range(self._count)
        ]
        for thread in self._threads:
            thread.start()

    def shutdown(self) -> None:
        """Stops it, after the current calls of the listener have returned."""
        super().shutdown()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads = []

    def _consume(self) -> None:
        broker = self._broker
        while broker is not None and self.is_running:
            subscriptions = list(self._subscriptions.items())
            if not subscriptions:
                time.sleep(_PUSH_WAIT)
            for topic, condition in subscriptions:
                for held in broker.receive(
                    self.consumer_group,
                    topic,
                    condition,
                    1,
                    _PUSH_INVISIBLE,
                    _PUSH_WAIT / len(subscriptions),
                    lambda: self.is_running,
                ):
                    self._give(broker, held)

    def _give(self, broker: Broker, held: Held) -> None:
        message = Message._of_held(held)
        try:
            result = self._listener.consume(message)
        except Exception:  # noqa: BLE001 - as in the client: after any error the message is redelivered
            result = ConsumeResult.FAILURE
        group, topic = self.consumer_group, message.topic or ""
        # If the test moved the clock, the message may be redelivered already.
        try:
            # A listener that was imported earlier returns the enum of the real client.
            if getattr(result, "name", None) == ConsumeResult.SUCCESS.name:
                broker.acknowledge(group, topic, message.receipt_handle)
            else:
                broker.hide(group, topic, message.receipt_handle, broker.retry_delay)
        except BadRequestException:
            return


def _condition(expression: FilterExpression | None) -> Any:
    if expression is None or expression.expression in (None, "", "*"):
        return None
    if expression.filter_type == FilterType.SQL:
        return mqstore.sql(expression.expression)
    return expression.expression


def _draft(message: Message, broker: Broker, *, in_transaction: bool) -> Draft:
    if not message.topic:
        raise IllegalArgumentException("topic has not been set yet.")
    if not message.body:
        raise IllegalArgumentException("message body is none.")
    if len(message.body) > _MOST_BODY_BYTES:
        raise IllegalArgumentException(f"Message body size exceeds the threshold, max size={_MOST_BODY_BYTES} bytes")
    if in_transaction and (message.message_group or message.delivery_timestamp):
        raise IllegalArgumentException("transactional message should not set message_group or delivery_timestamp")
    if message.lite_topic or message.priority is not None:
        raise UnsupportedException("the stand-ins have neither lite topics nor priorities")
    message.message_id = uuid.uuid4().hex.upper()
    return Draft(
        message.topic,
        bytes(message.body),
        tuple(sorted(message.keys)),
        message.tag,
        dict(message.properties),
        message.message_id,
        message.message_group,
        round(broker.now * 1000),
    )


@contextmanager
def installed() -> Iterator[None]:
    """Makes `import rocketmq` return these stand-ins, inside the `with` block.

    `rocketmq.v5.exception` and `rocketmq.grpc_protocol` (`FilterType`, `TransactionResolution`) exist too. In modules
    that imported names of the real client before, the stand-ins replace these names until the end of the block.
    Attributes of classes and default values of parameters keep the real ones.

    Warns:
        UserWarning: a module has a name of the real client without a stand-in, such as `LitePushConsumer`.
    """
    exceptions, protocol = ModuleType("rocketmq.v5.exception"), ModuleType("rocketmq.grpc_protocol")
    vars(exceptions).update({name: getattr(_exceptions, name) for name in _exceptions.__all__})
    vars(protocol).update(FilterType=FilterType, TransactionResolution=TransactionResolution)
    modules = {
        "rocketmq": sys.modules[__name__],
        "rocketmq.v5": ModuleType("rocketmq.v5"),
        "rocketmq.v5.exception": exceptions,
        "rocketmq.grpc_protocol": protocol,
    }
    before = {name: sys.modules.get(name) for name in modules}
    replaced = list(_names_of_the_client(modules))
    sys.modules.update(modules)
    for program, name, _, stand_in in replaced:
        setattr(program, name, stand_in)
    try:
        yield
    finally:
        for program, name, real, _ in replaced:
            setattr(program, name, real)
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def _names_of_the_client(modules: dict[str, ModuleType]) -> Iterator[tuple[ModuleType, str, Any, Any]]:
    """Yields the names of the real client in modules that are already imported: module, name, value and stand-in."""
    stand_ins: dict[int, Any] = {}
    real = {name: module for name, module in sys.modules.items() if _is_of_the_client(name)}
    for name, module in real.items():
        # A class is the same object in all modules of the client.
        own = [(each, getattr(sys.modules[__name__], each, None)) for each in vars(module)]
        stand_ins |= {id(vars(module)[each]): stand_in for each, stand_in in own if stand_in and each in __all__}
        if name in modules:
            stand_ins[id(module)] = modules[name]
    # A program may put objects of any kind among the modules.
    others: list[Any] = list(sys.modules.values())
    for program in others:
        name = str(getattr(program, "__name__", ""))
        if not isinstance(program, ModuleType) or _is_of_the_client(name) or name == __name__:
            continue
        for each, value in list(vars(program).items()):
            if id(value) in stand_ins:
                yield program, each, value, stand_ins[id(value)]
            elif isinstance(value, type) and _is_of_the_client(str(value.__module__)) and not each.startswith("_"):
                text = f"{name}.{each} is a class of the package rocketmq without a stand-in"
                warnings.warn(text, UserWarning, stacklevel=4)


def _is_of_the_client(name: str) -> bool:
    return name == "rocketmq" or name.startswith("rocketmq.")
