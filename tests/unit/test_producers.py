"""A producer's repeated append is a no-op, whatever rolled, closed or died in between."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import layout as L
from penstock.handle import producers
from penstock.segments import segment
from tests.unit import oracle


def test_a_repeat_returns_the_seqs_it_got(log: penstock.Log) -> None:
    """The same number again appends nothing and returns the same; a higher one appends."""
    assert log.append(b"a", producer=("p", 1)) == 1
    assert log.append(b"anything", producer=("p", 1)) == 1
    assert log.extend([b"b", b"c"], producer=("p", 7)) == range(2, 4)
    assert log.extend([b"b", b"c"], producer=("p", 7)) == range(2, 4)
    assert log.append(b"d", producer=("q", 0)) == 4
    assert log.extend([b"b", b"c"], producer=("p", 7)) == range(2, 4)
    assert [e.value for e in log] == [b"a", b"b", b"c", b"d"]
    assert [e.value for e in reversed(log)] == [b"d", b"c", b"b", b"a"]
    assert [log[i].value for i in range(1, 5)] == [b"a", b"b", b"c", b"d"]


def test_a_lower_number_is_a_conflict(log: penstock.Log) -> None:
    """A number below the last one is refused, and so is another count under the last one."""
    log.extend([b"a", b"b"], producer=("p", 5))
    for attempt in (
        lambda: log.append(b"x", producer=("p", 4)),
        lambda: log.extend([b"x"], producer=("p", 0)),
        lambda: log.append(b"x", producer=("p", 5)),
        lambda: log.load([b"x"], producer=("p", 4)),
    ):
        with pytest.raises(penstock.Conflict, match="nothing was written"):
            attempt()
    assert log.last_seq == 2


@pytest.mark.parametrize(
    "given",
    [
        *("p", 5, (), ("p",), ("p", 1, 2), ("p", "1"), ("p", 1.0), ("p", True), (b"p", 1)),
        *(("p", -1), ("p", 1 << 64), ("", 1), ("x" * 1025, 1), ("\ud800", 1)),
    ],
    ids=repr,
)
def test_producers_are_checked(log: penstock.Log, given: Any) -> None:
    """What is no pair of an id and a number is Usage, and nothing is written."""
    for attempt in (log.append, lambda v, **k: log.extend([v], **k)):
        with pytest.raises(penstock.Usage):
            attempt(b"x", producer=given)
    assert log.last_seq == 0


def test_the_table_outlives_rolls_and_handles(path: Path) -> None:
    """Rolls, reopening, a lost control and other handles change nothing."""
    with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as other:
        for n in range(1, 40):
            who = f"p{n % 3}"
            (log if n % 2 else other).extend([b"%d" % n, b"x" * 3000], producer=(who, n))
            if n % 5 == 0:
                other.steward.roll()
            for handle in (log, other):
                assert handle.extend([b"", b""], producer=(who, n))[0] == 2 * n - 1
        assert log.last_seq == 78
    assert len(oracle.read_log(path)) > 6
    for lost in (False, True):
        if lost:
            path.joinpath("control").unlink()
        with penstock.open(path) as log:
            for n in (37, 38, 39):
                assert log.extend([b"", b""], producer=(f"p{n % 3}", n))[0] == 2 * n - 1
            with pytest.raises(penstock.Conflict):
                log.append(b"x", producer=("p0", 36))
            assert log.last_seq == 78


def test_frames_of_producers(path: Path) -> None:
    """The producer frame and its events are one batch; the table stands after the index."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"plain")
        log.extend([b"a", b"b"], producer=("sensor", 3))
        log.append(b"c", producer=("other", 9))
        log.steward.roll()
        log.append(b"d", producer=("sensor", 4))
    first, second = oracle.read_log(path)
    kinds = [(f.kind, f.seq, f.batch_left, f.key) for f in first.frames[1:4]]
    assert kinds == [
        (L.KIND_PRODUCER, 2, 2, b"sensor"),
        (L.KIND_DATA, 2, 1, None),
        (L.KIND_DATA, 3, 0, None),
    ]
    assert first.frames[4].value == (9).to_bytes(8, "little") + (1).to_bytes(
        4, "little"
    ) + first.frames[1].at.to_bytes(4, "little")
    header = segment.Header.unpack(second.raw[: L.PAGE], "second")
    table = second.raw[header.producers_offset :][: header.producers_bytes]
    assert list(producers.Table.unpack(table, "").entries) == [b"sensor", b"other"]
    assert header.data_offset == header.producers_offset + L.PAGE


def test_a_damaged_table_is_told(path: Path) -> None:
    """A bit flipped in the table is Corrupt for producers and rolls; others go on appending."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a", producer=("p", 1))
        log.steward.roll()
    name = path / segment.file_name(2)
    raw = bytearray(name.read_bytes())
    raw[segment.Header.unpack(bytes(raw[: L.PAGE]), "").producers_offset + 3] ^= 4
    name.write_bytes(raw)
    with penstock.open(path) as log:
        assert log.append(b"b") == 2
        for _ in range(2):
            with pytest.raises(penstock.Corrupt, match="table of producers"):
                log.append(b"c", producer=("p", 2))
            with pytest.raises(penstock.Corrupt, match="table of producers"):
                log.steward.roll()
        assert log.append(b"c") == 3
        assert [e.value for e in log] == [b"a", b"b", b"c"]


def test_the_least_recently_used_leaves(path: Path) -> None:
    """Beyond 4096 producers the one that appended longest ago is forgotten, and only that."""
    log = penstock.open(path)
    for i in range(L.PRODUCERS_MAX):
        log.append(b"x", producer=(f"p{i}", 1))
    log.append(b"x", producer=("p0", 2))
    log.append(b"x", producer=("new", 1))
    last = log.last_seq
    assert log.append(b"x", producer=("p0", 2)) == L.PRODUCERS_MAX + 1
    assert log.append(b"x", producer=("p2", 1)) == 3
    assert log.last_seq == last
    assert log.append(b"x", producer=("p1", 1)) == last + 1
    log.steward.roll()
    assert log.append(b"x", producer=("p1", 1)) == last + 1
    assert log.append(b"x", producer=("p2", 1)) == last + 2, "p2 was next to leave"
    log.close()


def test_a_small_segment_keeps_a_small_table(path: Path) -> None:
    """What does not fit an eighth of a segment leaves the table at the next roll."""
    ids = [f"{i:0>500}" for i in range(40)]
    with penstock.open(path, segment_size="64KiB") as log:
        for i, who in enumerate(ids):
            assert log.append(b"x", producer=(who, 1)) == i + 1
        log.steward.roll()
        room = (64 << 10) // L.PRODUCERS_SHARE // (500 + 26)
        assert log.append(b"x", producer=(ids[-room], 1)) == 40 - room + 1
        assert log.append(b"x", producer=(ids[-room - 1], 1)) == 41


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.integers(0, 2**64 - 1)), max_size=60)
)
def test_a_table_survives_packing(entries: list[tuple[bytes, int]]) -> None:
    """Packing and unpacking keeps every entry in order; a cut table is Corrupt."""
    table = producers.Table()
    for who, n in entries:
        table.note(who, producers.Done(n, n // 2, n % 7))
    packed = table.pack(1 << 20)
    assert list(producers.Table.unpack(packed, "").entries.items()) == list(table.entries.items())
    if packed:
        with pytest.raises(penstock.Corrupt):
            producers.Table.unpack(packed[:-1], "")


def test_threads_and_handles_agree(path: Path) -> None:
    """Many threads that try the same numbers append each of them once."""
    with penstock.open(path, segment_size="64KiB") as log, penstock.open(path) as other:
        got: list[list[int]] = [[] for _ in range(6)]

        def run(number: int) -> None:
            handle = (log, other)[number % 2]
            for n in range(1, 150):
                try:
                    got[number].append(handle.append(b"%d" % n, producer=("shared", n)))
                except penstock.Conflict:
                    got[number].append(0)  # another thread is further already

        threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [e.value for e in log] == [b"%d" % n for n in range(1, 150)]
        for seqs in got:
            assert all(seq in (0, n) for n, seq in enumerate(seqs, 1))


def test_expect(log: penstock.Log) -> None:
    """An append that expects another last seq than there is appends nothing."""
    assert log.append(b"a", expect=0) == 1
    for wrong in (0, 2, 1 << 63):
        for attempt in (
            lambda w: log.append(b"x", expect=w),
            lambda w: log.extend([b"x", b"y"], expect=w),
            lambda w: log.append(b"x" * 40_000, expect=w),
            lambda w: log.load([b"x" * 1000] * 10_000, expect=w),
        ):
            with pytest.raises(penstock.Conflict, match=f"must be the last seq, 1, got {wrong};"):
                attempt(wrong)
    assert log.last_seq == 1
    assert log.extend([b"b", b"c"], expect=1) == range(2, 4)
    assert log.append(b"d", expect=3, producer=("p", 1)) == 4
    assert log.append(b"d", expect=3, producer=("p", 1)) == 4, "a repeat is done already"
    for bad in (-1, 1 << 64, 1.0, True, "1"):
        with pytest.raises(penstock.Usage):
            log.append(b"x", expect=bad)  # type: ignore[arg-type]


def test_expect_lets_one_win(path: Path) -> None:
    """Of many that expect the same last seq exactly one appends."""
    with penstock.open(path) as log:
        wins: list[int] = []

        def run(who: int) -> None:
            for last in range(100):
                try:
                    log.append(b"%d" % who, expect=last)
                    wins.append(last)
                except penstock.Conflict:
                    pass

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == len(set(wins)) == log.last_seq
