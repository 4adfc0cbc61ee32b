"""Header, checkpoint slot and footer: packed and unpacked alike, and no flipped bit is believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

import penstock
from penstock import layout as L
from penstock.segments.segment import Header, SegmentSummary, Slot, first_slot

HEADER = Header(
    uuid=bytes(range(16)),
    base_seq=12345,
    number=7,
    generation=0,
    created_ns=1_700_000_000_000_000_000,
    segment_bytes=1 << 20,
    prior_append_ns=1_600_000_000_000_000_001,
    prior_event_max_ns=99,
    monotone=True,
    settings=b'{"file_mode":384,"segment_size":1048576}',
)
SLOT = Slot(
    generation=9,
    offset=HEADER.data_offset + 4096,
    last_frame=HEADER.data_offset + 4000,
    last_seq=12399,
    last_append_ns=5,
    settings_offset=HEADER.data_offset,
    index_count=1,
    event_max_ns=77,
    producer_offset=HEADER.data_offset + 64,
    monotone=True,
)
SUMMARY = SegmentSummary(
    data_end=HEADER.data_offset + 8000,
    last_frame=HEADER.data_offset + 7960,
    count=10,
    first_seq=12345,
    last_seq=12354,
    next_seq=12355,
    first_append_ns=1,
    last_append_ns=2,
    event_min_ns=3,
    event_max_ns=4,
    log_event_max_ns=99,
    sealed_ns=6,
    index_count=2,
    index_crc=0xDEADBEEF,
    data_crc=0x12345678,
    monotone=True,
    log_monotone=False,
    topics=frozenset([b"", b"a", "tøpic".encode()]),
)


@pytest.mark.parametrize("header", [HEADER, replace(HEADER, monotone=False, settings=b"")])
def test_headers_come_back(header: Header) -> None:
    """A header is what was packed, and takes one page."""
    assert len(header.pack()) == L.PAGE
    assert Header.unpack(header.pack(), "x") == header


@pytest.mark.parametrize("slot", [SLOT, replace(SLOT, monotone=False), first_slot(HEADER)])
def test_slots_come_back(slot: Slot) -> None:
    """A slot is what was packed, and fits one sector."""
    assert len(slot.pack()) == L.SLOT_BYTES == 512
    assert Slot.unpack(slot.pack(), HEADER) == slot


@pytest.mark.parametrize(
    "summary",
    [SUMMARY, replace(SUMMARY, topics=None), replace(SUMMARY, monotone=False, log_monotone=True)],
)
def test_footers_come_back(summary: SegmentSummary) -> None:
    """A footer is what was packed, topics too many to keep among it, and takes one page."""
    assert len(summary.pack(HEADER)) == L.PAGE
    assert SegmentSummary.unpack(summary.pack(HEADER), HEADER) == summary


def flipped(page: bytes) -> list[bytes]:
    """The page with one bit flipped, at each byte, a different bit from byte to byte."""
    pages = []
    for at in range(len(page)):
        changed = bytearray(page)
        changed[at] ^= 1 << at * 5 % 8
        pages.append(bytes(changed))
    return pages


def test_no_flipped_header_is_believed() -> None:
    """One flipped bit anywhere in the page is Corrupt."""
    for page in flipped(HEADER.pack()):
        with pytest.raises(penstock.Corrupt):
            Header.unpack(page, "x")


def test_no_flipped_slot_is_believed() -> None:
    """One flipped bit anywhere in the slot makes it none."""
    assert [Slot.unpack(page, HEADER) for page in flipped(SLOT.pack())] == [None] * L.SLOT_BYTES


def test_no_flipped_footer_is_believed() -> None:
    """One flipped bit anywhere in the page makes it no footer."""
    pages = flipped(SUMMARY.pack(HEADER))
    assert [SegmentSummary.unpack(page, HEADER) for page in pages] == [None] * L.PAGE


@pytest.mark.parametrize(
    "other", [{"uuid": bytes(16)}, {"base_seq": 1}, {"number": 8}, {"generation": 1}]
)
def test_a_footer_belongs_to_one_segment(other: dict[str, object]) -> None:
    """The footer of another segment, left in a reused file, is no footer."""
    page = SUMMARY.pack(replace(HEADER, **other))  # type: ignore[arg-type]
    assert SegmentSummary.unpack(page, HEADER) is None


def test_short_pages() -> None:
    """A page that the file ends in is refused like any other damage."""
    for length in (0, 7, 8, 100, 4095):
        with pytest.raises(penstock.Corrupt):
            Header.unpack(HEADER.pack()[:length], "x")
        assert SegmentSummary.unpack(SUMMARY.pack(HEADER)[:length], HEADER) is None
    for length in (0, 7, 8, 511):
        assert Slot.unpack(SLOT.pack()[:length], HEADER) is None


def test_other_versions_are_told_apart() -> None:
    """A newer version and another byte order are UnsupportedVersion, not mere damage."""
    for at in (L.HEADER_VERSION, L.HEADER_BYTE_ORDER):
        page = bytearray(HEADER.pack())
        page[at] += 1
        with pytest.raises(penstock.UnsupportedVersion):
            Header.unpack(bytes(page), "x")
