"""A writer that `penstock torture` kills: ``python -m penstock.cli.tortured LOG LIFE FILE``.

It prints a line when it begins, and writes a number to FILE once the event with that number was
acknowledged: to a file, since a writer that waits for a pipe would mostly be killed there.
"""

from __future__ import annotations

import os
import sys

import penstock
from penstock.cli.commands.torture import VALUE_BYTES


def main() -> None:
    """Append until it is killed."""
    path, life, said = sys.argv[1:]
    filler = b"x" * VALUE_BYTES
    acks = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with penstock.open(path, create=False) as log:
        os.write(1, b"\n")
        number = 0
        while True:
            log.append(b"%s:%d:%s" % (life.encode(), number, filler))
            os.write(acks, b"%d\n" % number)
            number += 1


if __name__ == "__main__":
    main()
