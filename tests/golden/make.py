"""Makes the golden log of the current format version: run it once for each released version.

    .venv/bin/python -m tests.golden.make

It writes ``v<N>.tar.xz`` (the files of the log, byte for byte) and ``v<N>.json`` (their hashes and
what they read to) beside itself. A golden log that was released is never made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import penstock
from penstock import Entry
from penstock import layout as L

HERE = Path(__file__).parent


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
            [b"batch", Entry(b"of", key=b"2"), Entry(b"three", headers={"": b""}, time=2**64 - 1)]
        )
        for i in range(60):
            log.append(bytes([i]) * (i * 25), topic=f"t{i % 5}", time=(i * 37 % 60) * 10**9)
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


def main() -> None:
    version = L.FORMAT_VERSION
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "log")
        fill(path)
        names = sorted(path.glob("*.seg"))
        with penstock.open(path, mode="r") as log:
            events = contents(log)
            segment_size = log.settings.segment_size
            topics = sorted(log.topics())
        record = {
            "format_version": version,
            "files": {p.name: digest(p.read_bytes()) for p in names},
            "uuid": names[0].read_bytes()[L.HEADER_UUID : L.HEADER_UUID + 16].hex(),
            "segment_size": segment_size,
            "topics": topics,
            "events": events,
        }
        with tarfile.open(HERE / f"v{version}.tar.xz", "w:xz") as archive:
            for name in names:
                data = name.read_bytes()
                member = tarfile.TarInfo(name.name)
                member.size = len(data)
                member.mode = 0o640
                archive.addfile(member, io.BytesIO(data))
    text = json.dumps(record, indent=None, separators=(",", ":"), sort_keys=True)
    (HERE / f"v{version}.json").write_text(text.replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
