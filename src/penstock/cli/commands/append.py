"""``penstock append``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from penstock.cli import options
from penstock.cli.lines import PIECE_BYTES, pieces, stdin_file
from penstock.cli.out import Out
from penstock.cli.paths import open_log
from penstock.cli.progress import Progress
from penstock.cli.registry import Example
from penstock.cli.when import moment, span, whole
from penstock.errors import BadData, TooLarge, Usage

ABOUT = """\
Append events. Each VALUE is one, and all of them are one atomic batch; without any, each line of
standard input is an event, appended as soon as it is complete.

Values are bytes as they come. In a log with the codec msgpack or lite3, a VALUE or line is JSON.
The seqs are printed for VALUEs and --value-file; with --json a summary is."""
EXAMPLES = (
    Example("penstock append orders '{\"total\": 12}' --key ann --topic eu", "one event; its seq"),
    Example("tail -F app.log | penstock append app --create", "each line as it comes"),
    Example("penstock cat orders -o jsonl | penstock append copy --jsonl", "events with all parts"),
    Example("penstock append images --value-file cat.png", "a file as one value"),
    Example(
        "penstock append orders --jsonl --producer import:1 < day.jsonl", "all or nothing, once"
    ),
)
ENDINGS_PER_SEGMENT = 8  # a batch takes at most this part of a segment


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("values", metavar="VALUE", nargs="*", help="values; -- before those with -")
    source = parser.add_argument_group("where events come from")
    source.add_argument(
        "--jsonl", action="store_true", help="stdin has events as cat -o jsonl prints them"
    )
    source.add_argument("-0", "--null", action="store_true", help="stdin has values ended with NUL")
    source.add_argument(
        "--value-file", metavar="FILE", action="append", help="a file is a value; - is stdin"
    )
    source.add_argument(
        "--delete-key", action="store_true", help="append the deletion of --key, without a value"
    )
    source.add_argument(
        "--skip-bad", action="store_true", help="pass over lines that are no events; exit code 12"
    )
    parts = parser.add_argument_group("parts of each event that has none itself")
    parts.add_argument("--key", "-k", metavar="KEY")
    parts.add_argument("--topic", "-t", metavar="TOPIC")
    parts.add_argument(
        "--header", "-H", action="append", metavar="NAME=VALUE", help="may be repeated"
    )
    parts.add_argument("--tag", action="append", metavar="TAG", help="may be repeated")
    parts.add_argument("--time", metavar="TIME", help="the event's own time")
    parts.add_argument("--ttl", metavar="SPAN", help="how long it lives")
    parts.add_argument("--not-before", metavar="TIME", help="when groups may hand it out")
    how = parser.add_argument_group("how")
    how.add_argument("--create", action="store_true", help="create the log if there is none")
    how.add_argument("--codec", help="with --create: its codec")
    how.add_argument("--durable", action="store_true", help="on disk before this returns")
    how.add_argument(
        "--batch", metavar="N", help="append stdin in atomic batches of N, not as it comes"
    )
    how.add_argument("--atomic", action="store_true", help="all of stdin as one atomic batch")
    how.add_argument(
        "--producer", metavar="ID:N", help="append once: a repeat of the same ID and N does nothing"
    )
    how.add_argument("--expect", metavar="SEQ", help="only if that is the last seq of the log")
    how.add_argument("--timeout", metavar="SPAN", help="how long to wait for the log")


def run(given: argparse.Namespace, out: Out) -> None:
    shared = _shared(given)
    _check(given)
    if given.codec is not None and not given.create:
        raise Usage("--codec is for --create; an existing log has its codec")
    with open_log(given.log, "rw", create=given.create, codec=given.codec) as log:
        counts = _Tally()
        if given.values or given.value_file or given.delete_key:
            found = log.extend(_values(given, log), **shared, **_once(given))
            counts.note(found)
            if not given.json:
                for seq in found:
                    out.line(str(seq))
        elif given.atomic or given.producer or given.expect:
            _load(log, given, out, shared, counts)
        else:
            _stream(log, given, out, shared, counts)
        if given.json:
            out.value(counts.told())
        elif not given.values:
            out.note(counts.text(log.path))


class _Tally:
    """What was appended."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.last: int | None = None
        self.events = 0

    def note(self, seqs: range) -> None:
        """Note the seqs of one batch."""
        if seqs:
            self.first = seqs[0] if self.first is None else self.first
            self.last = seqs[-1]
            self.events += len(seqs)

    def told(self) -> dict[str, int | None]:
        return {"events": self.events, "first_seq": self.first, "last_seq": self.last}

    def text(self, path: str) -> str:
        if not self.events:
            return f"appended nothing to {path}"
        return f"appended {self.events:,} events to {path}, seq {self.first} to {self.last}"


def _check(given: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    from_stdin = not (given.values or given.value_file or given.delete_key)
    if sum(map(bool, (given.values, given.value_file, given.delete_key))) > 1:
        raise Usage("give VALUEs, --value-file or --delete-key, only one of them")
    if given.delete_key and given.key is None:
        raise Usage("--delete-key needs --key")
    for name in ("jsonl", "null", "batch", "atomic", "skip_bad"):
        if getattr(given, name) and not from_stdin:
            raise Usage(f"--{name.replace('_', '-')} is for events from standard input")
    if given.jsonl and given.null:
        raise Usage("--jsonl has lines; leave out -0")
    if given.skip_bad and not given.jsonl:
        raise Usage("--skip-bad is for --jsonl; any other line is an event")
    if given.batch and (given.atomic or given.producer or given.expect):
        raise Usage("--batch makes many batches; --atomic, --producer and --expect are for one")


def _shared(given: argparse.Namespace) -> dict[str, Any]:
    """What the call gives to each event."""
    headers = None
    if given.header:
        pairs = [text.partition("=") for text in given.header]
        for name, equals, _ in pairs:
            if not name or not equals:
                raise Usage(f"--header must be NAME=VALUE, got {name!r}")
        headers = [(name, os.fsencode(value)) for name, _, value in pairs]
    found = {
        "key": options.raw_key(given.key),
        "topic": given.topic,
        "headers": headers,
        "tags": given.tag,
        "time": None if given.time is None else moment(given.time, "--time"),
        "ttl": None if given.ttl is None else span(given.ttl, "--ttl"),
        "not_before": None
        if given.not_before is None
        else moment(given.not_before, "--not-before"),
        "durable": given.durable,
        "timeout": options.timeout_of(given),
    }
    return {name: value for name, value in found.items() if value is not None}


def _once(given: argparse.Namespace) -> dict[str, Any]:
    """``producer`` and ``expect``, as far as they are given."""
    found: dict[str, Any] = {}
    if given.producer is not None:
        name, _, number = given.producer.rpartition(":")
        if not name:
            raise Usage(f"--producer must be ID:N, got {given.producer!r}")
        found["producer"] = (name, whole(number, "the N of --producer"))
    if given.expect is not None:
        found["expect"] = whole(given.expect, "--expect")
    return found


def _values(given: argparse.Namespace, log: Any) -> list[Any]:
    if given.delete_key:
        return [None]
    if given.value_file:
        return [_file(name) for name in given.value_file]
    return _encodable(log, [os.fsencode(value) for value in given.values])


def _file(name: str) -> bytes:
    if name == "-":
        data = stdin_file().read()
    else:
        with open(name, "rb") as file:
            data = file.read()
    return bytes(data)


def _encodable(log: Any, values: list[bytes]) -> list[Any]:
    """Values as the log takes them: objects, if its codec is one that people cannot type."""
    if log.codec not in ("msgpack", "lite3"):
        return values
    import msgspec

    try:
        return [msgspec.json.decode(value) for value in values]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadData(
            f"{log.path}: its codec is {log.codec!r}, so a value must be JSON: {error}"
        ) from None


def _batches(
    log: Any, given: argparse.Namespace, out: Out
) -> Iterator[tuple[list[Any], str | None]]:
    """Items for ``extend`` as they come, each list with the codec that its events name."""
    end = b"\0" if given.null else b"\n"
    skipped: list[str] | None = [] if given.skip_bad else None
    done = 0
    for piece in pieces(stdin_file(), end, _most(log)):
        if not given.jsonl:
            yield _encodable(log, piece.split(end)), None
            continue
        from penstock.cli.records import entry_of, parse_lines

        records = parse_lines(piece, done, skipped)
        as_object = log.codec in ("msgpack", "lite3")
        number = done
        done += piece.count(b"\n") + 1
        for codec, some in groupby(records, lambda record: record.codec):
            items = []
            try:
                for record in some:
                    number += 1
                    items.append(entry_of(record, as_object))
            except BadData as error:
                if items:
                    yield items, codec
                raise BadData(f"event {number} of the input: {error}") from None
            yield items, None if codec == log.codec else codec
        for text in skipped or ():
            out.notice("bad line", text)
        if skipped:
            out.skipped += len(skipped)
            skipped.clear()


def _most(log: Any) -> int:
    """Bytes of one batch: a batch must fit a segment."""
    stats = log.stats()
    room: int = stats.ring.ring_bytes if stats.ring is not None else log.settings.segment_size
    return max(4096, min(PIECE_BYTES, room // ENDINGS_PER_SEGMENT))


def _stream(
    log: Any, given: argparse.Namespace, out: Out, shared: dict[str, Any], counts: _Tally
) -> None:
    """Append what comes, as it comes, or in batches of --batch."""
    size = None if given.batch is None else whole(given.batch, "--batch", 1)
    held: list[Any] = []
    held_codec: str | None = None
    with Progress(out, "appending", is_bytes=False) as progress:
        for items, codec in _batches(log, given, out):
            if size is None:
                _extend(log, items, codec, shared, counts)
            else:
                if codec != held_codec and held:
                    counts.note(log.extend(held, codec=held_codec, **shared))
                    held = []
                held_codec = codec
                held += items
                while len(held) >= size:
                    counts.note(log.extend(held[:size], codec=codec, **shared))
                    del held[:size]
            progress.update(counts.events)
        if held:
            counts.note(log.extend(held, codec=held_codec, **shared))


def _extend(
    log: Any, items: list[Any], codec: str | None, shared: dict[str, Any], counts: _Tally
) -> None:
    """Append a list; in two halves if it is too large for a segment, since nothing makes it one."""
    if not items:
        return
    try:
        counts.note(log.extend(items, codec=codec, **shared))
    except TooLarge:
        if len(items) == 1:
            raise
        half = len(items) // 2
        _extend(log, items[:half], codec, shared, counts)
        _extend(log, items[half:], codec, shared, counts)


def _load(
    log: Any, given: argparse.Namespace, out: Out, shared: dict[str, Any], counts: _Tally
) -> None:
    """Append all of stdin as one atomic unit."""

    def items() -> Iterator[Any]:
        for some, codec in _batches(log, given, out):
            if codec is not None:
                raise Usage(
                    f"{log.path}: its codec is {log.codec!r}, but an event has {codec!r}; "
                    "without --atomic, --producer and --expect both can be appended"
                )
            yield from some

    with Progress(out, "appending", is_bytes=False) as progress:
        counts.note(log.load(items(), **shared, **_once(given), progress=progress.update))
