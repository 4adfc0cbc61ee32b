"""The ways to die of `test_fail_points`: which process, at which fail-point, at which pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support.rings import RingScene
from tests.support.scene import SEGMENT, Scene
from tests.support.workers import Crew

BATCH = [30, 0, 5000, 200, 20_000]
LONG = [[60_000]] * 5  # over the end of a segment, or of a ring's lap


@dataclass
class Case:
    """One way to die: what the victim does, which fail-point ends it, at which pass."""

    name: str
    job: str = "write"
    operations: list[list[int]] = field(default_factory=lambda: [[200]] * 3)
    times: int = 1
    before: str = ""  # a fail-point at which an earlier victim has died already
    ring: bool = False

    @property
    def label(self) -> str:
        """For the test's id."""
        shape = "batch" if self.operations == [BATCH] else self.job
        after = f"-after-{self.before}" if self.before else ""
        kind = "ring-" if self.ring else ""
        return f"{kind}{self.name}-{shape}-{self.times}{after}"

    def scene(self, crew: Crew, directory: Path) -> Scene:
        """A seeded log or ring."""
        if self.ring:
            ring = RingScene(crew, directory)
            ring.seed()
            return ring
        scene = Scene(crew, directory)
        # Next segments are prepared ahead only in logs whose segments are worth it.
        scene.seed(8 << 20 if self.job == "fill" else SEGMENT)
        return scene

    def earlier(self) -> Case:
        """The earlier death that this case is about the repair of."""
        kind = self.before.partition(".")[0]
        if self.before == "sweep":
            return _ring("publish.commit", job="sweep")
        if self.ring and kind == "sync":
            return _ring(self.before, job="sync_ring")
        if self.before == "publish.wrap":
            return _ring(self.before, operations=LONG)
        operations = [BATCH] if self.before == DEAD_BATCH else [[300]]
        jobs = {"roll": "roll", "segment": "roll", "sync": "sync", "load": "load"}
        times = {DEAD_BATCH: 4, "load.named": 3}.get(self.before, 1)
        job = jobs.get(kind, "write")
        return Case(self.before, job, operations, times, ring=self.ring)


def _batch(name: str, times: int = 1, before: str = "", ring: bool = False) -> Case:
    return Case(name, operations=[BATCH], times=times, before=before, ring=ring)


_ring = partial(Case, ring=True)
_ring_batch = partial(_batch, ring=True)

PUBLISH = [
    *("publish.reserved", "publish.written", "publish.body", "publish.commit"),
    *("publish.head", "publish.words"),
]
ROLL = ["segment.started", "roll.reserved", "roll.committed", "segment.named", "segment.synced"]
DEAD_BATCH = "publish.batch_body"

# Deaths that can happen while other processes have the log open.
LOG_BESIDE_OTHERS = [
    *(Case(name) for name in PUBLISH),
    *(Case(name, times=3) for name in ("publish.body", "publish.commit")),
    *(_batch(name) for name in PUBLISH),
    *(_batch(DEAD_BATCH, times) for times in (1, 2, 4)),
    Case("lock.taken"),
    Case("lock.given"),
    *(Case(name, job="roll") for name in ROLL),
    *(Case("repair.word", job="roll", times=times) for times in range(1, 15)),
    Case("repair.head", job="roll"),
    Case("roll.published", job="roll"),
    Case("roll.committed", operations=LONG),
    Case("segment.named", operations=LONG),
    Case("prepare.made", job="fill"),
    Case("prepare.named", job="fill"),
    *(
        Case(name, job="roll")
        for name in ("seal.indexed", "seal.allocated", "seal.filtered", "seal.written")
    ),
    *(
        Case(name, job="sync", times=times)
        for name in ("sync.begun", "sync.synced", "sync.checkpointed")
        for times in (1, 2)
    ),
    *(Case("load.named", job="load", times=times) for times in (1, 2, 5)),
    *(Case(name, job="load") for name in ("load.reserved", "load.committed", "load.published")),
]

# Deaths of the process that repairs what an earlier death left, with the log open elsewhere.
LOG_REPAIRING = [
    *(Case("lock.took_over", before=name) for name in ("lock.taken", *PUBLISH)),
    *(Case("repair.walked", before=name) for name in (*PUBLISH, DEAD_BATCH)),
    *(Case("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    Case("repair.zeroed", before=DEAD_BATCH),
    *(Case("repair.word", times=times, before=DEAD_BATCH) for times in range(1, 15)),
    Case("repair.head", before=DEAD_BATCH),
    *(Case("repair.head", before=name) for name in ("publish.commit", "publish.head")),
    *(Case(name, before="roll.committed") for name in ("segment.started", "segment.named")),
    *(Case("repair.head", before=name) for name in ("roll.committed", "segment.synced")),
    *(Case("repair.moved", before="load.named", times=times) for times in (1, 2)),
    Case("repair.head", before="load.committed"),
    *(Case(name, job="sync", before="sync.begun") for name in ("sync.begun", "sync.synced")),
]

# Deaths of the first process to open the log, whatever state the last one left it in.
LOG_FIRST_OPEN = [
    *(Case(name) for name in ("control.created", "control.written", "control.renamed")),
    Case("open.locked"),
    Case("repair.walked", before=DEAD_BATCH),
    *(Case("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    Case("repair.zeroed", before=DEAD_BATCH),
    *(Case(name, before="roll.committed") for name in ("segment.started", "segment.named")),
    Case("segment.synced", before="roll.committed"),
    Case("control.renamed", before=DEAD_BATCH),
    Case("repair.moved", before="load.named"),
    Case("open.settled", before="sync.begun"),
]


CLAIM = [*PUBLISH, "publish.tail"]

RING_BESIDE_OTHERS = [
    *(_ring(name, times=2) for name in CLAIM),
    *(_ring_batch(name) for name in CLAIM),
    *(_ring(name, operations=LONG, times=times) for name in CLAIM for times in (1, 2, 3, 4)),
    *(_ring(name, job="sweep") for name in (*CLAIM, "publish.wrap")),
    *(_ring(name, job="produce", times=9) for name in CLAIM),
    _ring("publish.wrap", job="produce"),
    *(_ring_batch(DEAD_BATCH, times) for times in (1, 4)),
    _ring("publish.wrap", operations=LONG),
    _ring("lock.taken"),
    _ring("lock.given"),
    *(
        _ring(name, job="sync_ring", times=times)
        for name in ("sync.begun", "sync.synced")
        for times in (1, 2)
    ),
]

RING_REPAIRING = [
    *(_ring("lock.took_over", before=name) for name in ("lock.taken", *CLAIM)),
    *(_ring("repair.walked", before=name) for name in (*CLAIM, DEAD_BATCH, "publish.wrap")),
    *(_ring("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    _ring("repair.zeroed", before=DEAD_BATCH),
    *(_ring("repair.word", times=times, before=DEAD_BATCH) for times in range(1, 12)),
    *(_ring("repair.word", times=times, before="sweep") for times in range(1, 12)),
    *(_ring("repair.head", before=name) for name in (DEAD_BATCH, "sweep", "publish.head")),
    *(_ring(name, job="sync_ring", before="sync.begun") for name in ("sync.begun", "sync.synced")),
]

RING_FIRST_OPEN = [
    *(_ring(name) for name in ("ring.epoch", "control.emptied", "control.filled", "open.locked")),
    *(_ring(name) for name in ("repair.walked", "open.settled")),
    *(_ring("repair.walked", before=name) for name in (DEAD_BATCH, "sweep")),
    *(_ring("repair.zeroing", times=times, before=DEAD_BATCH) for times in (1, 2, 7)),
    _ring("repair.zeroed", before=DEAD_BATCH),
    *(_ring("control.filled", before=name) for name in (DEAD_BATCH, "sweep", "publish.reserved")),
    _ring("open.settled", before="sync.begun"),
]

BESIDE_OTHERS = [*LOG_BESIDE_OTHERS, *RING_BESIDE_OTHERS]
REPAIRING = [*LOG_REPAIRING, *RING_REPAIRING]
FIRST_OPEN = [*LOG_FIRST_OPEN, *RING_FIRST_OPEN]

# Deaths of the last writer, while it closes the log.
CLOSING = ["slack.told", "slack.freed", "slack.removed"]

CREATION = [
    *("segment.started", "segment.named", "segment.synced", "repair.walked"),
    *("control.created", "control.written", "control.renamed", "open.locked"),
]
RING_CREATION = ["ring.made", "ring.named", "open.settled", "control.emptied"]
