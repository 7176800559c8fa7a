"""A typed client for the Java side: the real RocketMQ store, broker and client in child processes.

It is independent of mqstore, so any suite can use it to get a directory that RocketMQ itself wrote::

    from interop.driver import make_java_store
    from interop.java_rows import message

    view = make_java_store(path, "5.5.0", [message("orders", b"...", keys=["A-1"])])

`build` compiles the driver once for each RocketMQ version with Maven into ``target/<version>``. After that, nothing
here needs a network. `JavaSession` is one interactive JVM that can hold several stores. `JavaBroker` is a name server
and a broker. Every JVM ends when its standard input ends, so no JVM outlives the test run, even if the run is killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

from .java_build import JavaError, JavaMissingError, build
from .java_rows import (
    JavaMessage,
    JavaPut,
    JavaQueue,
    JavaView,
    KeyQuery,
    LogLine,
    OpenReport,
    Spec,
    TimeQuery,
)

JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "-Drmq.logback.configurationFile=interop-logback.xml",
    "-Dfile.encoding=UTF-8",
)


def java_executable() -> str:
    """Return the path of the Java launcher: that of JAVA_HOME, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        reason = "there is no java on this machine: install maven and a JDK, 17 or newer"
        raise JavaMissingError(reason)
    return found


def _jvm(version: str, home: Path, main_class: str, *args: str, options: Sequence[str] = JVM_OPTIONS) -> list[str]:
    return [
        java_executable(),
        *options,
        # RocketMQ writes logs and RocksDB journals to the user's home. Here that is a scratch folder.
        f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}",
        f"-Dinterop.log={home / 'interop.log'}",
        "-cp",
        build(version),
        f"org.mqstore.interop.{main_class}",
        *args,
    ]


def _log_lines(result: dict[str, Any]) -> list[LogLine]:
    return [LogLine(**line) for line in result["logs"]]


# ---------------------------------------------------------------------------------------------------------------------
# Processes


class JavaSession:
    """One interactive JVM of a RocketMQ version. Use it as a context manager, from one thread only."""

    def __init__(self, version: str, home: Path | None = None, *, options: Sequence[str] = JVM_OPTIONS) -> None:
        """Start the JVM. `home` is its scratch folder (logs, standard error), by default a temporary one.

        Its options are for short tests; measurements have others.
        """
        self.version = version
        self._own_home = None if home else tempfile.TemporaryDirectory(prefix="mqstore-java-")
        self.home = home or Path(self._own_home.name if self._own_home else "")
        self.home.mkdir(parents=True, exist_ok=True)
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._errors = (self.home / "stderr.txt").open("ab")
        self.process = subprocess.Popen(
            _jvm(version, self.home, "Driver", options=options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pump = threading.Thread(target=self._read_lines, name="java-output", daemon=True)
        self._pump.start()
        ready = self._end_of(0, [], 60)
        if ready["version"] != "V" + version.replace(".", "_"):
            reason = f"asked for RocketMQ {version}, the class path has {ready['version']}"
            raise JavaError(reason)

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the JVM. Open stores are not shut down cleanly."""
        self.end()

    def call(self, op: str, *, timeout: float = 120, **args: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Run a command and return its rows and its result."""
        number = self.send(op, **args)
        rows: list[dict[str, Any]] = []
        return rows, self._end_of(number, rows, timeout)

    def send(self, op: str, **args: object) -> int:
        """Send a command and return its number without waiting for an answer."""
        number = next(self._numbers)
        line = json.dumps({"id": number, "op": op} | {name: value for name, value in args.items() if value is not None})
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died() from error
        return number

    def rows(self, number: int, timeout: float = 120) -> Iterator[dict[str, Any]]:
        """Yield the rows of a sent command as they arrive, until its end."""
        deadline = time.monotonic() + timeout
        while True:
            answer = self._answer(number, deadline)
            if "row" not in answer:
                self._result(answer)
                return
            yield answer["row"]

    def open(
        self,
        path: Path,
        *,
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, Mapping[str, object]] | None = None,
        write_topics: bool = False,
        start: bool = True,
        tiered: Mapping[str, object] | None = None,
        starts: Mapping[tuple[str, int], int] | None = None,
        epoch: int | None = None,
    ) -> JavaStore:
        """Open a directory with a RocketMQ store.

        `config` has names of MessageStoreConfig; `topics` maps a name to ``{"queues": n, "attributes": {...}}``;
        `write_topics` also writes them to config/topics.json, as a broker does. `tiered` has names of the configuration
        of a tiered store around it, and `starts` the first offsets of its queues. With `epoch`, it belongs to a
        broker in controller mode: a master, or a slave with ``brokerRole=SLAVE``.
        """
        around = None
        if tiered is not None:
            rows = [{"topic": name, "queue_id": queue, "offset": at} for (name, queue), at in (starts or {}).items()]
            around = {"config": {key: str(value) for key, value in tiered.items()}, "starts": rows}
        name = f"store-{next(self._names)}"
        texts = {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (config or {}).items()
        }
        _, result = self.call(
            "open",
            store=name,
            path=str(path),
            config=texts,
            topics=dict(topics or {}),
            write_topics=write_topics,
            start=start,
            tiered=around,
            epoch=epoch,
        )
        report = OpenReport(
            result["loaded"],
            result["was_clean"],
            result["seconds"],
            result["min_physical"],
            result["max_physical"],
            result["ha_port"],
            _log_lines(result),
        )
        if not report.loaded:
            reason = f"RocketMQ {self.version} refused to load {path}: {report.logs}"
            raise JavaError(reason)
        return JavaStore(self, name, Path(path), report)

    def close_stores(self, stores: Iterable[JavaStore]) -> list[LogLine]:
        """Shut several stores down cleanly at the same time, because each shutdown takes more than three seconds."""
        _, result = self.call("close", stores=[store.name for store in stores])
        return _log_lines(result)

    def leave_stores(self) -> None:
        """Begin to shut down every open store. Each shutdown runs for more than three seconds in the background."""
        self.call("leave")

    def filters(self, cases: Sequence[tuple[str, Sequence[Mapping[str, str]]]]) -> list[str | None]:
        """Compile SQL92 expressions and evaluate each with some properties.

        Returns a letter for each set of properties (T true, F false, N null, E exception), or None if RocketMQ does not
        compile the expression.
        """
        told = [{"expression": expression, "properties": properties} for expression, properties in cases]
        found: list[str | None] = []
        for start in range(0, len(told), 2000):
            rows, _ = self.call("filters", cases=told[start : start + 2000])
            found += [row["results"] if row["compiled"] else None for row in rows]
        return found

    def identity(self, path: Path) -> dict[str, Any]:
        """Read a `brokerIdentity`."""
        return self.call("identity", path=str(path))[1]

    def logs(self) -> list[LogLine]:
        """Return the lines logged at WARN and ERROR since the last open, close or call of this method."""
        return _log_lines(self.call("logs")[1])

    def kill(self) -> None:
        """End the JVM with SIGKILL. No shutdown step runs."""
        self.process.kill()
        self.process.wait()
        self._pump.join()
        self._close_pipes()

    def halt(self) -> None:
        """End the JVM from inside, without shutdown hooks. The files keep their state of this moment."""
        self.send("halt")
        self.process.wait(30)
        self._pump.join()
        self._close_pipes()

    def end(self) -> None:
        """End the JVM if it still runs, and remove its scratch folder."""
        if self.process.poll() is None:
            self.kill()
        self._pump.join()
        self._close_pipes()
        if self._own_home:
            self._own_home.cleanup()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A killed process may leave half a line.
            if line.endswith(b"\n"):
                self._lines.put(line)
        self._lines.put(None)

    def _answer(self, number: int, deadline: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            self.process.kill()
            reason = f"no answer from RocketMQ {self.version} in time; its process was killed\n{self._tail()}"
            raise JavaError(reason) from None
        if line is None:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if answer["id"] != number:
            reason = f"answer to command {answer['id']} while waiting for {number}"
            raise JavaError(reason)
        return answer

    def _end_of(self, number: int, rows: list[dict[str, Any]], timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        answer = self._answer(number, deadline)
        while "row" in answer:
            rows.append(answer["row"])
            answer = self._answer(number, deadline)
        return self._result(answer)

    def _result(self, answer: dict[str, Any]) -> dict[str, Any]:
        if not answer["ok"]:
            reason = f"RocketMQ {self.version}: {answer['error']}\n{answer['trace']}"
            raise JavaError(reason)
        result: dict[str, Any] = answer["result"]
        return result

    def _died(self) -> JavaError:
        status = self.process.wait()
        return JavaError(f"the JVM of RocketMQ {self.version} ended with status {status}\n{self._tail()}")

    def _tail(self) -> str:
        return (self.home / "stderr.txt").read_text(errors="replace")[-4000:]


class JavaStore:
    """A store that is open in a `JavaSession`."""

    def __init__(self, session: JavaSession, name: str, path: Path, report: OpenReport) -> None:
        """Created by `JavaSession.open`."""
        self.session = session
        self.name = name
        self.path = path
        self.report = report

    def put(self, specs: Sequence[Spec], *, check: bool = True) -> list[JavaPut]:
        """Put messages in order. With `check`, each must be PUT_OK. Returns when queues and index have them."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", dir=self.session.home) as file:
            file.writelines(json.dumps(spec) + "\n" for spec in specs)
            file.flush()
            rows, _ = self.session.call("put", store=self.name, file=file.name)
        puts = [JavaPut(**row) for row in rows]
        if check:
            refused = [(spec, put) for spec, put in zip(specs, puts, strict=True) if put.status != "PUT_OK"]
            if refused:
                reason = f"RocketMQ refused {len(refused)} puts, the first: {refused[0]}"
                raise JavaError(reason)
        self.await_dispatch()
        return puts

    def put_streaming(self, specs: Sequence[Spec]) -> Iterator[JavaPut]:
        """Put messages one by one and yield each result as soon as RocketMQ returns it. A kill may end it early."""
        number = self.session.send("put", store=self.name, messages=list(specs), flush_each=True)
        for row in self.session.rows(number):
            yield JavaPut(**row)

    def await_dispatch(self) -> None:
        """Wait until queues and index hold every record of the log."""
        self.session.call("await", store=self.name)

    def upload(self) -> int:
        """Copy all messages to the tiered store, and return their number there."""
        _, result = self.session.call("upload", store=self.name)
        return int(result["messages"])

    def is_leader(self) -> bool:
        """Return whether this store is the leader of its DLedger group."""
        _, result = self.session.call("leader", store=self.name)
        return bool(result["leader"])

    def lead(self) -> None:
        """Wait until this leader has committed and dispatched its log. The queues then continue after it.

        Call this after an election, before `put`. A broker does the same.
        """
        self.session.call("lead", store=self.name)

    def load(self, topic: str, *, threads: int, seconds: float, size: int) -> tuple[float, int]:
        """Put messages of equal size. Return the puts in a second, and the end of the last one."""
        _, result = self.session.call(
            "load", store=self.name, topic=topic, threads=threads, seconds=seconds, bytes=size
        )
        return result["rate"], result["end"]

    def follow(self, master: JavaStore) -> None:
        """Copy the log of a store of the same session as its slave, until both logs end at the same offset.

        This store needs the configuration ``brokerRole=SLAVE``. It may not have dispatched all records.
        """
        self.session.call("follow", store=self.name, master=master.name)

    def follow_address(self, address: str, end: int) -> None:
        """Copy the log of the master at `address` as its slave, until it ends at `end`."""
        self.session.call("follow", store=self.name, address=address, end=end)

    def clean(self, hours: int) -> None:
        """Delete the segments older than these hours, as the timer of a broker does."""
        self.session.call("clean", store=self.name, hours=hours)

    def read(self) -> JavaView:
        """Read every message of every queue."""
        rows, _ = self.session.call("read", store=self.name)
        return _view(rows)

    def read_queue(self, topic: str, queue_id: int = 0, start: int = 0) -> JavaView:
        """Read one queue from an offset to its end. This also reads compaction topics."""
        rows, _ = self.session.call("read", store=self.name, topic=topic, queue_id=queue_id, **{"from": start})
        return _view(rows)

    def log(self) -> list[JavaMessage]:
        """Read every record of the commit log in order, also records without a queue entry."""
        rows, _ = self.session.call("log", store=self.name)
        return [JavaMessage.from_row(row["message"]) for row in rows]

    def pull(self, topic: str, queue_id: int, offset: int, most: int = 32) -> tuple[str, int, list[JavaMessage]]:
        """Pull once as a consumer would: status, next offset, messages."""
        args: dict[str, Any] = {"topic": topic, "queue_id": queue_id, "offset": offset, "most": most}
        rows, result = self.session.call("pull", store=self.name, **args)
        return result["status"], result["next_offset"], [JavaMessage.from_row(row["message"]) for row in rows]

    def look_up(self, queries: Sequence[KeyQuery]) -> list[list[int]]:
        """Return the physical offsets for each key query. RocketMQ compares only hashes, so other keys may
        be included."""
        named = [{k: v for k, v in query._asdict().items() if v is not None} for query in queries]
        for query in named:
            if "kind" in query:
                query["type"] = query.pop("kind")
        rows, _ = self.session.call("keys", store=self.name, queries=named)
        return [row["offsets"] for row in rows]

    def offsets_for_times(self, queries: Sequence[TimeQuery]) -> list[int]:
        """Return the queue offset for each time query."""
        rows, _ = self.session.call("times", store=self.name, queries=[query._asdict() for query in queries])
        return [row["offset"] for row in rows]

    def close(self) -> list[LogLine]:
        """Shut the store down cleanly. For several stores, `JavaSession.close_stores` is faster."""
        return self.session.close_stores([self])


def _view(rows: Iterable[dict[str, Any]]) -> JavaView:
    view = JavaView([], [])
    for row in rows:
        if "message" in row:
            view.messages.append(JavaMessage.from_row(row["message"]))
        else:
            view.queues.append(JavaQueue(**row["queue"]))
    return view


def make_java_store(
    path: Path,
    version: str,
    specs: Sequence[Spec],
    *,
    config: Mapping[str, object] | None = None,
    topics: Mapping[str, Mapping[str, object]] | None = None,
    clean: bool = True,
) -> JavaView:
    """Let RocketMQ write a store directory, and return the messages that it reads from it.

    With ``clean=False`` the process is halted without shutdown, as after ``kill -9``.
    """
    with JavaSession(version) as session:
        store = session.open(path, config=config, topics=topics, write_topics=bool(topics))
        store.put(specs)
        view = store.read()
        if clean:
            store.close()
        else:
            session.halt()
    return view


# ---------------------------------------------------------------------------------------------------------------------
# Name server and broker


class JavaBroker:
    """A name server and a broker on loopback, in one child process, on a store directory. A context manager."""

    def __init__(
        self,
        version: str,
        store: Path,
        home: Path,
        config: Mapping[str, object] | None = None,
        *,
        namesrv: str | None = None,
    ) -> None:
        """Start both and wait until they listen. The file sizes in `config` must be those of the directory.

        With `namesrv`, the broker uses the name server of another `JavaBroker`.
        """
        self.version = version
        self.store = store
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        listen, free = _free_broker_ports()
        self.address = f"127.0.0.1:{listen}"
        self.namesrv = namesrv or f"127.0.0.1:{free}"
        port = str(free) if namesrv is None else "none"
        properties = {
            "brokerClusterName": "interop",
            "brokerName": "interop",
            "brokerId": 0,
            "namesrvAddr": self.namesrv,
            "listenPort": listen,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "autoCreateTopicEnable": "false",
            # The state of the machine must not make the broker delete or refuse anything.
            "transientStorePoolEnable": "false",
            "fileReservedTime": 100_000,
            "diskMaxUsedSpaceRatio": 95,
            "diskSpaceCleanForciblyRatio": 85,
            "osPageCacheBusyTimeOutMills": 10_000,
            "waitTimeMillsInSendQueue": 10_000,
            "timerWheelEnable": "false",
            "transactionCheckInterval": 600_000,
        }
        properties.update(config or {})
        file = home / "broker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        self._errors = (home / "broker-stderr.txt").open("ab")
        self.process = subprocess.Popen(
            _jvm(version, home, "BrokerProcess", port, str(file)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"ROCKETMQ_HOME": str(home), "HOME": str(home)},
            start_new_session=True,
        )
        try:
            self._await_ready(90)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        """Return the broker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill the process if `stop` did not end it."""
        self.kill()

    def stop(self, timeout: float = 60) -> None:
        """Stop the broker with SIGTERM, as an operator does. It must remove its `abort` file."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout)
        if status not in (0, 143, -15) or (self.store / "abort").exists():
            reason = f"the broker did not stop cleanly, status {status}\n{self._tail()}"
            raise JavaError(reason)

    def kill(self) -> None:
        """End the process with SIGKILL if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _await_ready(self, seconds: float) -> None:
        # A kill at the deadline ends the read below. No other thread touches the process until then.
        watchdog = threading.Timer(seconds, self.process.kill)
        watchdog.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                if line.startswith(b"ready "):
                    drain = threading.Thread(target=self.process.stdout.read, name="broker-output", daemon=True)
                    drain.start()
                    return
        finally:
            watchdog.cancel()
        reason = f"the broker of RocketMQ {self.version} did not start\n{self._tail()}"
        raise JavaError(reason)

    def _tail(self) -> str:
        parts = [self.home / "broker-stderr.txt", self.home / "interop.log"]
        return "\n".join(part.read_text(errors="replace")[-4000:] for part in parts if part.exists())


class JavaClient:
    """The official RocketMQ client in a `JavaSession`, connected to a `JavaBroker`. A context manager."""

    def __init__(self, session: JavaSession, broker: JavaBroker, seconds: int = 60) -> None:
        """Connect, and wait until the broker is registered and has dispatched its log."""
        self.session = session
        self._act("connect", namesrv=broker.namesrv, broker=broker.address, seconds=seconds)

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect."""
        if self.session.process.poll() is None:
            self._act("disconnect")

    def create_topics(self, topics: Mapping[str, int]) -> None:
        """Create or update topics (name to number of queues), so that they have a route."""
        self._act("topics", topics=dict(topics))

    def consume(self, topic: str, seconds: int = 60) -> list[JavaMessage]:
        """Consume every message of a topic, from each queue's minimum to its maximum at the call."""
        rows, _ = self._act("consume", topic=topic, seconds=seconds)
        return [JavaMessage.from_row(row["message"]) for row in rows]

    def take(self, group: str, topic: str, count: int, seconds: int = 90) -> list[JavaMessage]:
        """Take at least this many messages as a member of a group, until the broker knows that all are consumed."""
        rows, _ = self._act("group", group=group, topic=topic, count=count, seconds=seconds)
        return [JavaMessage.from_row(row["message"]) for row in rows]

    def produce(self, specs: Sequence[Spec]) -> list[dict[str, Any]]:
        """Send messages. A spec may also have `batch`, `delay_level`, or `transaction`: commit, rollback or unknown.

        As long as the client exists, it answers checks of pending transactions by their property `when_checked`.
        """
        rows, _ = self._act("produce", messages=list(specs))
        return rows

    def look_up(self, topic: str, key: str, *, unique: bool = False) -> list[JavaMessage]:
        """Query by one of KEYS, or by the unique id, through the broker. Returns at most 64 hits. No hit is a
        `JavaError`."""
        rows, _ = self._act("keys", topic=topic, key=key, unique=unique)
        return [JavaMessage.from_row(row["message"]) for row in rows]

    def act(self, action: str, **args: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Run an action of `Client.java`, and return its rows and its result."""
        return self._act(action, **args)

    def _act(self, action: str, **args: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        return self.session.call("client", action=action, **args)


def _free_broker_ports() -> tuple[int, int]:
    """Find a listen port whose neighbours -2 and +1 are also free, and a port for the name server.

    All are below 32768, where Linux assigns no ports by itself.
    """
    chooser = random.Random(os.getpid() ^ time.monotonic_ns())
    for _ in range(200):
        listen = chooser.randrange(20_000, 32_000)
        wanted = (listen - 2, listen, listen + 1, listen + 5)
        if all(_is_free(port) for port in wanted):
            return listen, listen + 5
    reason = "no free ports between 20000 and 32000"
    raise JavaError(reason)


def free_ports(count: int) -> list[int]:
    """Find ports for the members of a DLedger group. All are below 32768, where Linux assigns no ports by itself."""
    chooser = random.Random(os.getpid() ^ time.monotonic_ns())
    found: list[int] = []
    for _ in range(200):
        port = chooser.randrange(20_000, 32_000)
        if port not in found and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    reason = f"no {count} free ports between 20000 and 32000"
    raise JavaError(reason)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
