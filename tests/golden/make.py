"""Makes the golden logs of the current format version: run it once for each released version.

    .venv/bin/python -m tests.golden.make all       v<N>: every kind of frame, values of bytes
    .venv/bin/python -m tests.golden.make data      v<N>-data: a log of JSON, other codecs, tags
    .venv/bin/python -m tests.golden.make compacted v<N>-compacted: compacted and merged segments
    .venv/bin/python -m tests.golden.make ring      ring-v<N>: a ring that has gone round
    .venv/bin/python -m tests.golden.make archive   archive-v<N>: segments in an archive
    .venv/bin/python -m tests.golden.make consumers  consumers-v<N>: consumers of the golden log

It writes ``v<N>.tar.xz`` (the files of the log, byte for byte) and ``v<N>.json`` (their hashes and
what they read to) beside itself. A golden log that was released is never made again: one that is
there is left alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import penstock
from penstock import Entry
from penstock import layout as L
from penstock.times import NS_MAX, Ns

HERE = Path(__file__).parent
KINDS = ("all", "data", "compacted", "ring")


def fill(path: Path) -> None:
    """Several segments, sealed and active, with every kind of frame and part."""
    with penstock.open(path, segment_size="64KiB", file_mode=0o640) as log:
        log.append(b"first")
        log.append(b"", key=b"", topic="empty key and value")
        log.append(
            b"all parts", key=b"k", topic="tøpic", headers=[("a", b"1"), ("a", None)], time=1
        )
        log.append(None, key=b"k", topic="tøpic")
        log.extend(
            [b"batch", Entry(b"of", key=b"2"), Entry(b"three", headers={"": b""}, time=NS_MAX)]
        )
        for i in range(60):
            log.append(bytes([i]) * (i * 25), topic=f"t{i % 5}", time=Ns((i * 37 % 60) * 10**9))
        log.append(b"x" * 40_000, key=b"long")
        log.configure(segment_size="96KiB")
        log.steward.roll()
        log.extend([b"%d" % i for i in range(100)], topic="second")
        log.steward.roll()
        log.append(b"active")
        log.configure(file_mode=0o600)
        log.append(b"last", time="2026-11-16T00:00:00Z")
        log.append(b"of a producer", producer=("sensor-7", 1))
        log.extend([b"more", b"of it"], producer=("sensor-7", 5), durable=True)
        log.append(b"of another", producer=("sensor-8", 2**64 - 1))
        log.steward.roll()
        log.append(b"behind a table of producers")
        log.extend([b"and", b"again"], producer=("sensor-7", 6))


def fill_data(path: Path) -> None:
    """A log of JSON in several segments, with events of other codecs, and tags."""
    with penstock.open(path, segment_size="64KiB", codec="json") as log:
        log.append({"total": 12}, tags=["ok", "tøg"])
        log.append(b" [1, 2] ", key=b"k", headers={"h": b"1"}, tags=["ok"])
        log.append(None, key=b"k")
        log.append({"a": [1, None]}, codec="msgpack", tags=["ok"])
        log.append({f"k{i}": [i, {"x": "é"}] for i in range(20)}, codec="lite3")
        log.append("text")
        log.steward.roll()
        log.extend([1.5, Entry(True, tags=["own"])], tags=["all"])
        log.configure(segment_size="96KiB")
        log.steward.roll()
        log.append([{"last": 1}])


def fill_compacted(path: Path) -> None:
    """Segments that were compacted and merged, and one that an erasure rewrote."""
    with penstock.open(path, segment_size="64KiB") as log:
        for i in range(300):
            log.append(b"%d" % i * (i % 90), key=b"k%d" % (i % 40), topic=f"t{i % 3}")
            if i % 75 == 74:
                log.steward.roll()
        log.append(b"of a producer", producer=("sensor-7", 1), key=b"k1")
        log.configure(segment_size="128KiB")
        log.append(b"l" * 40_000, key=b"long")
        log.steward.roll()
        log.steward.compact()
        log.extend([b"a", b"b"], key=b"gone")
        log.append(None, key=b"gone")
        log.append(b"x" * 40_000)
        log.steward.roll()
        log.steward.compact(grace=0)
        log.append(b"r" * 90_000, key=b"rest")
        log.append(b"erased", key=b"k7")
        log.steward.roll()
        log.steward.erase(b"k7")
        log.append(b"active", key=b"k1")


def fill_ring(path: Path) -> None:
    """A ring that has gone round several times, with every kind of frame that a ring has."""
    with penstock.create(path, ring=40_001, file_mode=0o640, index=100) as ring:
        ring.configure(when_full="error")
        ring.configure(when_full="drop")
        ring.append(b"of a producer", producer=("sensor-7", 1))
        for i in range(400):
            ring.append(
                bytes([i % 256]) * (i * 7 % 900), topic=f"t{i % 5}", time=Ns((i * 37) * 10**9)
            )
        ring.extend([b"more", b"of it"], producer=("sensor-8", 5), durable=True)
        ring.append(b"", key=b"", topic="empty key and value")
        ring.append(
            b"all parts", key=b"k", topic="tøpic", headers=[("a", b"1"), ("a", None)], time=1
        )
        ring.append(None, key=b"k", topic="tøpic")
        ring.append(b"last", tags=["ok"])


def data_of(log: penstock.Log) -> list[Any]:
    """The data of every event, as JSON can hold it."""
    found = [event.data for event in log]
    return [d.to_python() if hasattr(d, "to_python") else d for d in found]


def contents(log: penstock.Log) -> list[dict[str, Any]]:
    """Every event, as JSON can hold it."""
    return [
        {
            "seq": e.seq,
            "append_ns": e.append_ns,
            "time_ns": e.time_ns,
            "topic": e.topic,
            "key": None if e.key is None else e.key.hex(),
            "value": None if e.value is None else short(e.value),
            "headers": [[n, None if v is None else v.hex()] for n, v in e.headers],
            "batch_left": e.batch_left,
        }
        for e in log
    ]


def short(value: bytes) -> str:
    """The value in hex, or its hash if it is long."""
    return value.hex() if len(value) <= 32 else f"sha256:{digest(value)}"


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make(what: str, target: Path) -> str:
    """Make the golden log of that kind in a directory; returns its name."""
    of_data, of_ring = what == "data", what == "ring"
    version = L.RING_VERSION if of_ring else L.FORMAT_VERSION
    name = (
        f"ring-v{version}" if of_ring else f"v{version}" if what == "all" else f"v{version}-{what}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "log.ring" if of_ring else "log")
        fills = {"ring": fill_ring, "data": fill_data, "compacted": fill_compacted, "all": fill}
        fills[what](path)
        names = [path] if of_ring else sorted(path.glob("*.seg"))
        with penstock.open(path, mode="r") as log:
            events = contents(log)
            segment_size = log.settings.segment_size
            topics = sorted(log.topics())
            data = data_of(log) if of_data else []
        record: dict[str, Any] = {
            "format_version": version,
            "files": {p.name: digest(p.read_bytes()) for p in names},
            "uuid": names[0].read_bytes()[L.HEADER_UUID : L.HEADER_UUID + 16].hex(),
            "segment_size": segment_size,
            "topics": topics,
            "events": events,
        }
        if of_data:
            record |= {"data": data, "codec": "json"}
        _pack(names, target / f"{name}.tar.xz")
    _record(record, target / f"{name}.json")
    return name


def make_archive(target: Path) -> str:
    """Make the golden archive of this version: segments with everything, one of them compacted."""
    name = f"archive-v{L.ARCHIVE_VERSION}"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "log")
        fill(path)
        with penstock.open(path) as log:
            log.steward.roll()
            log.steward.archive(keep_local=3)
            log.steward.compact()
            log.steward.archive()
        files = sorted((path / "archive").iterdir())
        with penstock.open(path / "archive", mode="r") as log:
            record: dict[str, Any] = {"files": {p.name: digest(p.read_bytes()) for p in files}}
            record["events"] = contents(log)
        _pack(files, target / f"{name}.tar.xz")
    _record(record, target / f"{name}.json")
    return name


def _pack(files: list[Path], target: Path) -> None:
    with tarfile.open(target, "x:xz") as archive:
        for file in files:
            raw = file.read_bytes()
            member = tarfile.TarInfo(file.name)
            member.size = len(raw)
            member.mode = 0o640
            archive.addfile(member, io.BytesIO(raw))


def _record(record: dict[str, Any], target: Path) -> None:
    text = json.dumps(record, indent=None, separators=(",", ":"), sort_keys=True)
    target.write_text(text.replace("},{", "},\n{") + "\n")


def fill_consumers(log: penstock.Log) -> None:
    """Consumers with every kind of filter, some of which have gone on."""
    with log.consumer("all") as consumer:
        consumer.poll(5)
        consumer.commit()
        consumer.poll(5)
        consumer.commit(8, durable=True)
    with log.consumer("some", topic="t3", key=b"no such key", tags=["ok", "tøg"]) as consumer:
        consumer.commit()
    log.consumer("of no topic", topic="", start="end").close()
    log.consumer("of several topics", topic=["tøpic", "second", ""], start=20).close()


def known(log: penstock.Log) -> list[dict[str, Any]]:
    """What is known of each consumer, as JSON can hold it."""
    return [
        {
            "name": found.name,
            "committed": found.committed,
            "position": found.position,
            "topic": list(found.topic) if isinstance(found.topic, tuple) else found.topic,
            "key": None if found.key is None else found.key.hex(),
            "tags": None if found.tags is None else list(found.tags),
            "created": found.created.isoformat(),
            "events": found.lag.events,
        }
        for found in log.consumers()
    ]


def make_consumers(target: Path) -> str:
    """Make consumers of the golden log of this version, and keep their files."""
    name, version = f"consumers-v{L.CONSUMER_VERSION}", f"v{L.FORMAT_VERSION}"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "log")
        with tarfile.open(target / f"{version}.tar.xz") as archive:
            archive.extractall(path, filter="data")
        with penstock.open(path) as log:
            fill_consumers(log)
            found = known(log)
        files = {file.name: file.read_bytes() for file in sorted((path / "consumers").iterdir())}
    with tarfile.open(target / f"{name}.tar.xz", "x:xz") as archive:
        for file, raw in files.items():
            member = tarfile.TarInfo(file)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    record = {
        "log": version,
        "files": {file: digest(raw) for file, raw in files.items()},
        "consumers": found,
    }
    text = json.dumps(record, separators=(",", ":"), sort_keys=True)
    (target / f"{name}.json").write_text(text.replace("},{", "},\n{") + "\n")
    return name


def main() -> None:
    others = {"consumers": make_consumers, "archive": make_archive}
    what = sys.argv[1] if len(sys.argv) > 1 else "all"
    if what not in (*KINDS, *others) or len(sys.argv) > 2:
        kinds = ", ".join((*KINDS, *others))
        sys.exit(f"what to make must be one of {kinds}, got {sys.argv[1:]}")
    print(others[what](HERE) if what in others else make(what, HERE))


if __name__ == "__main__":
    main()
