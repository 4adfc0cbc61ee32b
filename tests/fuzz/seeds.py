"""Small logs that fuzzing starts from, kept as archives beside this file.

    .venv/bin/python -m tests.fuzz.seeds

makes those that are not there yet. One that is there is never made again: every input of the corpus
is a list of changes to one of them, and means something else over another.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import penstock
from penstock import Entry

HERE = Path(__file__).parent / "seeds"
GOLDEN = Path(__file__).parent.parent / "golden"
SIZE = "64KiB"

Files = dict[str, bytes]


def short(path: Path) -> None:
    """One segment, a few events of every form."""
    with penstock.open(path, segment_size=SIZE) as log:
        log.append(b"first", time=1000)
        log.append(b"all parts", key=b"k", topic="a", headers=[("h", b"1"), ("n", None)], time=2000)
        log.append(None, key=b"k", topic="b")
        log.extend([b"batch", Entry(b"of", key=b""), Entry(b"three", topic="a")])


def chain(path: Path) -> None:
    """Sealed segments and an active one, with producers, settings and long values."""
    with penstock.open(path, segment_size=SIZE) as log:
        for i in range(12):
            log.append(b"%02d" % i * (i * 60), topic=f"t{i % 3}", time=10_000 - i * 500)
        log.append(b"once", producer=("p", 1))
        log.extend([b"twice", b"thrice"], producer=("p", 2))
        log.steward.roll()
        log.extend([b"%d" % i for i in range(20)])
        log.configure(segment_size="96KiB")
        log.steward.roll()
        log.append(b"z" * 9000, key=b"long")
        log.append(b"again", producer=("q", 7), durable=True)


def crashed(path: Path) -> None:
    """What a writer leaves that dies: a roll that was not sealed, events after the checkpoint."""
    live = path.with_name("live")
    with penstock.open(live, segment_size=SIZE) as log:
        log.append(b"before", durable=True)
        for i in range(8):
            log.append(bytes(700), key=b"%d" % i)
        log.extend([b"x"] * 5)
        shutil.copytree(live, path)


def rolled(path: Path) -> None:
    """A first segment that has rolled and is not sealed, and an empty second one."""
    whole = path.with_name("whole")
    with penstock.open(whole, segment_size=SIZE) as log:
        log.extend([b"%d" % i for i in range(9)], topic="t")
        log.steward.roll()
    shutil.copytree(whole, path)
    first = path / f"{1:020d}.seg"
    with first.open("r+b") as file:
        file.seek(-4096, io.SEEK_END)
        file.write(bytes(4096))


def mended(path: Path) -> None:
    """A segment of a higher generation, with a hole in its seqs, as repair makes it."""
    broken = path.with_name("broken")
    with penstock.open(broken, segment_size=SIZE) as log:
        for i in range(10):
            log.append(b"event %d" % i, key=b"%d" % i)
        log.steward.roll()
        log.append(b"later")
    first = broken / f"{1:020d}.seg"
    data = first.read_bytes()
    first.write_bytes(data.replace(b"event 4", b"EVENT 4"))
    penstock.repair(broken, to=path)


MAKERS: list[Callable[[Path], None]] = [short, chain, crashed, rolled, mended]


def pack(path: Path, archive: Path) -> None:
    """Put the files of a log into an archive."""
    with tarfile.open(archive, "w:xz") as out:
        for name in sorted(path.iterdir()):
            data = name.read_bytes()
            member = tarfile.TarInfo(name.name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))


def unpack(archive: Path) -> Files:
    """The files in an archive."""
    found = {}
    with tarfile.open(archive) as source:
        for member in source.getmembers():
            file = source.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    return found


@cache
def seeds() -> tuple[Files, ...]:
    """All seed logs, in the order in which inputs number them."""
    archives = [HERE / f"{maker.__name__}.tar.xz" for maker in MAKERS]
    golden = [GOLDEN / f"{version}.tar.xz" for version in ("v1", "v4")]
    return tuple(unpack(a) for a in [*archives, *golden])


def main() -> None:
    for maker in MAKERS:
        archive = HERE / f"{maker.__name__}.tar.xz"
        if not archive.exists():
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch, "log")
                maker(path)
                pack(path, archive)


if __name__ == "__main__":
    main()
