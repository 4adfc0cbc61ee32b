"""Inputs that the fuzzer once found worth keeping, run without it.

Those named ``found-…`` broke something once; the others are where the fuzzer starts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.checks import check

CORPUS = sorted(Path(__file__).with_name("corpus").iterdir())


def test_the_corpus_is_small() -> None:
    """The corpus is there, and stays a matter of kilobytes."""
    assert CORPUS
    seeds = Path(__file__).with_name("seeds").iterdir()
    assert sum(p.stat().st_size for p in [*CORPUS, *seeds]) < 200_000


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_input(path: Path) -> None:
    """A changed log is read, appended to and repaired as promised, or refused by a typed error."""
    check(path.read_bytes())
