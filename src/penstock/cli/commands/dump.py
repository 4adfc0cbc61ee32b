"""``penstock dump``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any

from penstock import layout as L
from penstock._core import crc32c
from penstock.cli import options
from penstock.cli.out import Out
from penstock.cli.paths import path_of
from penstock.cli.registry import Example
from penstock.cli.when import iso, whole
from penstock.errors import Corrupt, NoSuchLog, NotFound, Usage, from_os
from penstock.ring.named import SIDECAR
from penstock.segments import segment

ABOUT = """\
Show the bytes of a log's files, explained as in docs/format.md. It opens no log, so it works on
damaged ones, and it changes nothing. WHAT is one of

  files        the files of the log, and what each is (the default)
  header       the header page of a segment or ring
  checkpoints  both checkpoints
  control      the shared memory of the processes that have it open
  index        the entries of the index
  frames       each frame: where, what, how long, whether its checksum is right
  footer       the footer of a sealed segment"""
EXAMPLES = (
    Example("penstock dump orders", "the files"),
    Example("penstock dump orders frames --from 100 -n 3 --hex", "three frames, byte by byte"),
    Example("penstock dump orders footer --file 00000000000000000001.seg", "of one segment"),
)
VIEWS = ("files", "header", "checkpoints", "control", "index", "frames", "footer")
KINDS = {value: name for value, name, _ in L.KINDS.rows}
HEX_BYTES = 16
BODY_BYTES = 4096  # of a body that --hex shows


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_log(parser)
    parser.add_argument("what", metavar="WHAT", nargs="?", choices=VIEWS, default="files")
    parser.add_argument(
        "--file", metavar="NAME", help="the segment; default: the newest, or all for frames"
    )
    parser.add_argument(
        "--from", dest="first", metavar="SEQ", help="frames and index: from that seq on"
    )
    parser.add_argument("-n", "--limit", metavar="N", help="frames and index: at most that many")
    parser.add_argument("--hex", action="store_true", help="the bytes as well")


def run(given: argparse.Namespace, out: Out) -> None:
    path = path_of(given.log)
    if not os.path.exists(path):
        raise NoSuchLog(f"{path}: there is no log here", filename=path)
    is_ring = not os.path.isdir(path)
    first = 0 if given.first is None else whole(given.first, "--from")
    limit = None if given.limit is None else whole(given.limit, "-n")
    if given.what not in ("frames", "index") and (given.first or given.limit):
        raise Usage("--from and -n are for frames and index")
    if given.what == "files":
        if given.hex or given.file:
            raise Usage("--hex and --file are for another WHAT")
        out.table(("name", "what", "bytes", "disk_bytes", "base_seq"), _files(path, is_ring))
        return
    if given.what == "control":
        _record(L.CONTROL, _control(path, is_ring), given, out)
        return
    for name in _segments(path, is_ring, given):
        with _Raw(name) as raw:
            _dump(raw, is_ring, given, out, first, limit)


class _Raw:
    """One file, read without trust: what is not there counts as nothing."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise from_os(error, "reading", path) from error
        self.nbytes = os.fstat(self._fd).st_size

    def __enter__(self) -> _Raw:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, at: int, nbytes: int) -> bytes:
        """Bytes of the file; fewer at its end."""
        try:
            return os.pread(self._fd, max(nbytes, 0), at)
        except (OSError, OverflowError) as error:
            raise Corrupt(f"{self.path}: cannot be read at {at}: {error}", path=self.path) from None

    def record(self, record: L.RecordType, at: int) -> bytes:
        """The bytes of a record, or the error that they are not there."""
        data = self.read(at, record.size)
        if len(data) < record.size:
            raise Corrupt(
                f"{self.path}: ends at {self.nbytes}, before the record at {at}",
                path=self.path,
                offset=at,
            )
        return data


def _files(path: str, is_ring: bool) -> list[dict[str, Any]]:
    """Every file of a log, and what it is by its name."""
    names = [path] if is_ring else []
    for base, _, below in os.walk(path if not is_ring else path + SIDECAR):
        names += [os.path.join(base, name) for name in below]
    rows = []
    for name in sorted(names):
        try:
            status = os.lstat(name)
        except FileNotFoundError:
            continue  # it was just deleted
        short = os.path.relpath(name, os.path.dirname(path) if is_ring else path)
        base = os.path.basename(name)
        row: dict[str, Any] = {"name": short, "what": _what(short, base, is_ring and name == path)}
        row |= {"bytes": status.st_size, "disk_bytes": status.st_blocks * 512}
        if segment.is_name(base):
            row["base_seq"] = int(base.split(".")[0])
        rows.append(row)
    return rows


def _what(short: str, base: str, is_ring: bool) -> str:
    if is_ring:
        return "ring"
    if short.startswith("consumers" + os.sep) or f"{os.sep}consumers{os.sep}" in short:
        return "consumer"
    if short.startswith("groups" + os.sep) or f"{os.sep}groups{os.sep}" in short:
        return "group"
    if segment.is_name(base):
        return "segment"
    known = {"control": "control", "writers.lock": "lock"}
    return known.get(base, "left over" if base.endswith((".tmp", ".bin")) else "other")


def _segments(path: str, is_ring: bool, given: argparse.Namespace) -> list[str]:
    """The files to show."""
    if is_ring:
        if given.file:
            raise Usage("--file is for a log of segments; a ring is one file")
        return [path]
    names = sorted(name for name in os.listdir(path) if segment.is_name(name))
    if given.file:
        if given.file not in names:
            raise NotFound(
                f"{path}: has no segment {given.file!r}; penstock dump {path} lists them"
            )
        return [os.path.join(path, given.file)]
    if not names:
        raise NoSuchLog(f"{path}: there is no log here", filename=path)
    if given.what == "frames":
        first = 0 if given.first is None else int(given.first)
        kept = [
            n
            for n, after in zip(names, [*names[1:], ""], strict=True)
            if not after or int(after.split(".")[0]) > first
        ]
        return [os.path.join(path, name) for name in kept]
    return [os.path.join(path, names[-1])]


def _control(path: str, is_ring: bool) -> bytes:
    name = path if is_ring else os.path.join(path, "control")
    with _Raw(name) as raw:
        return raw.record(L.CONTROL, L.RING_CONTROL_OFFSET if is_ring else 0)


def _dump(
    raw: _Raw, is_ring: bool, given: argparse.Namespace, out: Out, first: int, limit: int | None
) -> None:
    """Show one part of a segment or ring."""
    if given.what == "header":
        _record(L.HEADER, raw.record(L.HEADER, 0), given, out)
    elif given.what == "checkpoints":
        for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET):
            _record(L.SLOT, raw.record(L.SLOT, at), given, out, at)
    elif given.what == "footer":
        header = raw.record(L.HEADER, 0)
        at = L.HEADER.get(header, "segment_bytes") - L.PAGE
        data = raw.read(at, L.FOOTER.size) if not is_ring else b""
        if not data.startswith(L.FOOTER_MAGIC):
            raise NotFound(f"{raw.path}: has no footer; only a sealed segment has one")
        _record(L.FOOTER, data.ljust(L.FOOTER.size, b"\0"), given, out, at)
    elif given.what == "index":
        out.table(*_index(raw, is_ring, first, limit))
    else:
        _frames(raw, is_ring, given, out, first, limit)


def _record(
    record: L.RecordType, data: bytes, given: argparse.Namespace, out: Out, base: int = 0
) -> None:
    """The fields of a record: name, value, meaning."""
    values = record.unpack(data)
    ends = [*(field.at for field in record.fields.values()), record.size][1:]
    rows = []
    for (name, field), end in zip(record.fields.items(), ends, strict=True):
        nbytes = field.nbytes or end - field.at
        value: Any = values[name]
        if isinstance(value, bytes):
            value = _text(value.rstrip(b"\0"))
        elif name == "crc" and record is not L.CONTROL:
            right = value == crc32c(data[: field.at])
            value = f"{value:#010x} ({'right' if right else 'WRONG'})"
        elif name.endswith("_ns") and 0 < value < 1 << 63:
            value = iso(value)
        row = {"offset": base + field.at, "field": name, "value": str(value)}
        if given.hex:
            row["bytes"] = data[field.at : field.at + min(nbytes, 64)].hex()
        row["meaning"] = field.note
        rows.append(row)
    out.table(("offset", "field", *(["bytes"] if given.hex else []), "value", "meaning"), rows)


def _text(data: bytes) -> str:
    if data.isascii() and all(32 <= byte < 127 for byte in data):
        return data.decode()
    return data[:32].hex() + ("…" if len(data) > 32 else "")


def _index(
    raw: _Raw, is_ring: bool, first: int, limit: int | None
) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """The entries that are used."""
    header = raw.record(L.HEADER, 0)
    at = L.HEADER.get(header, "index_offset")
    capacity = L.HEADER.get(header, "index_capacity")
    record = L.RING_SLOT if is_ring else L.INDEX_ENTRY
    names = tuple(record.fields)
    data = raw.read(at, min(capacity * record.size, raw.nbytes))
    rows: list[dict[str, Any]] = []
    for slot in range(len(data) // record.size):
        entry = record.unpack(data, slot * record.size)
        used = entry["position"] if is_ring else entry["offset"]
        if used and entry.get("seq", first) >= first and (limit is None or len(rows) < limit):
            rows.append({"slot": slot, **entry})
    return ("slot", *names), rows


def _places(raw: _Raw, is_ring: bool) -> tuple[int, int, int, int]:
    """Where frames begin, the first and the last place, and how many bytes a lap has."""
    header = raw.record(L.HEADER, 0)
    begin = L.HEADER.get(header, "data_offset")
    if not is_ring:
        if not L.PAGE <= begin < max(raw.nbytes, L.PAGE + 1):
            begin = L.INDEX_OFFSET
        return begin, 0, max(raw.nbytes - begin, 0), 0
    lap = L.HEADER.get(header, "segment_bytes") - begin
    control = raw.record(L.CONTROL, L.RING_CONTROL_OFFSET)
    tail, head = _ring_ends(raw, control)
    if lap <= 0 or not 0 <= tail <= head or head - tail > lap:
        raise Corrupt(f"{raw.path}: its ends cannot be right; run penstock verify", path=raw.path)
    return begin, tail, head, lap


def _ring_ends(raw: _Raw, control: bytes) -> tuple[int, int]:
    """Tail and head: of control, or of the newest checkpoint if nobody has the ring open."""
    if "tail" in L.CONTROL.fields and L.CONTROL.get(control, "head"):
        return L.CONTROL.get(control, "tail"), L.CONTROL.get(control, "head")
    slots = [raw.record(L.SLOT, at) for at in (L.SLOT_A_OFFSET, L.SLOT_B_OFFSET)]
    newest = max(slots, key=lambda slot: L.SLOT.get(slot, "generation"))
    return L.SLOT.get(newest, "index_count"), L.SLOT.get(newest, "offset")


def _walk(raw: _Raw, is_ring: bool) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Offset, bytes of the body and header of each frame, up to what is none."""
    begin, at, end, lap = _places(raw, is_ring)
    while at + L.FRAME.size <= end:
        offset = begin + (at % lap if lap else at)
        data = raw.read(offset, L.FRAME.size)
        if len(data) < L.FRAME.size:
            return
        frame = L.FRAME.unpack(data)
        nbytes = frame["commit"] - 1
        total = -(-(L.FRAME.size + nbytes) // L.ALIGN) * L.ALIGN
        if frame["commit"] == 0 or at + total > end:
            if any(data):
                frame["damage"] = "not a frame: its length is wrong"
                yield offset, b"", frame
            return
        body = raw.read(offset + L.FRAME.size, nbytes)
        if crc32c(data[L.FRAME_SEQ :] + body) != frame["crc"]:
            frame["damage"] = "WRONG checksum"
        yield offset, body, frame
        if "damage" in frame and (frame["kind"] > L.KIND_MAX or frame["kind"] == 0):
            return  # nothing says that the next frame is where this one ends
        if frame["kind"] == L.KIND_WRAP and lap:
            at += lap - at % lap
        else:
            at += total


def _frames(
    raw: _Raw, is_ring: bool, given: argparse.Namespace, out: Out, first: int, limit: int | None
) -> None:
    """One row for each frame, or its bytes with what they are."""
    left = limit
    for offset, body, frame in _walk(raw, is_ring):
        if frame["seq"] < first and "damage" not in frame:
            continue
        if left == 0:
            return
        left = None if left is None else left - 1
        parts = _parts(frame, body)
        row = {
            "file": os.path.basename(raw.path),
            "offset": offset,
            "kind": KINDS.get(frame["kind"], frame["kind"]),
            "seq": frame["seq"],
            "append_time": iso(frame["append_ns"]) if frame["append_ns"] < 1 << 63 else None,
            "batch_left": frame["batch_left"],
            "back": frame["back"],
            "body_bytes": len(body),
            "crc": frame.get("damage", "right"),
        }
        if out.json:
            named = {name: data.hex() for name, data in parts} if given.hex else {}
            out.value({**row, **({"parts": named} if given.hex else {})})
            continue
        out.line(
            f"{offset:>10}  {row['kind']:<9} seq {row['seq']}  {row['append_time']}  "
            f"{len(body)} bytes  batch_left {row['batch_left']}  back {row['back']}  crc "
            + out.paint(row["crc"], "green" if row["crc"] == "right" else "red")
        )
        if given.hex:
            _annotated(raw, offset, parts, out)


def _parts(frame: dict[str, Any], body: bytes) -> list[tuple[str, bytes]]:
    """The parts of a body, in their order."""
    sizes = []
    if frame["flags"] & L.FLAG_EVENT_TIME:
        sizes.append(("event_time", L.EVENT_TIME_BYTES))
    sizes += [("topic", frame["topic_len"]), ("headers", frame["headers_len"])]
    sizes.append(("key", 0 if frame["key_len"] == L.NO_KEY else frame["key_len"]))
    found, at = [], 0
    for name, nbytes in sizes:
        if nbytes:
            found.append((name, body[at : at + nbytes]))
        at += nbytes
    if at < len(body):
        found.append(("value", body[at:]))
    return found


def _annotated(raw: _Raw, offset: int, parts: list[tuple[str, bytes]], out: Out) -> None:
    """The bytes of a frame, field by field, with what they are."""
    data = raw.read(offset, L.FRAME.size)
    fields = list(L.FRAME.fields.items())
    shown = [(name, data[field.at : field.at + field.nbytes]) for name, field in fields]
    at = offset
    for name, part in [*shown, *parts]:
        for start in range(0, min(len(part), BODY_BYTES), HEX_BYTES):
            row = part[start : start + HEX_BYTES]
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            label = name if start == 0 else ""
            out.line(f"  {at + start:>10}  {row.hex(' '):<47}  {text:<16}  {label}".rstrip())
        if len(part) > BODY_BYTES:
            out.line(f"  {'':>10}  … {len(part) - BODY_BYTES} more bytes")
        at += len(part)
