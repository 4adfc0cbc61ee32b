"""What a writer says about itself: each operation before it starts, each seq after it returned.

Lines go straight to a file by write(2), so that a kill loses none that was written.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Log, PenstockError
from tests.support.values import Mark, make, random_size


class Acks:
    """The writing side, used by one thread of a worker."""

    def __init__(self, path: str, writer: str) -> None:
        self.writer = writer
        self.counter = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(
        self, log: Log, sizes: list[int], timeout: float | None = None, **options: Any
    ) -> int:
        """Append one event, or one batch, of these sizes; returns the first seq.

        A durable append that raises may have committed its events all the same.
        """
        self.counter += 1
        count = len(sizes)
        marks = [Mark(self.writer, self.counter, i, count, size) for i, size in enumerate(sizes)]
        items = [make(mark) for mark in marks]
        os.write(self._fd, f"i {self.writer} {self.counter} {count}\n".encode())
        try:
            if count > 1:
                seq = log.extend(items, timeout=timeout, **options)[0]
            elif isinstance(items[0], bytes):
                seq = log.append(items[0], timeout=timeout, **options)
            else:
                seq = log.append(items[0].value, key=items[0].key, timeout=timeout, **options)
        except (PenstockError, MemoryError):
            kind = "m" if options.get("durable") else "r"
            os.write(self._fd, f"{kind} {self.writer} {self.counter} 0\n".encode())
            raise
        os.write(self._fd, f"a {self.writer} {self.counter} {seq}\n".encode())
        return int(seq)

    def load(self, log: Log, sizes: list[int], timeout: float | None = None) -> int:
        """Load events of these sizes; returns the first seq."""
        self.counter += 1
        count = len(sizes)
        marks = [Mark(self.writer, self.counter, i, count, size) for i, size in enumerate(sizes)]
        os.write(self._fd, f"i {self.writer} {self.counter} {count}\n".encode())
        try:
            seqs = log.load(
                (make(mark) for mark in marks),
                producer=(self.writer, self.counter),
                timeout=timeout,
            )
        except (PenstockError, MemoryError):
            os.write(self._fd, f"r {self.writer} {self.counter} 0\n".encode())
            raise
        assert len(seqs) == count
        os.write(self._fd, f"a {self.writer} {self.counter} {seqs[0]}\n".encode())
        return seqs[0]

    def append_random(
        self, log: Log, rng: random.Random, limit: int, timeout: float | None = None
    ) -> int:
        """Append something of random shape that fits ``limit`` bytes, in one of many ways.

        A load may be larger, where it goes into segments of its own.
        """
        way = rng.random()
        if way < 0.01:
            most = limit // 150 if log._storage.is_ring else 6000
            sizes = [rng.randrange(60, most) for _ in range(rng.randrange(100, 150))]
            return self.load(log, sizes, timeout)
        options: dict[str, Any] = {"timeout": timeout}
        if way < 0.05:
            options["durable"] = True
        elif way < 0.15:
            options["producer"] = (self.writer, self.counter + 1)
        sizes = [random_size(rng, limit)]
        if rng.random() < 0.3:
            count = rng.randrange(2, 9)
            sizes = [random_size(rng, limit // count) for _ in range(count)]
        seq = self.append(log, sizes, **options)
        if "producer" in options:
            again = log.extend([b"again"] * len(sizes), **options)
            assert again[0] == seq, f"{options} was appended twice"
        return seq

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclass
class Account:
    """The reading side: all that the writers of one log said."""

    tried: dict[tuple[str, int], int] = field(default_factory=dict)  # operation -> events in it
    acked: dict[tuple[str, int], int] = field(default_factory=dict)  # operation -> first seq
    refused: set[tuple[str, int]] = field(default_factory=set)  # operations that raised
    maybe: set[tuple[str, int]] = field(default_factory=set)  # ... perhaps after their commit

    @property
    def unknown(self) -> set[tuple[str, int]]:
        """Operations that began and never said how they ended."""
        return set(self.tried) - set(self.acked) - self.refused - self.maybe


def read_account(files: list[Path]) -> Account:
    """Put together what the writers said."""
    account = Account()
    for file in files:
        if not file.exists():
            continue
        *lines, _ = file.read_text().split("\n")  # a kill may have cut the last one short
        for line in lines:
            kind, writer, counter, number = line.split()
            operation = (writer, int(counter))
            if kind == "i":
                assert operation not in account.tried, f"{operation} was begun twice"
                account.tried[operation] = int(number)
            elif kind == "r":
                account.refused.add(operation)
            elif kind == "m":
                account.maybe.add(operation)
            else:
                account.acked[operation] = int(number)
    return account
