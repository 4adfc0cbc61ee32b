"""CRC32C against published vectors, against itself in pieces, and hardware against tables."""

from __future__ import annotations

import random

import pytest

from penstock import _core
from tests.unit import oracle

ISCSI_READ = bytes.fromhex(
    "01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
    "0200000000000000"
)
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (ISCSI_READ, 0xD9963A56),
]


@pytest.mark.parametrize("hardware", [True, False])
@pytest.mark.parametrize(("data", "crc"), VECTORS)
def test_published_vectors(data: bytes, crc: int, hardware: bool) -> None:
    """The vectors of RFC 3720 and the check value of the CRC catalogue come out."""
    assert _core.crc32c(data, hardware=hardware) == crc
    assert oracle.crc32c(data) == crc


@pytest.mark.parametrize("hardware", [True, False])
def test_pieces_equal_the_whole(hardware: bool) -> None:
    """Summing in two pieces gives the sum of the whole, wherever the cut is."""
    data = random.Random(1).randbytes(4000)
    whole = _core.crc32c(data)
    for cut in range(len(data) + 1):
        first = _core.crc32c(data[:cut], hardware=hardware)
        assert _core.crc32c(data[cut:], first, hardware=hardware) == whole


@pytest.mark.parametrize("shift", [0, 1, 3, 4, 7])
def test_hardware_equals_tables(shift: int) -> None:
    """The instruction and the tables agree for every length to 5000, at several alignments."""
    data = memoryview(random.Random(shift).randbytes(5000 + shift))[shift:]
    for length in range(5001):
        part = data[:length]
        assert _core.crc32c(part) == _core.crc32c(part, hardware=False)


@pytest.mark.parametrize("length", [0, 1, 383, 384, 385, 3071, 3072, 3073, 12288, 12289, 40000])
def test_long_inputs_equal_the_oracle(length: int) -> None:
    """The joined registers of long inputs agree with a sum made a byte at a time."""
    data = random.Random(length).randbytes(length)
    assert _core.crc32c(data) == oracle.crc32c(data)


def test_non_contiguous_input_is_refused() -> None:
    """A buffer with gaps is refused, not summed wrongly."""
    with pytest.raises(BufferError):
        _core.crc32c(memoryview(b"abcdef")[::2])
