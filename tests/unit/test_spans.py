"""Spans: cutting a log into pieces by its index."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from penstock.data.spans import Span, spans, stop_within

FRAME_BYTES = 152  # topic and value of 100 bytes, and a time


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of several segments, whose middle one has a topic of its own, and times."""
    with penstock.open(tmp_path / "log", segment_size="64KiB") as log:
        for i in range(1500):
            topic = "rare" if 700 <= i < 720 else "common"
            log.append(bytes(100 - len(topic)), topic=topic, time=i * 1000)
    return tmp_path / "log"


def bases(path: Path) -> list[int]:
    """First seqs of the segments."""
    return sorted(int(file.name[:20]) for file in path.glob("*.seg"))


def test_segments_are_spans(path: Path) -> None:
    """Each segment is one, with the size of its frames."""
    with penstock.open(path, mode="r") as log:
        found = spans(log, 1, log.last_seq + 1)
    assert [span.start for span in found] == bases(path)
    assert [span.stop for span in found] == [*bases(path)[1:], 1501]
    for span in found:
        frames = (span.stop - span.start) * FRAME_BYTES
        assert frames <= span.nbytes <= frames + 100  # settings, and the roll frame


def test_part_of_a_segment(path: Path) -> None:
    """Sizes of parts add up, and are exact to a block of the index."""
    with penstock.open(path, mode="r") as log:
        [first] = spans(log, 1, 101)
        [second] = spans(log, 101, 201)
        [both] = spans(log, 1, 201)
        assert first.nbytes + second.nbytes == both.nbytes
        assert abs(first.nbytes - 100 * FRAME_BYTES) <= 4096 + FRAME_BYTES
        assert spans(log, 7, 7) == spans(log, 9, 7) == []


def test_segments_without_what_is_wanted(path: Path) -> None:
    """Sealed segments that cannot hold it are left out."""
    with penstock.open(path, mode="r") as log:
        rare = spans(log, 1, 1501, topics=["rare", "other"])
        assert len(rare) < len(bases(path))
        assert any(span.start <= 701 < span.stop for span in rare)
        early = spans(log, 1, 1501, until_ns=5000)
        assert early[0] == spans(log, 1, 1501)[0]
        assert len(early) < len(bases(path))
        late = spans(log, 1, 1501, since_ns=1_499_000)
        assert late[-1].stop == 1501
        assert len(late) < len(bases(path))
        none = spans(log, 1, 1501, topics=[])
        assert none == []


@pytest.mark.parametrize("nbytes", [1, 4096, 20_000, 64_000, 150_000, 10**9])
@pytest.mark.parametrize("start", [1, 100, 800])
def test_as_far_as_bytes_go(path: Path, start: int, nbytes: int) -> None:
    """At most about that many bytes, to a block of the index, and at least one event."""
    with penstock.open(path, mode="r") as log:
        stop = stop_within(log, start, 1501, nbytes)
        assert start < stop <= 1501
        taken = sum(span.nbytes for span in spans(log, start, stop))
        assert taken <= max(nbytes, 4096 + FRAME_BYTES)
        if stop < 1501:
            more = sum(span.nbytes for span in spans(log, start, min(1501, stop + 60)))
            assert more >= nbytes - 4096
        assert stop_within(log, start, start, nbytes) == start


def test_a_live_log(path: Path) -> None:
    """The active segment is cut by what its writer has indexed so far."""
    with penstock.open(path) as log:
        for _ in range(50):
            log.append(bytes(100))
        found = spans(log, 1, log.last_seq + 1)
        assert found[-1].stop == 1551
        assert sum(span.nbytes for span in found) >= 1550 * (FRAME_BYTES - 16)
        assert 1500 < stop_within(log, 1500, 1551, 3000) < 1551


def test_a_damaged_segment_is_a_span(path: Path) -> None:
    """Whoever reads it is told; cutting goes on."""
    file = path / f"{bases(path)[1]:020}.seg"
    os.truncate(file, 100)
    with penstock.open(path, mode="r") as log:
        found = spans(log, 1, 1501)
    assert [span.start for span in found] == bases(path)
    assert found[1] == Span(bases(path)[1], bases(path)[2], 0)
