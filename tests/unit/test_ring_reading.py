"""Reading rings: every way through one, gaps, and events that outlive their place."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import penstock
from tests.support.wait import wait_for
from tests.unit.ring_shape import HEADER, fill, shape, values


class TestReading:
    """Reading what is there, and finding out about what is not."""

    def test_counts(self, ring: penstock.Log) -> None:
        """first_seq, last_seq and len() speak of what is still there."""
        for i in range(1, 500):
            ring.append(b"x" * 100)
            assert ring.last_seq == i
            assert len(ring) == i - ring.first_seq + 1 == len(list(ring))
        assert ring.first_seq > 300
        for gone in (1, ring.first_seq - 1, ring.last_seq + 1, 0, 1 << 70):
            with pytest.raises(penstock.NotFound, match=f"{ring.first_seq} to 499|no event"):
                ring[gone]

    @pytest.mark.parametrize("index", [0, 1, 10, 100_000 // 128])
    def test_by_seq(self, file: Path, index: int) -> None:
        """log[seq] finds every event, whether the index knows of it or not."""
        with penstock.create(file, ring=100_000, index=index) as log:
            for i in range(1, 3000):
                log.append(b"%d" % i)
            for seq in range(log.first_seq, 3000, 7):
                assert log[seq].value == b"%d" % seq
                assert next(log.read(seq)).seq == seq

    @pytest.mark.parametrize("index", [0, None])
    @pytest.mark.parametrize("monotone", [True, False])
    def test_by_time(self, file: Path, index: int | None, monotone: bool) -> None:
        """since and until select by time, with an index or without, in order of time or not."""
        with penstock.create(file, ring="32KiB", index=index) as log:
            for i in range(1, 400):
                log.append(b"x" * 50, time=1000 * i + (0 if monotone else (i * 7919) % 100_000))
            assert shape(log).monotone is monotone
            events = list(log)
            lows = [0, events[0].time_ns, events[5].time_ns, events[-1].time_ns, 10**8 - 1]
            for since in lows:
                for until in lows:
                    want = [e.seq for e in events if since <= e.time_ns < until]
                    assert [e.seq for e in log.read(since=since, until=until)] == want
                    back = log.read(since=since, until=until, reverse=True)
                    assert [e.seq for e in back] == want[::-1]
                    table = log.scan(since=since, until=until).to_arrow()
                    assert table["seq"].to_pylist() == want

    def test_filters(self, ring: penstock.Log) -> None:
        """Topic, key and tags select in a ring as they do elsewhere."""
        for i in range(600):
            ring.append(
                b"%d" % i,
                topic="even" if i % 2 == 0 else "odd",
                key=b"%d" % (i % 5),
                tags=["third"] if i % 3 == 0 else None,
            )
        first = ring.first_seq
        assert first > 1
        assert ring.topics() == {"even", "odd"}

        def want(test: Callable[[int], bool]) -> list[int]:
            return [s for s in range(first, 601) if test(s - 1)]

        assert [e.seq for e in ring.read(topic="odd")] == want(lambda i: i % 2 == 1)
        assert [e.seq for e in ring.read(key=b"3")] == want(lambda i: i % 5 == 3)
        assert [e.seq for e in ring.read(tags=["third"])] == want(lambda i: i % 3 == 0)
        back = ring.read(topic="even", tags=["third"], reverse=True)
        assert [e.seq for e in back] == want(lambda i: i % 6 == 0)[::-1]

    def test_a_topic_is_forgotten(self, ring: penstock.Log) -> None:
        """topics() are those of the events that are still there."""
        ring.append(b"x", topic="old")
        fill(ring, 1.1)
        assert ring.topics() == {""}

    @pytest.mark.parametrize("on_gap", ["raise", "skip"])
    def test_a_gap(self, file: Path, on_gap: Literal["raise", "skip"]) -> None:
        """A read that is overtaken says so, or ends, once it has handed out what it had."""
        with penstock.create(file, ring="256KiB") as log:
            fill(log, 0.9)
            last = log.last_seq
            reader = log.read(on_gap=on_gap)
            got = [next(reader).seq]
            fill(log, 3)
            if on_gap == "raise":
                with pytest.raises(penstock.Gap) as caught:
                    got.extend(e.seq for e in reader)
                assert caught.value.first_seq == log.first_seq
                assert reader.skipped == 0
                assert reader.position == got[-1] + 1
            else:
                got.extend(e.seq for e in reader)
                assert reader.skipped == last - len(got) > 0
            assert got == list(range(1, len(got) + 1))
            assert 1 < len(got) < last

    def test_a_gap_that_is_passed_over(self, ring: penstock.Log) -> None:
        """on_gap='skip' goes on with the oldest event still there and counts what it missed."""
        follower = ring.follow(1, on_gap="skip")
        fill(ring, 0.3)
        taken = [e.seq for e in follower.take(3)]
        for _ in range(5):
            fill(ring, 7.3)
            taken += [e.seq for e in follower.take(5)]
        taken += [e.seq for e in follower.take(100_000)]
        assert taken == sorted(set(taken))
        assert taken[-1] == ring.last_seq
        assert follower.skipped == ring.last_seq - len(taken) > 0
        assert ring.follow("end").take(1) == []

    @pytest.mark.parametrize("on_gap", ["raise", "skip"])
    def test_following_from_a_seq_that_is_gone(
        self, ring: penstock.Log, on_gap: Literal["raise", "skip"]
    ) -> None:
        """A seq that is gone is a gap; "start" begins with the oldest event there is."""
        fill(ring, 3)
        first = ring.first_seq
        follower = ring.follow(1, on_gap=on_gap)
        if on_gap == "raise":
            with pytest.raises(penstock.Gap) as caught:
                follower.take(1)
            assert caught.value.first_seq == first
        else:
            assert follower.take(1)[0].seq == first
            assert follower.skipped == first - 1
        assert next(ring.read()).seq == first
        late = ring.follow("start", on_gap=on_gap)
        fill(ring, 3)
        assert late.take(1)[0].seq == ring.first_seq > first
        assert late.skipped == 0

    @pytest.mark.parametrize("on_gap", ["raise", "skip"])
    def test_a_scan_with_a_gap(self, ring: penstock.Log, on_gap: Literal["raise", "skip"]) -> None:
        """A scan that is overtaken raises, or goes on with what is there."""
        fill(ring, 1, size=0)
        batches = ring.scan(batch_rows=1, on_gap=on_gap).to_batches()
        first = next(batches)["seq"].to_pylist()
        assert first == [ring.first_seq]
        last = ring.last_seq
        ring.extend([b""] * 100)
        more = [s for b in [next(batches) for _ in range(5)] for s in b["seq"].to_pylist()]
        assert more == [first[0] + i for i in range(1, 6)]
        fill(ring, 4, size=0)
        if on_gap == "raise":
            with pytest.raises(penstock.Gap) as caught:
                list(batches)
            assert caught.value.first_seq == ring.first_seq
        else:
            seqs = [s for b in batches for s in b["seq"].to_pylist()]
            assert all(s <= last for s in seqs)
            assert seqs == sorted(set(seqs))

    def test_reading_backwards_while_the_rest_is_dropped(self, ring: penstock.Log) -> None:
        """A reader that goes back ends where events are gone; what it read is whole."""
        fill(ring, 2)
        last = ring.last_seq
        reader = reversed(ring)
        seqs = [next(reader).seq for _ in range(3)]
        fill(ring, 3)
        seqs += [e.seq for e in reader]
        assert seqs == list(range(last, last - len(seqs), -1))

    def test_a_durable_read(self, ring: penstock.Log) -> None:
        """durable=True leaves out what was not synced, and comes to it after the sync."""
        ring.extend([b"a", b"b"])
        assert (ring.durable_seq, list(ring.read(durable=True))) == (0, [])
        follower = ring.follow("start", durable=True)
        assert follower.take(5) == []
        assert ring.sync() == 2
        ring.append(b"c")
        assert values(ring.read(durable=True)) == values(follower.take(5)) == [b"a", b"b"]
        ring.append(b"d", durable=True)
        assert ring.durable_seq == 4
        assert values(follower.take(5)) == [b"c", b"d"]
        fill(ring, 2)
        ring.wait_durable(ring.last_seq)
        assert [e.seq for e in ring.read(durable=True)] == [e.seq for e in ring]

    def test_waiting(self, ring: penstock.Log) -> None:
        """wait() and follow() wake up for an append, also one that begins a lap."""
        assert ring.wait(0) is False
        got: list[int] = []

        def follow() -> None:
            for event in ring.follow(1, timeout=60):
                got.append(event.seq)
                if event.value == b"stop":
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        for _ in range(5):
            seen = len(got)
            ring.append(b"x" * (shape(ring).ring_bytes // 2 - HEADER))
            wait_for(lambda n=seen: len(got) > n, "the follower")  # type: ignore[misc]
        assert ring.wait(0, after=4) is True
        ring.append(b"stop")
        thread.join(60)
        assert got == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("index", [None, 0])
    def test_event_behind_the_frame_of_its_producer(self, file: Path, index: int | None) -> None:
        """The oldest event is found by its seq and from behind, not the frame that leads to it."""
        with penstock.create(file, ring="64KiB", index=index) as log:
            log.append(b"first", producer=("x", 1))
            assert log[1].value == b"first"
            assert [e.value for e in reversed(log)] == [b"first"]
            assert [e.value for e in log.read(1)] == [b"first"]


class TestEvents:
    """Events are the reader's own."""

    def test_events_outlive_what_is_overwritten(self, file: Path) -> None:
        """An event stays whole when it is overwritten, when the log closes, when the file goes."""
        with penstock.create(file, ring="32KiB") as log:
            log.append(b"v" * 1000, key=b"k", topic="t", headers={"a": b"1"})
            found = [log[1], next(iter(log)), next(reversed(log)), next(log.read(topic="t"))]
            view = found[0].view
            fill(log, 5)
        file.unlink()
        del log
        gc.collect()
        for event in found:
            assert event.value == b"v" * 1000 == bytes(view)
            assert (event.key, event.topic, event.headers) == (b"k", "t", (("a", b"1"),))

    @pytest.mark.skipif(
        "libasan" in os.environ.get("LD_PRELOAD", ""), reason="it keeps what is freed for a while"
    )
    def test_kept_events_keep_no_windows(self, file: Path) -> None:
        """Events that a filter picks keep their own bytes, not all that was read beside them."""
        with penstock.create(file, ring="8MiB") as log:
            for _ in range(60):
                log.append(b"r" * 100, topic="rare")
                log.extend([b"x" * 1000] * 100)
            before = anonymous_bytes()
            kept = list(log.read(topic="rare"))
            assert len(kept) == 60
            assert anonymous_bytes() - before < 60 * (64 << 10) // 4
            assert all(e.value == b"r" * 100 for e in kept)


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(x.split()[1]) for x in lines if x.startswith("RssAnon:"))
