"""The command line: ``penstock``, and ``python -m penstock``.

Nothing is imported before it is needed, since a command often runs for less time than Python takes
to start. What a command prints is a promise; docs/cli.md has it.
"""

from __future__ import annotations

import gc
import os
import sys

import penstock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def script() -> NoReturn:
    """What ``penstock`` and ``python -m penstock`` run: `main`, and the end of the process.

    All logs are closed by then. Python would take some milliseconds more to take itself apart.
    """
    gc.set_threshold(50_000)  # modules are many objects and no garbage
    try:
        code = main()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except KeyboardInterrupt:
        code = 130
    except (OSError, ValueError):
        code = 8  # it was said already, if anybody can read it
    os._exit(code)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code.

    >>> from penstock.cli import main
    >>> main(["append", str(path), "hello", "--create"]), main(["get", str(path), "1", "-o", "raw"])
    1
    hello
    (0, 0)
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given in (["--version"], ["-V"]) and sys.stdout is not None:
        try:
            print(f"penstock {penstock.__version__}", flush=True)
        except OSError:
            pass  # what follows says what is wrong with it
        else:
            return 0
    from penstock.cli.running import run

    return run(given)
