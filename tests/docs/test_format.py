"""layout.py, docs/format.md, the compiled module and the files on disk say the same of the format.

The records in layout.py are the one place where it is declared. What is made from them is compared
with them here; and they with sizes that are written down in this file, so that a record does not
change by accident.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import penstock
from penstock import _core, headers, tunables
from penstock import layout as L
from penstock.segments import segment
from tests.unit import oracle
from tools import format_tables

ROOT = Path(__file__).parents[2]
FORMAT = ROOT / "docs" / "format.md"
SOURCES = sorted((ROOT / "src" / "penstock").rglob("*.py"))
RECORDS = {n: v for n, v in vars(L).items() if isinstance(v, L.RecordType)}
NUMBERS = {n: v for n, v in vars(L).items() if isinstance(v, L.Numbers)}
SIZES = {  # of each record, and where its checksum stands
    "FRAME": (40, 4),
    "EVENT_HEADER": (4, None),
    "PRODUCER": (16, None),
    "HEADER": (4096, 4092),
    "PRODUCER_ENTRY": (26, None),
    "SLOT": (512, 508),
    "COPY": (3584, 3580),
    "INDEX_ENTRY": (40, None),
    "ARCHIVED": (80, 76),
    "SKIPPABLE": (8, None),
    "SEEK_ENTRY": (12, None),
    "SEEK_END": (9, None),
    "FOOTER": (4096, 4092),
    "TOPIC_ENTRY": (2, None),
    "FILTER": (4096, 4092),
    "RING_SLOT": (8, None),
    "CONTROL": (4096, 72),
    "PLACE": (92, 88),
    "PROFILE": (16, None),
    "PROFILE_TAG": (2, None),
    "WORKER": (24, None),
    "GROUP_NOTE": (20, 16),
}
# Names with a record's prefix that are sizes, places of whole pages, bits in a field, or the same
# field by another name.
NOT_FIELDS = re.compile(r"_(BYTES|MAX|SHARE|VERSION)$|_FLAG_|^SLOT_TAIL$|^(SLOT|COPY)_[AB]_OFFSET$")


def constants(module: object) -> Mapping[str, int | bytes]:
    """The numbers and names of a module."""
    return {n: v for n, v in vars(module).items() if n.isupper() and type(v) in (int, bytes)}


CONSTANTS = constants(L)
EVERYTHING = {**CONSTANTS, **constants(tunables)}


def test_the_tables_of_the_page_are_made_from_the_records() -> None:
    """`python tools/format_tables.py` would not change docs/format.md."""
    text = FORMAT.read_text()
    assert format_tables.rewritten(text) == text, "run python tools/format_tables.py"


def test_every_record_is_on_the_page() -> None:
    """No record, kind, flag or limit is left out."""
    marked = [match[2] for match in format_tables.MARKED.finditer(FORMAT.read_text())]
    assert sorted(marked) == sorted([*RECORDS, *NUMBERS])


def test_sizes_and_places_of_checksums() -> None:
    """Each record is as long as it was, and its checksum stands where it stood."""
    found = {}
    for name, record in RECORDS.items():
        crc = record.fields.get("crc")
        found[name] = (record.size, crc.at if crc is not None else None)
    assert found == SIZES


@pytest.mark.parametrize("name", RECORDS)
def test_offsets_have_the_names_of_the_fields(name: str) -> None:
    """FRAME_SEQ is where the record FRAME has seq; a magic stands at 0."""
    record = RECORDS[name]
    for field, place in record.fields.items():
        constant = CONSTANTS[record.prefix + field.upper()]
        assert place.at == (0 if isinstance(constant, bytes) else constant), field
    longer = tuple(r.prefix for r in RECORDS.values() if len(r.prefix) > len(record.prefix))
    named = {n for n in CONSTANTS if n.startswith(record.prefix) and not n.startswith(longer)}
    fields = {record.prefix + field.upper() for field in record.fields}
    assert {n for n in named - fields if not NOT_FIELDS.search(n)} <= {"FRAME_HEADER_BYTES"}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_the_names_of_the_rows(name: str) -> None:
    """Each documented kind, flag and limit is the constant of that name, and none is missing."""
    numbers = NUMBERS[name]
    rows = {numbers.prefix + row.upper(): value for value, row, _ in numbers.rows}
    assert rows == {n: CONSTANTS[n] for n in rows}
    if numbers.prefix:
        assert {n for n in CONSTANTS if n.startswith(numbers.prefix)} - {"KIND_MAX"} == set(rows)


@pytest.mark.parametrize("name", RECORDS)
def test_fields_do_not_overlap(name: str) -> None:
    """Fields stand in order, and each ends before the next begins. Numbers are aligned to their
    size, but for those in lists whose entries have any length."""
    record = RECORDS[name]
    for field, following in itertools.pairwise([*record.fields.values(), None]):
        assert field is not None
        assert field.at + field.nbytes <= (record.size if following is None else following.at)
        if field.type.startswith("u") and name != "PRODUCER_ENTRY":
            assert field.at % field.nbytes == 0, field


@pytest.mark.parametrize("name", RECORDS)
def test_packing_puts_each_field_in_its_place(name: str) -> None:
    """A packed record has its values where the table says, little-endian, and zeros elsewhere."""
    record = RECORDS[name]
    wanted = bytearray(record.size)
    values: dict[str, int | bytes] = {}
    for number, (field, place) in enumerate(record.fields.items(), 1):
        raw = bytes([number]) * (place.nbytes or 3)
        wanted[place.at : place.at + len(raw)] = raw
        values[field] = int.from_bytes(raw, "little") if place.type.startswith("u") else raw
    assert record.pack(**values) == wanted
    found = record.unpack(bytes(wanted))
    for field, value in values.items():
        got = found[field]
        assert got == value if isinstance(value, int) else got.rstrip(b"\0") == value
    numbers = {f.at: values[n] for n, f in record.fields.items() if isinstance(values[n], int)}
    assert record.numbers(bytes(wanted)) == numbers
    assert {n: record.get(bytes(wanted), n) for n in values if isinstance(values[n], int)} == {
        n: value for n, value in values.items() if isinstance(value, int)
    }
    with pytest.raises(TypeError, match=r"no such fields.*surplus"):
        record.pack(surplus=1)


@pytest.mark.parametrize("name", [n for n, (_, crc) in SIZES.items() if crc and n != "FRAME"])
def test_sealing_takes_the_checksum_of_what_stands_before_it(name: str) -> None:
    """The crc of a sealed record is that of all bytes before it; one that changed is not good."""
    record, (_, crc) = RECORDS[name], SIZES[name]
    page = bytearray(headers.seal(record, **{next(iter(record.fields)): b"A name"}))
    assert record.get(page, "crc") == oracle.crc32c(bytes(page[:crc]))
    assert headers.is_good(record, page)
    page[1] ^= 1
    assert not headers.is_good(record, page)


def test_the_compiled_module_agrees() -> None:
    """The compiled module was built from this very layout.py and tunables.py."""
    assert _core.layout() == EVERYTHING


def test_the_generated_files_agree() -> None:
    """layout.h defines each constant, and layout.pxi tells Cython of each, and of nothing else."""
    core = ROOT / "src" / "penstock" / "core"
    literals = {}
    for name, value in EVERYTHING.items():
        if isinstance(value, int):
            literals[name] = str(value)
        else:
            literals[name] = '"' + "".join(f"\\x{byte:02x}" for byte in value) + '"'
    header = re.findall(r"^#define PSK_(\w+) (.+?)(?:ULL)?$", (core / "layout.h").read_text(), re.M)
    assert dict(header) == literals
    named = re.findall(r"\bPSK_(\w+)", (core / "layout.pxi").read_text())
    assert sorted(named) == sorted(literals)


def test_files_are_as_the_records_say(tmp_path: Path) -> None:
    """Taken apart by the records alone, a segment and control say what was appended."""
    log = penstock.create(tmp_path / "log")
    log.append(b"value", key=b"key", topic="topic", headers={"h": b"v"}, time=77)
    control = (tmp_path / "log" / "control").read_bytes()
    raw = (tmp_path / "log" / segment.file_name(1)).read_bytes()
    at = L.HEADER.get(raw, "data_offset")
    frame = L.FRAME.unpack(raw, at)
    body = at + L.FRAME.size
    end = body + frame["commit"] - 1
    assert (frame["seq"], frame["kind"], frame["flags"]) == (1, L.KIND_DATA, L.FLAG_EVENT_TIME)
    assert (frame["key_len"], frame["topic_len"]) == (3, 5)
    assert frame["crc"] == oracle.crc32c(raw[at + L.FRAME_SEQ : end])
    assert raw[body:end] == b"\x4d\0\0\0\0\0\0\0topic\1\0\1\0hvkeyvalue"
    pair = L.EVENT_HEADER.unpack(raw, body + L.EVENT_TIME_BYTES + 5)
    assert pair == {"name_len": 1, "value_len": 1}

    words = L.CONTROL.numbers(control)
    assert words[L.C_VERSION] == L.CONTROL_VERSION
    assert words[L.C_CRC] == oracle.crc32c(control[: L.C_CRC])
    assert words[L.C_NEXT_SEQ] == 2
    assert words[L.C_LAST_FRAME] == at
    assert words[L.C_BLOCK_OFFSET] == at
    assert words[L.C_HEAD] == words[L.C_RESERVED] == 1 << 32 | -(-end // 8) * 8
    assert L.SegmentPosition.unpack(words[L.C_HEAD]) == (1, -(-end // 8) * 8)
    log.close()


def test_a_position_is_one_word() -> None:
    """Number and offset come back from the word, up to their limits."""
    for number, offset in ((1, 0), (0, L.SEGMENT_BYTES_MAX), (L.SEGMENT_NUMBER_MAX, 0xFFFFFFF8)):
        word = L.SegmentPosition(number, offset).pack()
        assert word == number * 2**32 + offset
        assert L.SegmentPosition.unpack(word) == (number, offset)


def test_nothing_else_packs_or_unpacks() -> None:
    """Only layout.py has the sizes of fields, and the halves of a position. Documents have a format
    of their own."""
    by_hand = re.compile(r".*(?:\bimport struct\b|\bfrom_bytes\(|, .little.\)|>> 32|<< 32).*")
    for path in SOURCES:
        if path.name not in ("layout.py", "lite3.py"):
            assert by_hand.findall(path.read_text()) == [], path


def test_the_magics_are_documented() -> None:
    """Each magic is shown as it is in the file."""
    text = FORMAT.read_text()
    for name, value in CONSTANTS.items():
        if isinstance(value, bytes):
            assert f"`{value.decode()}`" in text, name


def test_the_page_is_about_this_version() -> None:
    """The title names the version that the package writes."""
    assert FORMAT.read_text().startswith(f"# File format, version {L.FORMAT_VERSION}\n")
