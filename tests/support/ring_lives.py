"""Scripts of what processes do to a ring, and what the ring must hold then.

As :mod:`tests.support.lives`, for a log that drops its oldest events. Beside what was appended and
said to be on disk, the ledger knows from which event on they were still wanted.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import penstock
from penstock import Log, _core
from penstock import layout as L
from penstock.ring import file as ring_file
from penstock.ring.file import Header
from tests.support.lives import LONG_AGO, Ledger, Life, Step, item_of
from tests.support.pages import History
from tests.support.recorder import Recorder

RING = 40 << 10  # five pages of frames
NAME = "ring"


@dataclass
class RingLedger(Ledger):
    """What was appended, what of it was said to be on disk, and what was dropped."""

    firsts: list[tuple[int, int]] = field(default_factory=list)  # the oldest seq, as it changed

    def wanted_from(self, moment: int) -> int:
        """Seq of the oldest event that was not dropped yet."""
        return max((seq for when, seq in self.firsts if when <= moment), default=1)

    def at(self, moment: int) -> RingLedger:
        """What is left of it when the power fails at ``moment``."""
        left = super().at(moment)
        return RingLedger(
            left.events,
            left.told,
            left.produced,
            units=left.units,
            begun=left.begun,
            firsts=[(LONG_AGO, self.wanted_from(moment))],
        )


def first_seq_of(ring: Path) -> int | None:
    """Seq of the oldest event, as control in a ring's file has it; None if there is no control."""
    data = ring.read_bytes()
    if data[L.RING_CONTROL_OFFSET :][:8] != L.CONTROL_MAGIC:
        return None
    header = Header.unpack(data[: L.PAGE], str(ring))

    def word(at: int) -> int:
        return int(struct.unpack_from("<Q", data, L.RING_CONTROL_OFFSET + at)[0])

    at, room = word(L.C_TAIL), header.ring_bytes
    if room - at % room < L.FRAME_HEADER_BYTES:
        at += room - at % room
    if at >= word(L.C_HEAD):
        return word(L.C_NEXT_SEQ)
    return int(struct.unpack_from("<Q", data, header.data_offset + at % room + L.FRAME_SEQ)[0])


class RingRecorder(Recorder):
    """Watches the directory of a ring, and what the ring has dropped."""

    ledger: RingLedger

    def look(self, label: str) -> None:
        """Look at the file, and die here if that is what the script says."""
        ring = Path(self.directory, NAME)
        first = first_seq_of(ring) if ring.exists() else None
        if first is not None and self.ledger.wanted_from(self.history.moment) < first:
            # It was dropped just now, after the moment before.
            self.ledger.firsts.append((self.history.moment, first))
        super().look(label)

    def expect_publish(self, lengths: list[int]) -> None:
        """Look at each fail-point of an append of frames whose values have these lengths."""
        batch = ["publish.batch_body"] * (len(lengths) - 1)
        points = ["publish.tail", "publish.body", *batch, "publish.written", "publish.commit"]
        self._arm(iter(points))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Watch, while the block runs."""
        recorder = self

        class WatchedMap(_core.RingMap):
            """Tells the recorder which pages are marked as changed."""

            def redirty(self, start: int, stop: int) -> None:
                super().redirty(start, stop)
                recorder.mark(self.path, start, stop)

        with mock.patch.object(ring_file, "RingMap", WatchedMap), super().recording():
            yield


class RingLife(Life):
    """One process that opens a ring and acts on it, step by step."""

    ledger: RingLedger

    def open(self, *, by: str = "", rebooted: bool = False) -> None:
        """Open the ring and check that it holds what it must, and nothing else."""
        if self.recorder is not None:
            self.recorder.expect_repair()
        self.logs[by] = log = penstock.open(f"{self.path}/{NAME}", create=False)
        last = check_events(log, self.ledger, self.moment)
        del self.ledger.events[last:]
        self.ledger.units = [seqs for seqs in self.ledger.units if seqs[-1] <= last]
        if rebooted:
            assert log.durable_seq == last, "what was found is not said to be on the device"
            self.ledger.told = [(LONG_AGO, last)]
            self.ledger.firsts = [(LONG_AGO, log.first_seq)]

    def append(self, sizes: list[int], *, by: str = "", **options: Any) -> None:
        """Append one event, or a batch."""
        super().append(sizes, by=by, **options)
        if self.recorder is None:  # which would have seen it
            self.ledger.firsts.append((LONG_AGO, self.logs[by].first_seq))

    def sync(self, *, by: str = "") -> None:
        """Sync; then everything is on disk."""
        assert self.logs[by].sync() == len(self.ledger.events) == self.logs[by].durable_seq


def check_events(log: Log, ledger: RingLedger, moment: int) -> int:
    """The ring holds a part of what was appended, with all that had to be there; its last seq."""
    wanted, must = ledger.wanted_from(moment), ledger.must_hold(moment)
    found = list(log)
    first, last = log.first_seq, log.last_seq
    assert [e.seq for e in found] == list(range(first, last + 1))
    assert last <= len(ledger.events), f"the last is {last} of {len(ledger.events)} appended"
    for event in found:
        item = ledger.events[event.seq - 1][1]
        assert item_of(event) == item, f"seq {event.seq} is another event"
    if wanted <= must:
        assert first <= wanted, f"the durable events from {wanted} on are gone; {first} is there"
        assert last >= must, f"the events up to {must} were on the device, those up to {last} are"
    parted = [seqs for seqs in ledger.units if seqs[0] <= last < seqs[-1]]
    assert not parted, f"the ring ends at {last}, inside of what was appended as one"
    assert [e.seq for e in reversed(log)] == list(range(last, first - 1, -1))
    assert all(log[seq].seq == seq for seq in range(first, last + 1))
    assert log.scan().to_arrow().num_rows == len(found)
    return last


def live(path: str, record: str, steps: list[Step]) -> None:
    """One recorded life, in a process of its own, which ends here without closing anything."""
    file = Path(record)
    if file.exists():
        history, ledger = pickle.loads(file.read_bytes())
    else:
        os.makedirs(path)
        penstock.create(f"{path}/{NAME}", ring=RING).close()
        history, ledger = History.of(Path(path)), RingLedger()
    recorder = RingRecorder(history, path)
    recorder.ledger = ledger
    life = RingLife(path, ledger, recorder)

    def write_down() -> None:
        file.write_bytes(pickle.dumps((history, ledger)))

    recorder.last_words = write_down
    life.run(steps)
    write_down()
    os._exit(0)


def recorded(record: Path) -> tuple[History, RingLedger]:
    """What lives have left of themselves."""
    history, ledger = pickle.loads(record.read_bytes())
    return history, ledger
