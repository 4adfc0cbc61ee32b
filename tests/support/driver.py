"""The lake's command line, run by a driver that dies with SIGKILL at a chosen moment.

    python -m tests.support.driver MOMENT ARGUMENTS...

MOMENT is "staged", when the second batch is staged and nothing of it is published; "half", when
half of its files are in place; or "published", when all are and Spark does not know yet.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from penstock.spark.lake import __main__ as command
from penstock.spark.lake.book import Book, Journal


def die() -> None:
    """End this process, at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(moment: str) -> None:
    """Have the process die at that moment of the second batch that it publishes."""
    real_publish, real_move = Book.publish, Book._move
    batches = 0

    def publish(self: Book, journal: Journal) -> Journal:
        nonlocal batches
        batches += bool(journal.moves)
        if moment == "staged" and batches == 2:
            die()
        done = real_publish(self, journal)
        if moment == "published" and batches == 2:
            die()
        return done

    def move(self: Book, journal: Journal) -> None:
        if moment == "half" and batches == 2:
            some: Any = journal.moves[: len(journal.moves) // 2]
            assert some
            real_move(self, Journal(journal.partition_by, bad=journal.bad, moves=some))
            die()
        real_move(self, journal)

    Book.publish, Book._move = publish, move  # type: ignore[method-assign]


if __name__ == "__main__":
    arrange(sys.argv[1])
    sys.exit(command.main(sys.argv[2:]))
