"""What a disk may hold after the power failed: every page in any version since the last sync.

A history has seen the files of a directory at many moments. Of the moment at which the power fails
it can tell each disk that is possible then: between two syncs a page holds any of the versions that
it had, each page by itself and, torn, each of its sectors; sizes are old or new; names that no
fsync of the directory covers are there or not, each rename whole and after what it depends on. A
sync covers what was there when it began, once it has returned. After one that failed, the kernel
takes pages for written that are not: no later sync covers them until they change or are marked.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

PAGE = 4096
SECTOR = 512
ZEROS = bytes(PAGE)

T = TypeVar("T")

Key = tuple[str, int, int]  # "page", file, page; "size", file, 0; "entry", number, 0
Pick = int | tuple[int, ...]  # which version, from the oldest; of a torn page, for each sector
GARBLED = -1  # of a torn page: in this sector, whatever was changing is garbage


@dataclass
class Versions(Generic[T]):
    """What one page, or one size, was at which moment."""

    first: T
    later: list[tuple[int, T]] = field(default_factory=list)

    def between(self, floor: int, moment: int) -> list[T]:
        """The different values that it had from ``floor`` to ``moment``, the oldest first."""
        found = [self.first]
        for when, value in self.later:
            if when > moment:
                break
            if when <= floor:
                found = [value]
            elif value not in found:
                found.append(value)
        return found


@dataclass
class File:
    """One file, whatever its name is."""

    data: bytes = b""
    pages: dict[int, Versions[bytes]] = field(default_factory=dict)
    size: Versions[int] = field(default_factory=lambda: Versions(0))
    syncs: list[tuple[int, int]] = field(default_factory=list)  # returned, began
    failed: list[int] = field(default_factory=list)  # moments at which syncs failed
    marked: list[tuple[int, range]] = field(default_factory=list)  # pages, as if they had changed

    @classmethod
    def on_disk(cls, data: bytes) -> File:
        """A file that is wholly on disk."""
        pages = {n: Versions(page) for n, page in _pages_of(data) if page != ZEROS}
        return cls(data, pages, Versions(len(data)))

    def take(self, data: bytes, moment: int) -> bool:
        """Note what the file holds now; whether that is new."""
        if data == self.data:
            return False
        if len(data) != len(self.data):
            self.size.later.append((moment, len(data)))
        before = dict(_pages_of(self.data))
        for number, page in _pages_of(data):
            if page != before.get(number, ZEROS):
                versions = self.pages.setdefault(number, Versions(ZEROS))
                versions.later.append((moment, page))
        self.data = data
        return True

    def versions(self, page: int, moment: int) -> list[bytes]:
        """What a page may be on disk, the oldest first."""
        known = self.pages.get(page)
        if known is None:
            return [ZEROS]
        floor = -1
        for returned, began in self.syncs:
            if returned <= moment and not any(
                self._is_forgotten(page, known, failure, began) for failure in self.failed
            ):
                floor = max(floor, began)
        return known.between(floor, moment)

    def _is_forgotten(self, page: int, known: Versions[bytes], failure: int, began: int) -> bool:
        """Whether a sync that began then did not see a page that an earlier one failed to write."""
        touched = [when for when, _ in known.later]
        touched += [when for when, pages in self.marked if page in pages]
        return failure < began and not any(failure < when <= began for when in touched)

    def sizes(self, moment: int) -> list[int]:
        """What its size may be on disk, the oldest first."""
        return self.size.between(_floor(self.syncs, moment), moment)


def _pages_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(data), PAGE):
        yield at // PAGE, data[at : at + PAGE].ljust(PAGE, b"\0")


@dataclass(frozen=True)
class Change:
    """One change of the directory: a name that goes, a name that comes, or both at once."""

    moment: int
    goes: str | None
    comes: str | None
    file: int

    @property
    def directory(self) -> str:
        """The directory whose sync covers it; empty: the one that the history is about."""
        return os.path.dirname((self.comes or self.goes or "").rstrip("/"))

    def needs(self, earlier: Change, *, synced: bool) -> bool:
        """Whether it cannot have happened without ``earlier``.

        A name that is on disk leads to its file, whatever became of the names before it.
        """
        if self.file == earlier.file:
            return not synced
        names = {self.goes, self.comes} - {None}
        if self.comes is not None and self.directory:
            names.add(f"{self.directory}/")
        return bool(names & {earlier.goes, earlier.comes})


def _floor(syncs: list[tuple[int, int]], moment: int) -> int:
    return max((began for returned, began in syncs if returned <= moment), default=-1)


Image = dict[str, tuple[int, tuple[bytes, ...]]]  # name -> size and pages


@dataclass
class History:
    """What was seen of a directory's files, and which syncs there were.

    Names are relative to it. That of a directory in it ends in a slash.
    """

    moment: int = 0
    labels: list[str] = field(default_factory=lambda: ["start"])
    files: dict[int, File] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)  # as they are now
    first_names: dict[str, int] = field(default_factory=dict)
    loose: frozenset[str] = frozenset()  # names of files of which nothing is expected
    changes: list[Change] = field(default_factory=list)
    dir_syncs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path, loose: frozenset[str] = frozenset()) -> History:
        """The history of a directory that is wholly on disk."""
        history = cls(loose=loose)
        for number, name in enumerate(sorted(_listing(str(directory)))):
            there = directory / name
            data = there.read_bytes() if there.is_file() else b""
            history.files[number] = File.on_disk(data)
            history.names[name] = number
        history.first_names = dict(history.names)
        return history

    def look(self, directory: str, label: str) -> None:
        """Note what the files hold now; a new moment if that is new."""
        assert _listing(directory) == set(self.names), f"{label}: a change went unseen"
        following = self.moment + 1
        changed = False
        for name, number in self.names.items():
            if name.endswith("/"):
                continue
            with open(os.path.join(directory, name), "rb") as file:
                new = self.files[number].take(file.read(), following)
            changed |= new and not self._is_loose(name)
        if changed:
            self.pass_moment(label)

    def pass_moment(self, label: str) -> None:
        """Something happened that is not a change of bytes."""
        self.moment += 1
        self.labels.append(label)

    def change(self, label: str, goes: str | None, comes: str | None) -> None:
        """Note that the directory has changed."""
        self.pass_moment(label)
        if goes is None:
            number = len(self.files)
            self.files[number] = File()
        else:
            number = self.names.pop(goes)
        if comes is not None:
            self.names[comes] = number
        self.changes.append(Change(self.moment, goes, comes, number))

    def options(self, moment: int) -> dict[Key, int]:
        """What a loss of power at ``moment`` leaves open, and how many ways there are each time."""
        found: dict[Key, int] = {}
        loose = {n for name, n in self.first_names.items() if self._is_loose(name)}
        for number, change in enumerate(self.changes):
            if self._is_loose(change.goes or "") or self._is_loose(change.comes or ""):
                loose.add(change.file)
            elif self._dir_floor(change, moment) < change.moment <= moment:
                found["entry", number, 0] = 2
        for number, file in self.files.items():
            if number in loose:
                continue
            found["size", number, 0] = len(file.sizes(moment))
            for page in file.pages:
                found["page", number, page] = len(file.versions(page, moment))
        return {key: count for key, count in found.items() if count > 1}

    def _is_loose(self, name: str) -> bool:
        return os.path.basename(name) in self.loose

    def _dir_floor(self, change: Change, moment: int) -> int:
        return _floor(self.dir_syncs.get(change.directory, []), moment)

    def image(self, moment: int, picks: Mapping[Key, Pick], rng: random.Random) -> Image:
        """The disk that these picks make; what is not picked is as new as can be."""
        built: Image = {}
        for name, number in self._entries(moment, picks).items():
            file = self.files[number]
            if name.endswith("/"):
                built[name] = 0, ()
                continue
            if self._is_loose(name):
                if rng.random() < 0.6:
                    built[name] = self._any_version(file, moment, rng)
                continue
            sizes = file.sizes(moment)
            pick = picks.get(("size", number, 0), len(sizes) - 1)
            assert isinstance(pick, int)
            size = sizes[pick]
            pages = []
            for page in range(-(-size // PAGE)):
                versions = file.versions(page, moment)
                chosen = picks.get(("page", number, page), len(versions) - 1)
                pages.append(
                    versions[chosen] if isinstance(chosen, int) else _torn(versions, chosen, rng)
                )
            built[name] = size, tuple(pages)
        return built

    def _any_version(
        self, file: File, moment: int, rng: random.Random
    ) -> tuple[int, tuple[bytes, ...]]:
        size = rng.choice(file.size.between(-1, moment))
        pages = (file.pages.get(n, Versions(ZEROS)) for n in range(-(-size // PAGE)))
        return size, tuple(rng.choice(versions.between(-1, moment)) for versions in pages)

    def _entries(self, moment: int, picks: Mapping[Key, Pick]) -> dict[str, int]:
        names = dict(self.first_names)
        missing: list[Change] = []
        for number, change in enumerate(self.changes):
            if change.moment > moment:
                break
            synced = change.moment <= self._dir_floor(change, moment)
            there = picks.get(("entry", number, 0), 1) == 1 or synced
            if not there or any(change.needs(other, synced=synced) for other in missing):
                missing.append(change)
                continue
            if change.goes is not None:
                names.pop(change.goes, None)
            if change.comes is not None:
                names[change.comes] = change.file
        return {
            name: number
            for name, number in names.items()
            if "/" not in name.rstrip("/") or f"{os.path.dirname(name)}/" in names
        }


def _listing(directory: str) -> set[str]:
    found = set()
    for where, directories, names in os.walk(directory):
        under = os.path.relpath(where, directory)
        found |= {os.path.normpath(os.path.join(under, name)) for name in names}
        found |= {os.path.normpath(os.path.join(under, name)) + "/" for name in directories}
    return found


def _torn(versions: list[bytes], picks: tuple[int, ...], rng: random.Random) -> bytes:
    page = bytearray()
    for sector, pick in enumerate(picks):
        part = slice(sector * SECTOR, (sector + 1) * SECTOR)
        if pick != GARBLED:
            page += versions[pick % len(versions)][part]
            continue
        kept, changing = versions[0][part], versions[-1][part]
        noise = rng.randbytes(SECTOR)
        page += bytes(a if a == b else c for a, b, c in zip(kept, changing, noise, strict=True))
    return bytes(page)


def ways(
    options: dict[Key, int], rng: random.Random, *, all_below: int, samples: int
) -> Iterator[dict[Key, Pick]]:
    """Picks among options, in random order: all that there are, if they are few.

    Else the extremes (all old, all new, and all but one thing, which is in any version) and
    samples. Then samples in which pages are torn.
    """
    oldest: dict[Key, Pick] = dict.fromkeys(options, 0)
    newest: dict[Key, Pick] = {key: count - 1 for key, count in options.items()}
    found: list[dict[Key, Pick]] = []
    if math.prod(options.values()) <= all_below:
        for picked in itertools.product(*map(range, options.values())):
            found.append(dict(zip(options, picked, strict=True)))
    else:
        found += [oldest, newest]
        found += [{**oldest, key: n} for key, count in options.items() for n in range(1, count)]
        found += [{**newest, key: n} for key, count in options.items() for n in range(count - 1)]
        found += [_random_picks(options, rng, torn=False) for _ in range(samples)]
    if options:
        found += [_random_picks(options, rng, torn=True) for _ in range(samples)]
    rng.shuffle(found)
    return iter(found)


def _random_picks(options: dict[Key, int], rng: random.Random, *, torn: bool) -> dict[Key, Pick]:
    """Picks that lean to old, to new or to neither, with some or all of the pages torn."""
    lean = rng.choice((0.1, 0.5, 0.9))
    tears = rng.choice((0.3, 1.0)) if torn else 0.0
    garbles = rng.choice((0.0, 0.3))

    def version(count: int) -> int:
        return rng.choice((rng.randrange(count), count - 1 if rng.random() < lean else 0))

    def sectors(count: int) -> tuple[int, ...]:
        return tuple(
            GARBLED if rng.random() < garbles else version(count) for _ in range(PAGE // SECTOR)
        )

    return {
        key: sectors(count) if key[0] == "page" and rng.random() < tears else version(count)
        for key, count in options.items()
    }


def write(image: Image, directory: Path) -> None:
    """Make the disk real."""
    directory.mkdir()
    for name, (size, pages) in sorted(image.items()):
        if name.endswith("/"):
            (directory / name).mkdir()
            continue
        with open(directory / name, "wb") as file:
            file.truncate(size)
            for number, page in enumerate(pages):
                if page != ZEROS:
                    file.seek(number * PAGE)
                    file.write(page[: size - number * PAGE])
