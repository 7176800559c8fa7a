"""`mqstore.testing.rocketmq`: the replacements for RocketMQ's Python client, and the names of that client."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.testing
from mqstore.testing import ManualClock, assert_appended, messages
from mqstore.testing import rocketmq as client

NOWHERE = client.ClientConfiguration("nowhere:8081", client.Credentials())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def broker(home: Path, clock: ManualClock) -> Iterator[client.Broker]:
    with mqstore.testing.open(home, clock=clock) as store, client.Broker(store, clock=clock) as opened:
        yield opened


def message(body: bytes = b"body", topic: str = "orders", **parts: Any) -> client.Message:
    made = client.Message()
    made.topic, made.body = topic, body
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def producer(checker: client.TransactionChecker | None = None) -> client.Producer:
    made = client.Producer(NOWHERE, ["orders"], checker)
    made.startup()
    return made


def consumer(group: str = "group", filter: client.FilterExpression | None = None) -> client.SimpleConsumer:
    made = client.SimpleConsumer(NOWHERE, group, {"orders": filter or client.FilterExpression()}, await_duration=0)
    made.startup()
    return made


def bodies(found: list[client.Message]) -> list[bytes | None]:
    return [each.body for each in found]


def test_a_message_arrives_as_it_was_sent(broker: client.Broker, clock: ManualClock) -> None:
    sent = message(b'{"order": 5}', tag="paid", keys="A-1")
    sent.keys = "A-2"  # type: ignore[assignment]
    sent.add_property("region", "eu")
    receipt = producer().send(sent)
    (stored,) = assert_appended(broker.store, "orders", 1, body={"order": 5}, keys=["A-1", "A-2"], tags="paid")
    assert (receipt.message_id, receipt.offset, receipt.transaction_id) == (stored.unique_id, 0, None)
    assert receipt.message_queue.queue_id == 0
    receiver = consumer()
    (found,) = receiver.receive(16, 10)
    assert (found.topic, found.body, found.tag, found.keys) == ("orders", b'{"order": 5}', "paid", {"A-1", "A-2"})
    assert found.properties == {"region": "eu"}
    assert (found.message_id, found.delivery_attempt) == (receipt.message_id, 1)
    assert found.born_timestamp == clock.timestamp
    receiver.ack(found)
    clock.advance(1000)
    assert receiver.receive(16, 10) == []
    assert producer().send_async(message()).result(10).offset == 1
    assert len(receiver.receive_async(16, 10).result(10)) == 1


def test_what_is_not_acknowledged_comes_again(broker: client.Broker, clock: ManualClock) -> None:
    sender, receiver, other = producer(), consumer(), consumer("other")
    for number in range(5):
        sender.send(message(b"%d" % number))
    first = receiver.receive(2, 10)
    assert bodies(first) == [b"0", b"1"]
    assert bodies(receiver.receive(16, 60)) == [b"2", b"3", b"4"]
    assert len(other.receive(16, 10)) == 5
    receiver.ack(first[0])
    clock.advance(11)
    again = receiver.receive(16, 10)
    assert [(each.body, each.delivery_attempt) for each in again] == [(b"1", 2)]
    # Its handle is that of the second delivery.
    for late in (lambda: receiver.ack(first[1]), lambda: receiver.ack(first[0])):
        with pytest.raises(client.BadRequestException, match="void"):
            late()
    receiver.change_invisible_duration(again[0], 100)
    clock.advance(50)
    assert bodies(receiver.receive(16, 10)) == [b"2", b"3", b"4"]
    receiver.ack_async(again[0]).result(10)
    clock.advance(100)
    assert b"1" not in bodies(receiver.receive(16, 10))


def test_a_message_that_nobody_can_consume_is_a_dead_letter(broker: client.Broker, clock: ManualClock) -> None:
    broker.max_attempts = 3
    producer().send(message(b"bad", tag="t", keys="k"))
    receiver = consumer()
    for attempt in (1, 2, 3):
        assert receiver.receive(1, 1)[0].delivery_attempt == attempt
        clock.advance(2)
    assert receiver.receive(1, 1) == []
    assert_appended(broker.store, "%DLQ%group", 1, body=b"bad", keys="k", tags="t")


def test_filters(broker: client.Broker) -> None:
    sender = producer()
    for number in range(6):
        sent = message(b"%d" % number, tag="even" if number % 2 == 0 else "odd")
        sent.add_property("price", str(number))
        sender.send(sent)
    assert bodies(consumer("tags", client.FilterExpression("even")).receive(9, 9)) == [b"0", b"2", b"4"]
    assert len(consumer("both", client.FilterExpression("even || odd")).receive(9, 9)) == 6
    condition = client.FilterExpression("price > 3", client.FilterType.SQL)
    assert bodies(consumer("sql", condition).receive(9, 9)) == [b"4", b"5"]


def test_subscriptions_take_turns(broker: client.Broker) -> None:
    sender, receiver = producer(), consumer()
    receiver.subscribe("events")
    sender.send(message(b"order"))
    sender.send(message(b"event", topic="events"))
    assert [bodies(receiver.receive(9, 9)) for _ in range(3)] == [[b"order"], [b"event"], []]
    for topic in ("orders", "events"):
        receiver.unsubscribe(topic)
    with pytest.raises(client.IllegalArgumentException, match="no topic"):
        receiver.receive(9, 9)


def test_a_delayed_message_waits_for_the_clock_and_can_be_recalled(broker: client.Broker, clock: ManualClock) -> None:
    sender, receiver = producer(), consumer()
    due = int(clock.time()) + 60
    kept = sender.send(message(b"kept", delivery_timestamp=due))
    dropped = sender.send(message(b"dropped", delivery_timestamp=due))
    assert kept.recall_handle
    assert dropped.recall_handle
    assert messages(broker.store, "orders") == []
    assert sender.recall_message("orders", dropped.recall_handle) == dropped.message_id
    clock.advance(59)
    assert receiver.receive(9, 9) == []
    clock.advance(1)
    assert bodies(receiver.receive(9, 9)) == [b"kept"]
    for handle in (kept.recall_handle, dropped.recall_handle):
        with pytest.raises(client.NotFoundException):
            sender.recall_message("orders", handle)
    with pytest.raises(client.NotFoundException):
        sender.recall_message_async("orders", "nothing").result(10)


def test_a_message_group_is_consumed_in_order(broker: client.Broker) -> None:
    broker.store.create_topic("orders", queues=4)
    sender, receiver = producer(), consumer()
    for number in range(3):
        for group in ("a", "b"):
            sender.send(message(b"%s%d" % (group.encode(), number), message_group=group))
    assert len({stored.queue_id for stored in messages(broker.store, "orders") if stored.body[:1] == b"a"}) == 1
    seen = []
    for _ in range(3):
        found = receiver.receive(16, 100)
        assert [each.message_group for each in found] == ["a", "b"]
        assert receiver.receive(16, 100) == []
        for each in found:
            seen.append(each.body)
            receiver.ack(each)
    assert seen == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]


class Answers(client.TransactionChecker):
    def __init__(self) -> None:
        self.asked: list[bytes | None] = []
        self.answer = client.TransactionResolution.COMMIT

    def check(self, message: client.Message) -> int:
        self.asked.append(message.body)
        return self.answer


def test_transactions(broker: client.Broker) -> None:
    checker = Answers()
    sender = producer(checker)

    def begun(body: bytes) -> client.Transaction:
        transaction = sender.begin_transaction()
        receipt = sender.send(message(body), transaction)
        assert receipt.transaction_id
        assert transaction.message_id == receipt.message_id
        return transaction

    committed, rolled, left = begun(b"committed"), begun(b"rolled back"), begun(b"left")
    assert messages(broker.store, "orders") == []
    committed.commit()
    rolled.rollback()
    assert [m.body for m in messages(broker.store, "orders")] == [b"committed"]
    for over in (committed.commit, rolled.rollback):
        with pytest.raises(client.BadRequestException):
            over()
    checker.answer = client.TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
    assert (broker.check_transactions(), broker.open_transactions) == (0, 1)
    checker.answer = client.TransactionResolution.COMMIT
    assert (broker.check_transactions(), broker.open_transactions) == (1, 0)
    assert checker.asked == [b"left"] * 2
    assert_appended(broker.store, "orders", 1, body=b"left")
    with pytest.raises(client.BadRequestException):
        left.commit()
    with pytest.raises(client.IllegalArgumentException, match="no message"):
        sender.begin_transaction().commit()
    with pytest.raises(client.IllegalArgumentException, match="message_group"):
        sender.send(message(message_group="g"), sender.begin_transaction())
    with pytest.raises(client.IllegalArgumentException, match="checker"):
        producer().begin_transaction()


class Listener(client.MessageListener):
    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.seen: list[tuple[bytes | None, int | None]] = []
        self.done = threading.Event()

    def consume(self, message: client.Message) -> client.ConsumeResult:
        self.seen.append((message.body, message.delivery_attempt))
        if len(self.seen) <= self.failures:
            if self.failures == 2 and len(self.seen) == 1:
                raise RuntimeError
            return client.ConsumeResult.FAILURE
        self.done.set()
        return client.ConsumeResult.SUCCESS


def test_a_listener_gets_each_message_until_it_takes_it(home: Path) -> None:
    with mqstore.testing.open(home) as store, client.Broker(store) as broker:
        listener = Listener(failures=2)
        pushed = client.PushConsumer(
            NOWHERE, "group", listener, {"orders": client.FilterExpression()}, consumption_thread_count=2
        )
        with pytest.raises(client.IllegalStateException):
            pushed.subscribe("more")
        pushed.startup()
        assert pushed.is_running
        producer().send(message(b"one"))
        assert listener.done.wait(30)
        assert listener.seen == [(b"one", 1), (b"one", 2), (b"one", 3)]
        pushed.unsubscribe("orders")
        time.sleep(0.15)
        producer().send(message(b"two"))
        time.sleep(0.05)
        assert len(listener.seen) == 3
        listener.done.clear()
        pushed.subscribe("orders")
        assert listener.done.wait(30)
        assert listener.seen[3:] == [(b"two", 1)]
        pushed.shutdown()
        assert not [thread for thread in threading.enumerate() if "mqstore-rocketmq-" in thread.name]
        assert broker.retry_delay == 0.01


def test_a_receiver_waits_for_a_message_by_the_clock_of_the_machine(home: Path) -> None:
    with mqstore.testing.open(home) as store, client.Broker(store):
        receiver = consumer()
        receiver.await_duration = 30
        timer = threading.Timer(0.05, lambda: producer().send(message(b"late")))
        timer.start()
        assert bodies(receiver.receive(1, 1)) == [b"late"]
        timer.join()
        receiver.await_duration = 0.05
        began = time.monotonic()
        assert receiver.receive(1, 1) == []
        assert time.monotonic() - began >= 0.05


def test_an_empty_receive_on_a_manual_clock_takes_no_real_time(broker: client.Broker) -> None:
    receiver = consumer()
    receiver.await_duration = 3600
    assert receiver.receive(1, 1) == []
    assert receiver.receive_async(1, 1).result(60) == []


def test_delayed_messages_arrive_when_the_clock_moves(broker: client.Broker, clock: ManualClock) -> None:
    sender = producer()
    for number, seconds in enumerate((60, 30, 90)):
        sender.send(message(b"%d" % number, delivery_timestamp=int(clock.time()) + seconds))
    clock.advance(29)
    assert messages(broker.store, "orders") == []
    clock.advance(31)
    assert [each.body for each in messages(broker.store, "orders")] == [b"1", b"0"]
    clock.set(clock.timestamp + 30_000)
    assert len(messages(broker.store, "orders")) == 3


def test_what_is_refused(broker: client.Broker, home: Path) -> None:
    sender, receiver = producer(), consumer()
    for name, value in (
        ("body", b""),
        ("topic", ""),
        ("topic", "a b"),
        ("tag", "a|b"),
        ("keys", " "),
        ("priority", -1),
    ):
        with pytest.raises(client.IllegalArgumentException):
            message(**{name: value})
    with pytest.raises(client.IllegalArgumentException, match="same time"):
        message(message_group="a", delivery_timestamp=5)
    with pytest.raises(client.IllegalArgumentException, match="value"):
        message().add_property("a", "")
    for unset in (client.Message(), message(bytes((4 << 20) + 1))):
        with pytest.raises(client.IllegalArgumentException):
            sender.send(unset)
    for more in ({"lite_topic": "l"}, {"priority": 3}):
        with pytest.raises(client.UnsupportedException):
            sender.send(message(**more))
    with pytest.raises(client.IllegalArgumentException, match="greater than 0"):
        receiver.receive(0, 1)
    for group in ("", "a b"):
        with pytest.raises(client.IllegalArgumentException, match="consumerGroup"):
            client.SimpleConsumer(NOWHERE, group)
    with pytest.raises(client.IllegalStateException):
        client.Producer(NOWHERE).send(message())
    sender.shutdown()
    sender.shutdown()
    with pytest.raises(client.IllegalStateException):
        sender.send(message())
    with pytest.raises(client.IllegalStateException, match="startup again"):
        sender.startup()
    with pytest.raises(RuntimeError, match="another Broker"):
        client.Broker(broker.store).__enter__()
    assert str(client.ClientException("text", 404)) == "404, text"


def test_without_a_broker_nothing_starts() -> None:
    with pytest.raises(client.IllegalStateException, match="Broker"):
        client.Producer(NOWHERE).startup()


def test_a_program_imports_the_stand_ins(broker: client.Broker) -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("rocketmq")}
    with client.installed():
        names: dict[str, Any] = {}
        exec(
            "from rocketmq import Producer, FilterExpression\n"
            "from rocketmq.v5.exception import ClientException, IllegalStateException\n"
            "from rocketmq.grpc_protocol import FilterType, TransactionResolution\n",
            names,
        )
        assert names["Producer"] is client.Producer
        assert names["IllegalStateException"] is client.IllegalStateException
        assert names["FilterType"].SQL == 2
    assert {name: module for name, module in sys.modules.items() if name.startswith("rocketmq")} == before


PROGRAM = """
import rocketmq
from rocketmq import ConsumeResult, MessageListener, Producer, TransactionResolution
from rocketmq import ClientConfiguration as Place, LitePushConsumer
from rocketmq.v5.exception import ClientException


class Listener(MessageListener):
    def consume(self, message):
        return ConsumeResult.SUCCESS
"""


def test_a_program_that_imported_the_client_before_gets_the_stand_ins(real: Any, broker: client.Broker) -> None:
    program = types.ModuleType("program")
    sys.modules["program"] = program
    try:
        exec(PROGRAM, vars(program))
        before = dict(vars(program))
        with pytest.warns(UserWarning, match=r"program\.LitePushConsumer is a class .* without a stand-in"):
            context = client.installed()
            context.__enter__()
        assert program.rocketmq is client
        for name in ("ConsumeResult", "MessageListener", "Producer", "TransactionResolution", "ClientException"):
            assert getattr(program, name) is getattr(client, name), name
        assert program.Place is client.ClientConfiguration
        # A listener whose class has the real base works, and so does the real enum.
        done = threading.Event()
        listener = program.Listener()
        listener.consume = lambda _: (done.set(), real.ConsumeResult.SUCCESS)[1]
        pushed = client.PushConsumer(NOWHERE, "group", listener, {"orders": client.FilterExpression()})
        pushed.startup()
        producer().send(message())
        assert done.wait(60)
        pushed.shutdown()
        assert consumer().receive(1, 1) == []
        context.__exit__(None, None, None)
        assert vars(program) == before
    finally:
        del sys.modules["program"]


# The real client, if it is installed.

SAME = [
    "ClientConfiguration",
    "Credentials",
    "FilterExpression",
    "Message",
    "MessageListener",
    "Producer",
    "PushConsumer",
    "SendReceipt",
    "SimpleConsumer",
    "Transaction",
    "TransactionChecker",
]
PROTOCOL = {
    *("client_metrics", "client_type", "on_new_endpoints", "on_recover_orphaned_transaction_command", "reset_metric"),
    *("reset_setting", "route_manager", "rpc_client", "sign", "sync_setting_req", "update_queue_selector", "topics"),
    *("end_transaction", "is_lite_consumer", "fifo", "long_polling_timeout", "receive_batch_size", "fromProtobuf"),
    *("decode_message_timestamp", "endpoints", "message_type", "message_type_desc", "transport_delivery_timestamp"),
}
"""Names of the real classes that only serve the connection to a server."""


@pytest.fixture
def real() -> Any:
    if importlib.util.find_spec("rocketmq") is None:
        pytest.skip("the package rocketmq-python-client is not installed")
    return importlib.import_module("rocketmq")


def parameters(thing: Any) -> list[tuple[str, Any, object]]:
    """Names, kinds and defaults. The annotations are for type checkers."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(thing).parameters.values()]


def test_names_are_those_of_the_client(real: Any) -> None:
    ours = set(client.__all__)
    assert set(real.__all__) - ours == {"LiteSimpleConsumer", "LitePushConsumer"}
    assert {each.name: each.value for each in real.ConsumeResult} == {e.name: e.value for e in client.ConsumeResult}
    for name in ("COMMIT", "ROLLBACK", "TRANSACTION_RESOLUTION_UNSPECIFIED"):
        assert getattr(client.TransactionResolution, name) == real.TransactionResolution.Value(name)
    exceptions = importlib.import_module("rocketmq.v5.exception")
    for name in ours & set(exceptions.__all__):
        assert parameters(getattr(client, name)) == parameters(getattr(exceptions, name)), name
        assert issubclass(getattr(client, name), client.ClientException)
    protocol = importlib.import_module("rocketmq.grpc_protocol")
    assert (client.FilterType.TAG, client.FilterType.SQL) == (protocol.FilterType.TAG, protocol.FilterType.SQL)


@pytest.mark.parametrize("name", SAME)
def test_parameters_are_those_of_the_client(real: Any, name: str) -> None:
    own, theirs = getattr(client, name), getattr(real, name)
    if name not in ("MessageListener", "TransactionChecker"):
        assert parameters(own) == parameters(theirs)
    members = {member for member in dir(theirs) if not member.startswith("_")}
    made = set() if name not in MADE else {member for member in vars(MADE[name]()) if not member.startswith("_")}
    present = {member for member in dir(own) if not member.startswith("_")} | made
    missing = members - present - PROTOCOL
    assert {each for each in missing if not each.isupper()} == set()
    for member in members & set(dir(own)):
        there, here = inspect.getattr_static(theirs, member), inspect.getattr_static(own, member)
        if inspect.isfunction(there):
            assert parameters(here) == parameters(there), member
        elif isinstance(there, property):
            assert isinstance(here, property), member
            assert (there.fset is None) or (here.fset is not None), member


MADE: dict[str, Any] = {
    "ClientConfiguration": lambda: NOWHERE,
    "Credentials": client.Credentials,
    "FilterExpression": client.FilterExpression,
    "Message": client.Message,
    "Producer": lambda: client.Producer(NOWHERE),
    "PushConsumer": lambda: client.PushConsumer(NOWHERE, "g", Listener(0), {"t": client.FilterExpression()}),
    "SendReceipt": lambda: client.SendReceipt("", "", None, 0),
    "SimpleConsumer": lambda: client.SimpleConsumer(NOWHERE, "g"),
}
