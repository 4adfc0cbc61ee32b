"""Fuzzes the reading, recovery, verification and repair of logs; `make fuzz` runs it.

    python -m tests.fuzz.segments [libFuzzer's options] [CORPUS_DIRECTORY ... | INPUT ...]

Needs atheris, and to see into the compiled core, its build in build/fuzz: the Makefile says how.
An input that was found is run again by giving its file.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any


def main() -> None:
    # Only `make fuzz` installs it, so the type checker must do without, and without its stubs.
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["penstock"]):
        import penstock
    from tests.fuzz.checks import check

    print(f"fuzzing {penstock.__file__}", flush=True)
    logging.disable()
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
