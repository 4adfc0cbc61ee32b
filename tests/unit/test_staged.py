"""Staged files: what is put aside as frames, taken into a log whole or not at all."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Conflict, Corrupt
from penstock import layout as L
from penstock._core import Given, rows_to_stage
from penstock.segments.staged import append_staged
from penstock.segments.staging import Staged, Writer
from penstock.system import files

pyarrow = pytest.importorskip("pyarrow")

SEGMENT = 1 << 20
Row = tuple[bytes | None, bytes | None, str | None, Any, int | None]


def rows_of(rows: list[Row], step: int) -> Iterator[Given]:
    """Rows in record batches, as a task gets them."""
    pair = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    for at in range(0, len(rows), step):
        values, keys, topics, headers, times = zip(*rows[at : at + step], strict=True)
        batch = pyarrow.record_batch(
            {
                "value": pyarrow.array(values, pyarrow.binary()),
                "key": pyarrow.array(keys, pyarrow.binary()),
                "topic": pyarrow.array(topics, pyarrow.string()),
                "headers": pyarrow.array(
                    [h and [{"key": k, "value": v} for k, v in h] for h in headers],
                    pyarrow.list_(pair),
                ),
                "time": pyarrow.array(times, pyarrow.timestamp("ns")),
            }
        )
        yield rows_to_stage(batch, "rows", "value", "key", "topic", "headers", "time", at)


def stage(directory: Path, name: str, rows: list[Row], size: int = SEGMENT) -> list[Staged]:
    """What one task stages."""
    return list(Writer(str(directory / name), size, 0o600).write(rows_of(rows, 300)))


def varied(seed: int, count: int) -> list[Row]:
    """Rows of which no two are alike, with every part there and not there."""
    source = random.Random(seed)
    return [
        (
            source.choice([b"", b"v%d" % i, source.randbytes(source.randrange(900)), None]),
            source.choice([b"", b"key-%d" % i]),
            source.choice([None, "", "clicks", "ünïcode"]),
            source.choice([None, [], [("a", b"1"), ("a", None)], [("", b"")]]),
            source.choice([None, 0, i, source.randrange(1 << 60)]),
        )
        for i in range(count)
    ]


def plain(seed: int, count: int) -> list[Row]:
    """Rows that have values alone."""
    source = random.Random(seed)
    return [(source.randbytes(200), None, None, None, None) for _ in range(count)]


def seen(path: Path) -> list[tuple[Any, ...]]:
    """All of a log, as rows; the seqs have to be right."""
    with penstock.open(path, "r") as log:
        events = list(log)
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert log.verify().problems == ()
        given = [e.time_ns if e.time_ns != e.append_ns else None for e in events]
        found = [(e.value, e.key, e.topic, e.headers) for e in events]
    return [(*row, time) for row, time in zip(found, given, strict=True)]


def wanted(rows: list[Row]) -> list[tuple[Any, ...]]:
    """The same, of what was staged."""
    return [(v, k, t or "", tuple(h or ()), time) for v, k, t, h, time in rows]


@pytest.fixture
def log(path: Path) -> Iterator[penstock.Log]:
    """A log of small segments."""
    with penstock.create(path, segment_size=SEGMENT) as log:
        yield log


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    ("counts", "size", "adopted"),
    [
        ((10, 1), SEGMENT, False),
        ((4000,), SEGMENT, True),
        ((9000, 4000, 5000), SEGMENT, True),
        ((4000, 5000), SEGMENT * 2, False),
        ((1, 4000), SEGMENT, False),
        ((300,) * 20, SEGMENT, False),
    ],
)
def test_all_parts_arrive(
    tmp_path: Path,
    path: Path,
    log: penstock.Log,
    counts: tuple[int, ...],
    size: int,
    adopted: bool,
    before: int,
) -> None:
    """Whatever was staged is in the log, in order, by whichever way it came there."""
    old = plain(99, before)
    for row in old:
        log.append(row[0])
    parts = [varied(n, count) for n, count in enumerate(counts)]
    staged = [s for n, rows in enumerate(parts) for s in stage(tmp_path, f"{n}", rows, size)]
    inodes = {os.stat(s.path).st_ino for s in staged}
    seqs = append_staged(log, staged, producer=("who", 1), durable=True)
    assert seqs == range(before + 1, before + sum(counts) + 1)
    assert log.durable_seq == seqs[-1]
    kept = inodes & {entry.stat().st_ino for entry in os.scandir(path)}
    assert kept == (inodes if adopted else set()), "it came by another way than was meant"
    log.append(b"behind")
    log.close()
    expected = wanted(old) + wanted([row for rows in parts for row in rows])
    assert seen(path) == [*expected, (b"behind", None, "", (), None)]
    assert not [name for name in os.listdir(path) if name.startswith("load.")]


def test_times_that_go_back(tmp_path: Path, path: Path, log: penstock.Log) -> None:
    """Searches by time find what was adopted, also where later files have earlier times."""
    rows: list[list[Row]] = [
        [(b"x" * 200, None, None, None, start + i) for i in range(4000)]
        for start in (10**18, 5 * 10**17, 2 * 10**18)
    ]
    staged = [s for n, part in enumerate(rows) for s in stage(tmp_path, f"{n}", part)]
    append_staged(log, staged, producer=None, durable=True)
    log.close()
    with penstock.open(path) as log_again:
        for since, until in ((5 * 10**17, 6 * 10**17), (10**18 + 100, 10**18 + 200)):
            found = sum(1 for _ in log_again.read(since=since, until=until))
            assert found == sum(since <= r[4] < until for part in rows for r in part if r[4])
        assert log_again.verify().problems == ()


def test_a_log_that_moves_on_meanwhile(
    tmp_path: Path, path: Path, log: penstock.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that others append while files become segments come before them."""
    from penstock.segments.adopted import Adopted

    finish = Adopted.finish

    def slow(self: Adopted) -> None:
        finish(self)
        log.append(b"first")

    monkeypatch.setattr(Adopted, "finish", slow)
    rows = varied(5, 9000)
    append_staged(log, stage(tmp_path, "0", rows), producer=None, durable=True)
    log.close()
    assert seen(path) == [(b"first", None, "", (), None), *wanted(rows)]


def test_a_repeat_is_no_append(tmp_path: Path, path: Path, log: penstock.Log) -> None:
    """What a producer has appended already is not appended again; a lower number is an error."""
    first = append_staged(
        log, stage(tmp_path, "a", plain(1, 9000)), producer=("w", 2), durable=True
    )
    again = append_staged(
        log, stage(tmp_path, "b", plain(2, 9000)), producer=("w", 2), durable=True
    )
    assert again == first and len(log) == 9000
    with pytest.raises(Conflict):
        append_staged(log, stage(tmp_path, "c", plain(3, 9000)), producer=("w", 1), durable=True)
    assert len(log) == 9000


def _flip(data: bytearray, staged: Staged, source: random.Random) -> Staged:
    data[source.randrange(staged.start, staged.end)] ^= 1 << source.randrange(8)
    return staged


def _resum(data: bytearray, at: int) -> int:
    """Make the checksum of the frame at ``at`` right again; where the next one is."""
    body: int = struct.unpack_from("<I", data, at)[0] - 1
    crc = penstock._core.crc32c(bytes(data[at + 8 : at + L.FRAME_HEADER_BYTES + body]))
    struct.pack_into("<I", data, at + L.FRAME_CRC, crc)
    return at + -(-(L.FRAME_HEADER_BYTES + body) // 8) * 8


def _value(data: bytearray, staged: Staged, _: random.Random) -> Staged:
    """Another value, with a checksum that is right."""
    at = _resum(data, staged.start)
    data[at + L.FRAME_HEADER_BYTES] ^= 1
    _resum(data, at)
    return staged


def _field(name: str, value: int, form: str) -> Callable[..., Staged]:
    def change(data: bytearray, staged: Staged, _: random.Random) -> Staged:
        at = _resum(data, staged.start)
        struct.pack_into(form, data, at + getattr(L, f"FRAME_{name}"), value)
        _resum(data, at)
        return staged

    return change


def _length(value: int) -> Callable[..., Staged]:
    def change(data: bytearray, staged: Staged, _: random.Random) -> Staged:
        struct.pack_into("<I", data, _resum(data, staged.start), value)
        return staged

    return change


def _cut(data: bytearray, staged: Staged, _: random.Random) -> Staged:
    del data[staged.end - 8 :]
    return staged


def _fewer(data: bytearray, staged: Staged, _: random.Random) -> Staged:
    """A message that knows of fewer events than there are."""
    return replace(staged, rows=staged.rows - 1)


DAMAGE: dict[str, Callable[[bytearray, Staged, random.Random], Staged]] = {
    "bit": _flip,
    "value": _value,
    "seq": _field("SEQ", 7, "<Q"),
    "time": _field("APPEND_NS", 7, "<Q"),
    "back": _field("BACK", 8, "<I"),
    "batch": _field("BATCH_LEFT", 1, "<I"),
    "roll": _field("KIND", L.KIND_ROLL, "<B"),
    "settings": _field("KIND", L.KIND_SETTINGS, "<B"),
    "flags": _field("FLAGS", 0x80, "<B"),
    "key": _field("KEY_LEN", 60_000, "<H"),
    "no length": _length(0),
    "length": _length(0xFFFFFFFF),
    "short length": _length(9),
    "cut": _cut,
    "gone": lambda data, staged, _: data.clear() or staged,  # type: ignore[func-returns-value]
    "fewer": _fewer,
    "end": lambda _, staged, __: replace(staged, end=staged.end - 8),
    "far end": lambda _, staged, __: replace(staged, end=staged.segment_bytes * 2),
    "digest": lambda _, staged, __: replace(staged, digest=staged.digest ^ 1),
}


@pytest.mark.parametrize("way", ["adopted", "copied", "batch"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_never_published(
    tmp_path: Path, path: Path, log: penstock.Log, damage: str, way: str
) -> None:
    """A staged file that is not what was written is an error, and nothing of its unit appears."""
    log.append(b"before")
    size = SEGMENT * 2 if way == "copied" else SEGMENT
    staged = stage(tmp_path, "0", plain(1, 10 if way == "batch" else 6000), size)
    for which in {0, len(staged) - 1}:
        copies = []
        for n, one in enumerate(staged):
            copy = replace(one, path=f"{one.path}.{which}")
            data = bytearray(Path(one.path).read_bytes())
            if n == which:
                copy = DAMAGE[damage](data, copy, random.Random(f"{damage}{which}"))
            Path(copy.path).write_bytes(data)
            copies.append(copy)
        with pytest.raises(Corrupt):
            append_staged(log, copies, producer=("who", 1), durable=True)
        assert len(log) == 1 and log.verify().problems == ()
    assert append_staged(log, staged, producer=("who", 1), durable=True)[0] == 2
    log.close()
    assert not [name for name in os.listdir(path) if name.startswith("load.")]


def test_every_byte_counts(tmp_path: Path, log: penstock.Log) -> None:
    """No byte of a staged frame can change unnoticed, but for padding."""
    staged = [s for s in stage(tmp_path, "0", plain(4, 2))]
    data = Path(staged[0].path).read_bytes()
    for at in range(staged[0].start, staged[0].end):
        changed = bytearray(data)
        changed[at] ^= 0x10
        Path(staged[0].path).write_bytes(changed)
        with pytest.raises(Corrupt):
            append_staged(log, staged, producer=None, durable=False)
    assert len(log) == 0


@pytest.mark.parametrize("call", ["rename", "write_at", "allocate"])
def test_staging_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whatever call fails, what was staged so far is deleted."""
    calls = 0
    works = getattr(files, call)

    def fails(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise penstock.DiskFull("no space left")
        return works(*args)

    monkeypatch.setattr(files, call, fails)
    with pytest.raises(penstock.DiskFull):
        stage(tmp_path, "0", plain(1, 9000))
    assert os.listdir(tmp_path) == []
