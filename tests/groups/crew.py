"""What the processes of these tests do: work until told to stop, or until they are killed.

Each notes in a file what it is about to do with which event, and what it has done, one line each,
so that a judge can compare that with what the group says in the end.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import penstock
from penstock import Conflict
from penstock.groups.job import Job


class Notes:
    """A file of lines that survive the death of whoever wrote them."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, *words: object) -> None:
        os.write(self._fd, (" ".join(map(str, words)) + "\n").encode())


def work(path: Path, notes: Path, seed: int, **options: Any) -> None:
    """Work at random: acks, nacks, rejects, exceptions, batches, slow jobs; until told to stop."""
    rng = random.Random(seed)
    told = Notes(notes)
    me = os.getpid()
    stop = notes.parent / "stop"
    with penstock.open(path) as log, log.group("storm", **options) as group:
        while not stop.exists():
            with group.worker(timeout=0.05, prefetch=rng.choice([1, 1, 3, 10])) as worker:
                for _ in range(rng.randrange(1, 40)):
                    batch = rng.choice([1, 1, 1, 5])
                    jobs = worker.poll(batch, timeout=0.05)
                    for job in jobs:
                        told.say("got", me, job.seq, job.deliveries, time.monotonic_ns())
                    if rng.random() < 0.1:
                        time.sleep(rng.random() * 0.02)
                    if len(jobs) > 1 and rng.random() < 0.5:
                        settle_all(worker, jobs, told, me)
                    else:
                        for job in jobs:
                            settle(job, rng, told, me)
                    if rng.random() < 0.03:
                        break  # with what it has


def settle_all(worker: Any, jobs: list[Job], told: Notes, me: int) -> None:
    try:
        for job in jobs:
            told.say("acking", me, job.seq, time.monotonic_ns())
        worker.ack(jobs)
        for job in jobs:
            told.say("acked", me, job.seq, time.monotonic_ns())
    except Conflict:
        for job in jobs:
            told.say("unsure", me, job.seq, time.monotonic_ns())


def settle(job: Job, rng: random.Random, told: Notes, me: int) -> None:
    dice = rng.random()
    try:
        if dice < 0.8:
            told.say("acking", me, job.seq, time.monotonic_ns())
            job.ack(result=b"done" if dice < 0.1 else None)
            told.say("acked", me, job.seq, time.monotonic_ns())
        elif dice < 0.9:
            told.say("letting", me, job.seq, time.monotonic_ns())
            job.nack(delay=rng.choice([0, 0.001, 0.01]), reason="storm", count=dice < 0.87)
        elif dice < 0.93:
            told.say("letting", me, job.seq, time.monotonic_ns())
            job.reject("storm")
        else:
            told.say("letting", me, job.seq, time.monotonic_ns())
            try:
                with job:
                    raise ValueError("storm")
            except ValueError:
                pass
    except Conflict:
        told.say("lost", me, job.seq, time.monotonic_ns())
