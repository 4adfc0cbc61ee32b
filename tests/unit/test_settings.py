"""Settings: how they are written, checked and kept in the log itself."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import headers
from penstock import layout as L
from penstock.segments import segment
from penstock.settings import Settings, parse_size
from tests.unit import oracle


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (65536, 65536),
        ("65536", 65536),
        ("65536B", 65536),
        ("64KiB", 65536),
        ("64kib", 65536),
        (" 64 KiB ", 65536),
        ("1MiB", 1 << 20),
        ("1GiB", 1 << 30),
    ],
)
def test_sizes(text: int | str, nbytes: int) -> None:
    """A size is a number of bytes, or text with a binary unit."""
    assert parse_size(text, "x") == nbytes


@pytest.mark.parametrize(
    "text", ["", "KiB", "64KB", "64K", "1.5MiB", "-1", "64 Ki B", "0x10", "1e6"]
)
def test_sizes_that_are_none(text: str) -> None:
    """What could be read in two ways, or in none, is refused with the argument's name."""
    with pytest.raises(penstock.Usage, match="segment_size"):
        parse_size(text, "segment_size")


@pytest.mark.parametrize(
    "bad",
    [
        {"segment_size": 0},
        {"segment_size": -65536},
        {"segment_size": L.SEGMENT_BYTES_MIN - 4096},
        {"segment_size": L.SEGMENT_BYTES_MIN + 1},
        {"segment_size": L.SEGMENT_BYTES_MAX + 4096},
        {"file_mode": 0},
        {"file_mode": 0o400},
        {"file_mode": 0o700},
        {"file_mode": 0o4600},
        {"file_mode": -1},
    ],
)
def test_settings_out_of_range(path: Path, bad: dict[str, Any]) -> None:
    """A setting out of range is Usage at open and at configure, and makes or changes nothing."""
    with pytest.raises(penstock.Usage):
        penstock.open(path, **bad)
    assert not path.exists()
    with penstock.open(path) as log:
        before = log.settings
        with pytest.raises(penstock.Usage):
            log.configure(**bad)
        assert log.settings == before
    assert oracle.read_log(path)[0].frames == ()


@pytest.mark.parametrize(
    "size", [L.SEGMENT_BYTES_MIN, L.SEGMENT_BYTES_MIN + 4096, L.SEGMENT_BYTES_MAX]
)
def test_settings_at_their_bounds(path: Path, size: int) -> None:
    """The least and the greatest segment size work."""
    with penstock.open(path, segment_size=size) as log:
        log.append(b"a")
        assert log.settings.segment_size == size
    with penstock.open(path) as log:
        assert [e.value for e in log] == [b"a"]


def test_defaults(path: Path) -> None:
    """A log made without settings has those that the documentation names."""
    with penstock.open(path) as log:
        assert log.settings == Settings(segment_size=64 << 20, file_mode=0o600)


def test_settings_are_in_the_log(path: Path) -> None:
    """What open was given is in the first segment's header, and another handle reads it there."""
    with penstock.open(path, segment_size="128KiB", file_mode=0o640) as log:
        wanted = log.settings
    assert oracle.read_log(path)[0].settings == wanted.to_json()
    for mode in ("rw", "r"):
        with penstock.open(path, mode=mode) as log:
            assert log.settings == wanted == Settings(128 << 10, 0o640)


def test_open_never_changes_an_existing_log(path: Path) -> None:
    """Settings given to open make a log, or have to be what the log has."""
    penstock.open(path, segment_size="128KiB").close()
    others: list[dict[str, Any]] = [{"segment_size": 1 << 20}, {"file_mode": 0o660}]
    for other in others:
        with pytest.raises(penstock.Usage):
            penstock.open(path, **other)
    with penstock.open(path, segment_size="128KiB", file_mode=0o600) as log:
        assert log.settings == Settings(128 << 10, 0o600)
        log.append(b"a")
        log.steward.roll()
        assert log.settings == Settings(128 << 10, 0o600)
    assert {s.segment_bytes for s in oracle.read_log(path)} == {128 << 10}


def test_configure_holds_from_the_next_segment_on(path: Path) -> None:
    """A changed size is a settings frame now and a segment's size after the next roll."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"a")
        assert log.configure(segment_size="128KiB") == log.settings == Settings(128 << 10)
        log.append(b"b")
        log.steward.roll()
        log.append(b"c")
        log.steward.roll()
        assert log.settings == Settings(128 << 10)
        assert [e.seq for e in log] == [1, 2, 3]
    segments = oracle.read_log(path)
    assert [s.segment_bytes for s in segments] == [64 << 10, 128 << 10, 128 << 10]
    assert [f.kind for f in segments[0].frames] == [1, 6, 1, 5]
    assert segments[0].frames[1].value == segments[1].settings == Settings(128 << 10).to_json()


@pytest.mark.parametrize("live", [True, False])
def test_configure_holds_across_reopening(path: Path, live: bool) -> None:
    """The newest of several changes is what the next opener finds, with and without control."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.configure(segment_size="128KiB")
        log.append(b"a")
        log.configure(segment_size="256KiB", file_mode=0o660)
        log.append(b"b")
    for mode in ("r", "rw"):
        if not live:
            path.joinpath("control").unlink(missing_ok=True)
        with penstock.open(path, mode=mode) as log:
            assert log.settings == Settings(256 << 10, 0o660)


def test_configure_reaches_other_handles(path: Path) -> None:
    """Every handle sees a change at once, and rolls by it."""
    with penstock.open(path, segment_size="64KiB") as one, penstock.open(path) as two:
        one.append(b"a")
        assert two.settings.segment_size == 64 << 10
        one.configure(segment_size="128KiB")
        assert two.settings.segment_size == 128 << 10
        two.steward.roll()
        two.configure(segment_size="256KiB")
        assert one.settings.segment_size == 256 << 10
    assert [s.segment_bytes for s in oracle.read_log(path)] == [64 << 10, 128 << 10]


def test_smaller_segments_take_smaller_values(path: Path) -> None:
    """After segments were made smaller, a value that fits only the old ones is refused."""
    with penstock.open(path, segment_size="256KiB") as log:
        log.append(b"x" * 200_000)
        log.configure(segment_size="64KiB")
        with pytest.raises(penstock.TooLarge):
            log.append(b"x" * 200_000)
        assert log.append(b"small") == 2
        assert [len(e.value or b"") for e in log] == [200_000, 5]


def test_larger_segments_take_larger_values(path: Path) -> None:
    """After the segments were made larger, a value that fits the new size is taken by rolling."""
    with penstock.open(path, segment_size="64KiB") as log:
        log.append(b"small")
        log.configure(segment_size="256KiB")
        assert log.append(b"x" * 200_000) == 2
        assert [len(e.value or b"") for e in log] == [5, 200_000]


@pytest.mark.parametrize(
    "settings",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b"\xff\xfe",
        b'{"colour":"red"}',
        b'{"segment_size":1}',
        b'{"segment_size":"x"}',
        b'{"segment_size":null}',
        b'{"file_mode":1.5}',
        b'{"file_mode":511}',
        b'{"codec":5}',
        b'{"codec":""}',
        b'{"codec":"a b"}',
        b"[" * 2040,
        b'{"segment_size":' + b"9" * 2000 + b"}",
    ],
    ids=lambda s: repr(s[:20]),
)
def test_settings_that_nobody_wrote(path: Path, settings: bytes) -> None:
    """Settings on disk that make no sense are Corrupt, although the checksum is right."""
    with penstock.open(path) as log:
        log.append(b"v")
    path.joinpath("control").unlink()
    (name,) = oracle.segment_paths(path)
    page = bytearray(name.read_bytes()[: L.PAGE])
    page[L.HEADER_SETTINGS : L.HEADER_CRC] = settings.ljust(L.HEADER_CRC - L.HEADER_SETTINGS, b"\0")
    struct.pack_into("<I", page, L.HEADER_SETTINGS_LEN, len(settings))
    page = bytearray(headers.seal(L.HEADER, **L.HEADER.unpack(page)))
    with name.open("r+b") as file:
        headers.put(file.fileno(), bytes(page), str(name))
    segment.Header.unpack(bytes(page), str(name))
    with pytest.raises(penstock.Corrupt, match="settings"):
        penstock.open(path)
    with penstock.open(path, mode="r") as log:
        with pytest.raises(penstock.Corrupt, match="settings"):
            assert log.settings
        assert log[1].value == b"v"
        assert pickle.loads(pickle.dumps(log[1])) == log[1]
        with pytest.raises(penstock.Corrupt, match="settings"):
            assert log[1].data
    with pytest.raises(penstock.Corrupt, match="settings"):
        Settings.from_json(settings, str(name))


def test_settings_are_written_compactly() -> None:
    """The JSON form is stable and reads back to the same settings."""
    settings = Settings(1 << 20, 0o660)
    assert settings.to_json() == b'{"file_mode":432,"segment_size":1048576}'
    assert Settings.from_json(settings.to_json(), "x") == settings
    assert len(settings.to_json()) <= L.SETTINGS_BYTES_MAX
