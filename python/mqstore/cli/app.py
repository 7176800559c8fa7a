"""The verbs of the command line. Only `expire`, `rebuild` and `repair` change bytes; the others open for reading.

`archive`, `compact`, `export`, `import`, `fetch`, `clean`, `append`, `topic`, `group` and `dead-letter` have their own
files.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec

import typer

import mqstore
from mqstore import StoredMessage
from mqstore._admin.nearest import unknown_topic
from mqstore._admin.tables import duration, human, moment, size
from mqstore._paths import home_of
from mqstore._store import has_topic_limits, when_unlocked
from mqstore._times import duration_of, milliseconds_of
from mqstore.cli import render, settings, waiting
from mqstore.cli.filters import Sql, Tags, chosen, selector
from mqstore.cli.follow import Tail
from mqstore.cli.render import Body, Format
from mqstore.cli.status import CLEAN, PROBLEMS, USAGE, abandon_stdout
from mqstore.cli.stores import Directories, Stores

if TYPE_CHECKING:
    from mqstore import types
    from mqstore.types import Filter

P = ParamSpec("P")

app = typer.Typer(
    name="mqstore",
    help="Inspect, verify, repair and query message stores in the format of Apache RocketMQ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

config = typer.Typer(help="Show the options of a store.", no_args_is_help=True)
app.add_typer(config, name="config")

LockTimeout = Annotated[
    str,
    typer.Option(
        "--lock-timeout",
        metavar="DURATION",
        help='Longest wait while another process has the lock of the store: "30s".',
    ),
]

# Prefix of light queues.
_LIGHT = "%LMQ%"
# Number of problems in a table for people; the machine formats list all.
_SHOWN_PROBLEMS = 100
_SHOWN_OF_A_CAUSE = 3
# Parts of `info` with their own tables or notes.
_IN_TABLES = (
    "hours",
    "topics",
    "parts",
    "disk",
    "consumers",
    "popped",
    "delayed",
    "undecided",
    "segments_kept_by",
    "dledger",
    "notes",
)

# Not a Path, which would change a URL.
Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="Directory of the store; to read it, also a URL.", show_default=False)
]
Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic.", show_default=False)]
Queue = Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.", show_default=False)]
Limit = Annotated[int | None, typer.Option("--limit", min=0, help="Maximum number of messages.", show_default=False)]
BodyForm = Annotated[Body, typer.Option("--body", help="Form of the bodies; auto is text if a body is UTF-8.")]
ReportForm = Annotated[Format, typer.Option("--format", help="Format of the output.")]
BrokerConf = Annotated[
    Path | None,
    typer.Option("--conf", help="Properties file of a broker, for the lengths of new files.", show_default=False),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="TARGET",
        help="Folder or URL of the archive with the older messages; by default that of the store.",
        show_default=False,
    ),
]
NoArchive = Annotated[bool, typer.Option("--no-archive", help="Begin with the log, also if the store has an archive.")]
OnDamage = Annotated[
    Literal["raise", "skip"],
    typer.Option("--on-damage", help="At a damaged record, end with an error or skip it with a note."),
]
Compress = Annotated[
    Literal["zstd", "lz4", "zlib", "none"], typer.Option("--compression", help="Compression of the bodies.")
]
CompressOver = Annotated[
    int, typer.Option("--compress-over", min=0, metavar="BYTES", help="Bytes that a body needs to be compressed.")
]
MessageForm = Annotated[
    Format | None,
    typer.Option("--format", help="Format of the output; jsonl if it is not a terminal.", show_default=False),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        "--start-time",
        metavar="TIME",
        help="Only messages stored at or after this time: ISO 8601 with offset, or epoch milliseconds.",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until", "--end-time", metavar="TIME", help="Only messages stored before this time.", show_default=False
    ),
]


def _verb(work: Callable[P, int]) -> Callable[P, None]:
    """Returns the command of `work`, whose result is the exit status."""

    @functools.wraps(work)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            status = work(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            abandon_stdout()
            status = CLEAN
        finally:
            render.print_notes()
        raise typer.Exit(status)

    return command


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Print without colors, like NO_COLOR=1.")] = False,
) -> None:
    if version:
        sys.stdout.write(f"mqstore {mqstore.__version__}\n")
        raise typer.Exit
    if no_color:
        # All libraries that print read this variable: https://no-color.org
        os.environ["NO_COLOR"] = "1"
    warnings.simplefilter("always", mqstore.StoreWarning)
    warnings.showwarning = lambda message, *_rest, **_more: render.note_later(str(message))


@app.command()
@_verb
def info(directories: Directories, form: ReportForm = Format.TABLE) -> int:
    """Shows layout, writer, offsets, topics and parts of each store."""
    stores = Stores(directories, form)

    def show(directory: str) -> int:
        report = mqstore.info(directory)
        if not stores.machine(directory, report.to_dict()):
            _info_tables(report)
        return CLEAN

    return stores.each(show)


@app.command()
@_verb
def topics(directories: Directories, form: ReportForm = Format.TABLE) -> int:
    """Lists the topics and their queues with the range of offsets."""
    stores = Stores(directories, form)

    def show(directory: str) -> int:
        with mqstore.open(directory) as store:
            found = [topic_object(store, topic) for topic in store.topics()]
        if not stores.machine(directory, found):
            _topic_table(found)
        return CLEAN

    return stores.each(show)


@app.command()
@_verb
def cat(
    directories: Directories,
    topic: Topic = None,
    queue: Queue = None,
    start: Annotated[int | None, typer.Option(help="First queue offset.", show_default=False)] = None,
    end: Annotated[int | None, typer.Option(help="Queue offset to stop at, exclusive.", show_default=False)] = None,
    log: Annotated[bool, typer.Option("--log", help="Print in commit log order, without any index.")] = False,
    since: Since = None,
    until: Until = None,
    keys: Annotated[
        list[str] | None,
        typer.Option("--key", help="Only messages with this key; repeat for more.", show_default=False),
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only messages whose body matches.", show_default=False)
    ] = None,
    tags: Tags = None,
    sql: Sql = None,
    limit: Limit = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    on_damage: OnDamage = "raise",
    archive: Archive = None,
    no_archive: NoArchive = False,
) -> int:
    """Prints messages, queue by queue or in log order."""
    if topic is None and (queue is not None or start is not None or end is not None):
        raise typer.BadParameter("--queue, --start and --end need --topic")
    if log and (start is not None or end is not None):
        raise typer.BadParameter("--start and --end are offsets of a queue; omit --log")
    wanted = chosen(tags, sql)
    selects = selector(keys, grep)
    times = _moment("--since", since), _moment("--until", until)
    if log and archive is not None:
        raise typer.BadParameter("--log prints the commit log, which --archive is not a part of")
    output = _Messages(directories, _message_form(form), body, limit, _archive_of(archive, no_archive))

    def read(store: mqstore.Store) -> Iterator[StoredMessage]:
        if log:
            found = _in_log_order(store, topic, queue, wanted, on_damage)
            found = (message for message in found if _is_between(message, times))
        else:
            reads = functools.partial(store.read, filter=wanted, on_damage=on_damage)
            # The records of light queues are in their topics, too.
            everything = [name for name in store.topics() if not name.startswith(_LIGHT)]
            names = everything if topic is None else [topic]
            found = chain.from_iterable(_of_topic(store, reads, name, queue, (start, end), times) for name in names)
        return filter(selects, found)

    return output.print(read)


@app.command()
@_verb
def tail(
    directory: Directory,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    queue: Queue = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new messages until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=0, help="Number of messages to start with.")] = 10,
    tags: Tags = None,
    sql: Sql = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    on_damage: OnDamage = "raise",
) -> int:
    """Prints the newest messages of a topic, from all queues by store time."""
    if follow and form is Format.JSON:
        raise typer.BadParameter("with --follow the output has no end; use --format jsonl instead of json")
    if follow:
        home_of(directory, "follow it")
    wanted = chosen(tags, sql)
    with mqstore.open(directory) as store:
        end = Tail(store, topic, queue, wanted, on_damage)
        render.messages(store, end.newest(limit), _message_form(form), body)
        sys.stdout.flush()
        for found in end.coming() if follow else ():
            render.messages(store, found, _message_form(form), body)
            sys.stdout.flush()
            # This verb has no end after which notes could follow.
            render.print_notes()
            if not found and render.nobody_reads():
                break
    return CLEAN


@app.command()
@_verb
def get(
    directory: Directory,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Offset id or unique id.")],
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    archive: Archive = None,
    no_archive: NoArchive = False,
) -> int:
    """Prints the message with this id; exit status 1 if there is none."""
    with mqstore.open(directory, archive=_archive_of(archive, no_archive)) as store:
        found = store.get(message_id)
        if found is None:
            render.note(f"no message has the id {message_id}")
            return PROBLEMS
        render.messages(store, [found], _message_form(form), body)
    return CLEAN


@app.command()
@_verb
def lookup(
    directories: Directories,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key: Annotated[str, typer.Argument(metavar="KEY")],
    since: Since = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            "--end-time",
            metavar="TIME",
            help="Only messages stored at or before this time.",
            show_default=False,
        ),
    ] = None,
    limit: Limit = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    archive: Archive = None,
    no_archive: NoArchive = False,
) -> int:
    """Prints the messages of a topic with this key, oldest first."""
    first, last = _moment("--since", since), _moment("--until", until)
    output = _Messages(directories, _message_form(form), body, limit, _archive_of(archive, no_archive))

    def found(store: mqstore.Store) -> Iterator[StoredMessage]:
        return iter(store.lookup(topic, key, start_time=first, end_time=last, limit=output.left))

    return output.print(found)


@app.command()
@_verb
def expire(
    directory: Directory,
    retention: Annotated[
        str | None, typer.Option(metavar="AGE", help='Age to keep: "72h", "7d", "P7D", or seconds.', show_default=False)
    ] = None,
    retention_bytes: Annotated[
        int | None, typer.Option(min=1, help="Bytes of log segments to keep.", show_default=False)
    ] = None,
    retention_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help='"finished": groups keep what they have not finished. "time": they do not.',
            show_default=False,
        ),
    ] = None,
    group_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Time after which a group without progress keeps nothing.", show_default=False
        ),
    ] = None,
    conf: Annotated[
        Path | None, typer.Option(help="Properties file of a broker, for its retention.", show_default=False)
    ] = None,
    secure_wipe: Annotated[bool, typer.Option("--secure-wipe", help="Overwrite segments with zeros first.")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Compact first, so that no segment must stay for a compaction topic.")
    ] = False,
    expire_uncompacted: Annotated[
        bool,
        typer.Option(
            "--expire-uncompacted", help="Delete segments even if they have messages that no compaction has read."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the files to delete.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Deletes the oldest log segments, and the queue and index files that point to deleted segments only.

    It also applies the retention of single topics.
    """
    is_given = not (retention is None and retention_bytes is None and conf is None)
    wait = lock_wait(lock_timeout)
    options = replace(_options_of(conf), secure_wipe=secure_wipe, expire_uncompacted=expire_uncompacted)
    if retention is not None:
        options = replace(options, retention=_age("--retention", retention))
    if retention_bytes is not None:
        options = replace(options, retention_bytes=retention_bytes)
    if retention_policy is not None:
        options = replace(options, retention_policy=_policy(retention_policy))
    if group_timeout is not None:
        options = replace(options, group_timeout=_age("--group-timeout", group_timeout))
    with mqstore.open(directory, options=options) as store:
        if not is_given and not has_topic_limits(store):
            raise typer.BadParameter("give at least one of --retention, --retention-bytes and --conf")
        plan = store.expire(dry_run=True)
    # Only a real run starts the times of the groups that keep segments.
    starts = group_timeout is not None and bool(plan.kept_by)
    deletes = bool(plan.files or plan.topics or (plan.kept and compact))
    if dry_run or not (deletes or starts):
        _expire_report(plan, form)
        _tell_kept(plan)
        if dry_run:
            render.dry_run()
        return CLEAN
    if form is Format.TABLE:
        _expire_report(plan, form)
    question, what = _expire_texts(plan, deletes=deletes, compact=compact)
    otherwise = f"{what}; pass --yes to do it, or --dry-run to list what is due"
    if not render.confirmed(question, otherwise, yes=yes):
        return USAGE
    with render.progress("recovering the store") as bar:
        opened = mqstore.open(directory, "rw", options=options, progress=bar, lock_timeout=wait)
    with opened as store:
        done = store.expire(dry_run=False, compact=compact)
    _tell_kept(done)
    if form is Format.TABLE:
        render.note(f"deleted {len(done.files)} files with {size(done.bytes)}")
        _tell_hidden(done)
    else:
        _expire_report(done, form)
    return CLEAN


@app.command()
@_verb
def verify(directories: Directories, form: ReportForm = Format.TABLE) -> int:
    """Checks every file of each store; exit status 1 if there are problems."""
    stores = Stores(directories, form)

    def check(directory: str) -> int:
        with render.progress() as bar:
            report = mqstore.verify(directory, progress=bar)
        if not stores.machine(directory, report.to_dict()):
            render.facts({"ok": report.ok, "messages": report.messages, "bytes": report.bytes})
            _problem_tables(report.problems)
        return CLEAN if report.ok else PROBLEMS

    return stores.each(check)


@app.command()
@_verb
def rebuild(
    directory: Directory,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the result.")] = False,
    conf: BrokerConf = None,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Rebuilds queues, key index and checkpoint from the log; exit status 1 if the log is damaged."""
    options, wait = _options_of(conf), lock_wait(lock_timeout)
    with render.progress("building queues and index") as bar:
        run = partial(mqstore.rebuild, directory, dry_run=dry_run, options=options, progress=bar)
        report = when_unlocked(wait, run)
    if not render.machine(report.to_dict(), form):
        render.report(report.to_dict(), but=("skipped",))
        for text in report.skipped:
            render.note(text)
    if dry_run:
        render.dry_run()
    return PROBLEMS if report.skipped else CLEAN


@app.command()
@_verb
def stats(directory: Directory, form: ReportForm = Format.TABLE) -> int:
    """Shows counters and positions of a store as a reader sees them: visible, durable and dispatched offset."""
    with mqstore.open(directory) as store:
        found = store.stats().to_dict()
    if not render.machine(found, form):
        render.facts(found)
    return CLEAN


@app.command()
@_verb
def repair(
    directory: Directory,
    # Not a Path, which would change a URL.
    output: Annotated[
        str | None,
        typer.Option(metavar="OUT", help="Repair a copy in this new folder, or at a URL.", show_default=False),
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Repair the directory itself.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the repairs.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    conf: BrokerConf = None,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Repairs a damaged directory, so that it opens again; exit status 1 if problems remain."""
    if (output is not None and in_place) or (output is None and not in_place and not dry_run):
        raise typer.BadParameter("give --output OUT, a new folder for a repaired copy, or --in-place")
    repairs = partial(mqstore.repair, directory, options=_options_of(conf))
    wait = lock_wait(lock_timeout)
    if dry_run or (in_place and not yes):
        with render.progress("looking for damage") as bar:
            plan = when_unlocked(wait, partial(repairs, dry_run=True, progress=bar))
        if dry_run or not plan.changed:
            _repair_report(plan, form)
            return CLEAN if plan.ok else PROBLEMS
        if form is Format.TABLE:
            _repair_report(plan, form)
        otherwise = f"{len(plan.actions)} repairs would be made; pass --yes to do it, or --dry-run to list them"
        if not render.confirmed("Make these repairs?", otherwise, yes=yes):
            return USAGE
    with render.progress("repairing") as bar:
        report = when_unlocked(wait, partial(repairs, output=output, in_place=in_place, progress=bar))
    _repair_report(report, form)
    return CLEAN if report.ok else PROBLEMS


@app.command()
@_verb
def bench(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder on the disk to measure.", show_default=False)
    ],
    messages: Annotated[int, typer.Option(min=100, max=10_000_000, help="Messages of each measurement.")] = 100_000,
    size: Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes of each body.")] = 1024,
    trace: Annotated[
        bool, typer.Option("--trace", help="Append at a fixed rate instead, and find the causes of delays.")
    ] = False,
    cold_reads: Annotated[
        bool, typer.Option("--cold-reads", help="Time durable appends instead, alone and next to reads from the disk.")
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000_000,
            help="--trace, --cold-reads: messages a second; 500,000 or 1,000 by default.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, max=3600, help="--trace: seconds of each side; --cold-reads: of each turn.")
    ] = 4,
    slow_us: Annotated[
        float, typer.Option(min=1, max=1e9, help="--trace: microseconds from which a step is slow.")
    ] = 10,
    slowest: Annotated[int, typer.Option(min=0, max=10_000, help="--trace: slow steps to list, JSON only.")] = 20,
    readers: Annotated[int, typer.Option(min=1, max=64, help="--cold-reads: processes that read.")] = 4,
    megabytes: Annotated[
        int, typer.Option(min=8, max=1_000_000, help="--cold-reads: megabytes of old messages.")
    ] = 4000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="--cold-reads: turns of each load.")] = 3,
    form: ReportForm = Format.TABLE,
) -> int:
    """Compares a store with bare loops over the same disk and memory; takes some seconds, with one thread.

    The command creates a temporary folder in DIR, or next to DIR if DIR is a store, and removes it at the end. With
    --trace, this folder takes RATE * SECONDS * (SIZE + 200) bytes, with --cold-reads MEGABYTES and a gigabyte.
    """
    from mqstore.cli.measure import next_to_reads
    from mqstore.cli.measure import trace as tracing
    from mqstore.cli.measure.bench import lines

    folder = directory.absolute().parent if (directory / "commitlog").exists() else directory
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if cold_reads:
        if trace or not hasattr(os, "posix_fadvise"):
            raise typer.BadParameter(
                "--cold-reads excludes --trace, and needs a system with posix_fadvise, such as Linux"
            )
        timed = next_to_reads.measure(
            folder, next_to_reads.Request(megabytes, readers, rate or 1000, seconds, rounds, size)
        )
        if not render.machine(timed.to_dict(), form):
            render.table(next_to_reads.APPEND_HEADINGS, next_to_reads.append_rows(timed))
            render.table(next_to_reads.LOAD_HEADINGS, next_to_reads.load_rows(timed))
        return CLEAN
    if trace:
        traced = tracing.trace(folder, rate or 500_000, seconds, size, slow_us, slowest)
        if not render.machine(traced.to_dict(), form):
            render.table(tracing.LATENCY_HEADINGS, tracing.latency_rows(traced))
            render.table(tracing.CAUSE_HEADINGS, tracing.cause_rows(traced))
        return CLEAN
    found = list(lines(folder, messages, size))
    if not render.machine([line.to_dict() for line in found], form):
        rows = [
            (line.what, f"{line.limit:,.0f}", f"{line.store:,.0f}", line.unit, f"{line.store / line.limit:.2f}")
            for line in found
        ]
        render.table(("what", "bare loop", "store", "unit", "store / bare loop"), rows)
    return CLEAN


@config.command("show")
@_verb
def config_show(
    directory: Annotated[
        str | None, typer.Argument(metavar="[DIR]", help="A store; its file lengths win.", show_default=False)
    ] = None,
    conf: Annotated[
        Path | None, typer.Option(help="Properties file of a broker (broker.conf).", show_default=False)
    ] = None,
    form: ReportForm = Format.TABLE,
) -> int:
    """Lists every option with its value, the source of the value, and RocketMQ's name."""
    shown = settings.options(directory, conf)
    for note in [] if conf is None else settings.misspelled(conf):
        render.note(f"{conf}: {note}")
    if conf is not None and (rest := settings.passed_over(conf)):
        render.note(f"{conf}: not used by a store: {', '.join(rest)}")
    if conf is not None and (rest := settings.unused(conf)):
        render.note(f"{conf}: accepted but not used: {', '.join(rest)}")
    if not render.machine([one.to_dict() for one in shown], form):
        rows = [
            (one.option, human(one.option, one.value), one.setting or one.source, ", ".join(one.rocketmq))
            for one in shown
        ]
        render.table(("option", "value", "from", "RocketMQ"), rows)
    return CLEAN


@app.command()
@_verb
def snapshot(
    directory: Directory,
    output: Annotated[str, typer.Argument(metavar="OUT", help="New folder or URL for the copy.", show_default=False)],
    form: ReportForm = Format.TABLE,
) -> int:
    """Copies the store to a new folder as it is now, even while another process writes it."""
    with mqstore.open(directory) as store, render.progress("copying") as bar:
        report = store.snapshot(output, progress=bar)
    if not render.machine(report.to_dict(), form):
        render.report(report.to_dict())
    return CLEAN


def _repair_report(report: mqstore.RepairReport, form: Format) -> None:
    if report.dry_run:
        render.dry_run()
    if render.machine(report.to_dict(), form):
        return
    render.facts({"ok": report.ok, "changed": report.changed, "messages": report.messages})
    if report.lost:
        lost = [(one.path, one.offset, size(one.bytes), one.reason, one.kept_as or "-") for one in report.lost]
        render.table(("lost in", "offset", "bytes", "reason", "kept as"), lost)
    if report.queue_offsets:
        offsets = [(one.topic, one.queue_id, one.from_offset, one.to_offset) for one in report.queue_offsets]
        render.table(("topic", "queue", "no record from", "to before"), offsets)
    if report.actions:
        render.table(("would be done" if report.dry_run else "done",), [(text,) for text in report.actions])
    if report.dry_run and report.problems:
        render.note(f"{len(report.problems)} problems; mqstore verify lists them")
    else:
        _problem_tables(report.problems)


def _problem_tables(problems: Sequence[mqstore.Problem]) -> None:
    """Prints the kinds of problems with their meaning, then each problem."""
    if not problems:
        return
    kinds: dict[str, list[mqstore.Problem]] = {}
    for one in problems:
        kinds.setdefault(one.kind, []).append(one)
    rows = [(kind, len(them), them[0].consequence, them[0].repair) for kind, them in kinds.items()]
    render.table(("what", "how often", "what it means", "what to do"), rows)
    causes: dict[tuple[str, str], list[mqstore.Problem]] = {}
    for one in problems:
        causes.setdefault((one.kind, one.path), []).append(one)
    places = [row for them in causes.values() for row in _places(them)]
    render.table(("what", "where", "offset", "detail"), places[:_SHOWN_PROBLEMS])
    if len(places) > _SHOWN_PROBLEMS or len(places) < len(problems):
        render.note("--format json lists every problem")


def _places(problems: Sequence[mqstore.Problem]) -> list[tuple[object, ...]]:
    """Returns the rows of the problems of one kind in one file: the first ones, and one row for all others."""
    rows: list[tuple[object, ...]] = [(p.kind, p.path, human("offset", p.offset), p.detail) for p in problems]
    if len(rows) <= _SHOWN_OF_A_CAUSE + 1:
        return rows
    kind, path, first, _ = rows[_SHOWN_OF_A_CAUSE]
    rest = f"{len(rows) - _SHOWN_OF_A_CAUSE} more of this kind in this file"
    return [*rows[:_SHOWN_OF_A_CAUSE], (kind, path, f"{first} ... {rows[-1][2]}", rest)]


def _info_tables(report: mqstore.StoreInfo) -> None:
    facts = report.to_dict()
    tables = {name: facts.pop(name) for name in _IN_TABLES}
    queues = next((part.bytes for part in report.disk if part.part == "consumequeue"), 0)
    fill = f"{100 * report.queue_entry_bytes / queues:.1f} % of the queue files" if queues else "-"
    facts["queue_entry_bytes"] = f"{size(report.queue_entry_bytes)} ({fill})"
    render.facts(facts)
    for text in tables["notes"]:
        render.note_later(text)
    total = mqstore.PartSize(
        "all",
        sum(part.files for part in report.disk),
        sum(part.bytes for part in report.disk),
        sum(part.disk_bytes for part in report.disk),
    )
    disk = (*report.disk, total)
    rows = [(part.part, part.files, size(part.bytes), size(part.disk_bytes), part.link or "") for part in disk]
    columns = ("part", "files", "logical size", "allocated", "leads to")
    shown = len(columns) if any(part.link for part in disk) else len(columns) - 1
    render.table(columns[:shown], [row[:shown] for row in rows])
    if report.hours:
        most = max(hour.bytes for hour in report.hours)
        bars = [
            (render.hour(one.start_timestamp), render.bar(one.bytes, most), size(one.bytes)) for one in report.hours
        ]
        render.table(("hour", "written", ""), bars)
    for member in report.dledger:
        found = member.to_dict()
        terms = found.pop("terms")
        render.facts({f"dledger {name}": value for name, value in found.items()})
        by_term = [(one["term"], one["first_index"], one["last_index"]) for one in terms]
        render.table(("term", "first entry", "last entry"), by_term)
    _topic_table(tables["topics"])
    if report.consumers:
        groups = [(one.group, one.topic, len(one.queues), one.lag) for one in report.consumers]
        render.table(("group", "topic", "queues", "lag"), groups)
    if report.popped:
        out = [
            (
                one.group,
                one.topic,
                one.queue_id,
                one.messages,
                moment(one.first_due),
                moment(one.last_due),
            )
            for one in report.popped
        ]
        render.table(("group", "popped from", "queue", "not acknowledged", "first comes again", "last"), out)
    waiting.tables(report)
    _holder_table(report.segments_kept_by)


class _Messages:
    """Prints at most `limit` messages of one store or several."""

    def __init__(
        self, directories: list[str], form: Format, body: Body, limit: int | None, archive: bool | str | None
    ) -> None:
        self._archive = archive
        self._stores = Stores(directories, form)
        if self._stores.are_many and form is Format.JSON:
            raise typer.BadParameter("the messages of several stores are no single document; use --format jsonl")
        self._form, self._body = form, body
        self.left = limit

    def print(self, read: Callable[[mqstore.Store], Iterator[StoredMessage]]) -> int:
        """Prints what `read` returns for each store, and returns the exit status."""

        def show(directory: str) -> int:
            with mqstore.open(directory, archive=self._archive) as store:
                found = self._counted(islice(read(store), self.left))
                render.messages(store, found, self._form, self._body, self._stores.member(directory))
            self._stores.is_done = self.left == 0
            return CLEAN

        return self._stores.each(show)

    def _counted(self, found: Iterator[StoredMessage]) -> Iterator[StoredMessage]:
        for message in found:
            if self.left is not None:
                self.left -= 1
            yield message


def _archive_of(archive: str | None, no_archive: bool) -> bool | str | None:
    """Returns the argument `archive` of an open."""
    if archive is not None and no_archive:
        raise typer.BadParameter("--archive and --no-archive exclude each other")
    return False if no_archive else archive


_Times = tuple[int | None, int | None]


def _of_topic(
    store: mqstore.Store,
    read: Callable[..., Iterator[StoredMessage]],
    topic: str,
    queue: int | None,
    offsets: tuple[int | None, int | None],
    times: _Times,
) -> Iterator[StoredMessage]:
    """Yields the messages of one queue, or of all queues, of a topic."""
    start, end = offsets
    if queue is not None and times == (None, None):
        yield from read(topic, queue, start, end)
        return
    queues = [one for one in store.queues(topic) if queue in (None, one.queue_id)]
    if queue is not None and not queues:
        # The read raises the error for an unknown queue.
        yield from read(topic, queue, start, end)
    for one in queues:
        # Each queue has its own range, so the offsets are limited to it.
        low = one.min_offset if start is None else store._oldest_offset(topic, one.queue_id, one.min_offset)
        first = None if start is None else min(max(start, low), one.max_offset)
        last = end
        if times[0] is not None:
            first = max(store.offset_for_time(topic, one.queue_id, times[0]), first or 0)
        if times[1] is not None:
            reached = store.offset_for_time(topic, one.queue_id, times[1])
            last = reached if last is None else min(last, reached)
        if first is None or last is None or first < last:
            yield from read(topic, one.queue_id, first, last)


def _is_between(message: StoredMessage, times: _Times) -> bool:
    since, until = times
    stored = message.store_timestamp
    return (since is None or stored >= since) and (until is None or stored < until)


def _in_log_order(
    store: mqstore.Store, topic: str | None, queue: int | None, wanted: Filter | None, on_damage: types.OnDamage
) -> Iterator[StoredMessage]:
    if topic is not None and not store._queue_ids(topic):
        raise unknown_topic(topic, store.topics())
    for message in store._scan_log(filter=wanted, on_damage=on_damage):
        if topic is not None and message.topic != topic and topic not in _light_queues(message):
            continue
        if queue is not None and message.queue_id != queue:
            continue
        yield message


def _light_queues(message: StoredMessage) -> list[str]:
    return message.properties.get("INNER_MULTI_DISPATCH", "").split(",")


def _message_form(form: Format | None) -> Format:
    if form is not None:
        return form
    return Format.TABLE if sys.stdout.isatty() else Format.JSONL


def _moment(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return milliseconds_of(option, text)
    except mqstore.InvalidOptionError as error:
        raise typer.BadParameter(str(error)) from None


def _options_of(conf: Path | None) -> mqstore.StoreOptions:
    return mqstore.StoreOptions() if conf is None else mqstore.StoreOptions.from_broker_conf(conf)


def _age(option: str, text: str) -> float:
    try:
        return duration_of(option, text)
    except mqstore.InvalidOptionError as error:
        raise typer.BadParameter(str(error)) from None


def lock_wait(lock_timeout: str) -> float:
    """Returns the seconds of `--lock-timeout`."""
    return _age("--lock-timeout", lock_timeout)


def _policy(text: str) -> types.RetentionPolicy:
    policies: dict[str, types.RetentionPolicy] = {"finished": "finished", "time": "time"}
    if text not in policies:
        message = f'--retention-policy {text!r} must be "finished" or "time"'
        raise typer.BadParameter(message)
    return policies[text]


def _holder_table(holders: Sequence[mqstore.SegmentHolder]) -> None:
    if holders:
        rows = [(one.kind, one.group or "-", one.topic, one.queue_id, one.offset, one.log_offset) for one in holders]
        render.table(("segments kept by", "group", "topic", "queue", "offset", "log offset"), rows)


def _tell_hidden(report: mqstore.ExpireReport) -> None:
    for one in report.topics:
        render.note(f"hid {one.messages} messages of {one.topic}")


def _tell_kept(report: mqstore.ExpireReport) -> None:
    for reason in report.kept:
        render.note(f"kept for now: {reason}")


def _expire_texts(plan: mqstore.ExpireReport, *, deletes: bool, compact: bool) -> tuple[str, str]:
    """Returns the question before an expiry, and what it would do."""
    if not deletes:
        return "Start the time of the groups that keep files?", "the time of groups would start"
    first = "Compact, then delete" if compact else "Delete"
    question, what = f"{first} these {len(plan.files)} files", f"{len(plan.files)} files would be deleted"
    if plan.topics:
        hidden = f"{sum(one.messages for one in plan.topics)} messages of {len(plan.topics)} topics"
        question, what = f"{question}, and hide {hidden}", f"{what}, and {hidden} would be hidden"
    return f"{question}?", what


def _expire_report(report: mqstore.ExpireReport, form: Format) -> None:
    if not render.machine(report.to_dict(), form):
        rows = [
            (file.kind, file.path, size(file.bytes), file.first_offset, file.last_offset, file.reason)
            for file in report.files
        ]
        if report.topics:
            hidden = [(one.topic, one.messages, one.floor) for one in report.topics]
            render.table(("topic", "hidden messages", "floor"), hidden)
        render.table(("kind", "path", "size", "first offset", "last offset", "reason"), rows)
        render.facts({"files": len(rows), "bytes": report.bytes, "log starts at": report.log_min_offset})


def topic_object(store: mqstore.Store, topic: str) -> dict[str, Any]:
    """Returns the JSON form of a topic."""
    from mqstore._read.table import expire_after_of

    after = expire_after_of(store, topic)
    return {
        "topic": topic,
        "queues": [queue.to_dict() for queue in store.queues(topic)],
        "expire_after_seconds": None if after is None else after.total_seconds(),
    }


def print_topic(found: dict[str, Any], form: Format) -> None:
    """Prints the topic of a change."""
    if not render.machine(found, form):
        _topic_table([found])


def _topic_table(found: list[dict[str, Any]]) -> None:
    rows = [
        (entry["topic"], queue["queue_id"], queue["min_offset"], queue["max_offset"], entry.get("expire_after_seconds"))
        for entry in found
        for queue in entry["queues"]
    ]
    headings = ["topic", "queue", "min offset", "max offset"]
    if any(row[-1] is not None for row in rows):
        headings.append("expire after")
    shown = [(*row[:4], "-" if row[4] is None else duration(row[4])) for row in rows]
    render.table(headings, [row[: len(headings)] for row in shown])
