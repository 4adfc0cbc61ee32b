"""The file of a consumer: what its bytes mean. `folder` has the calls that touch it.

Two pages, each with a slot for plain commits, a slot for durable ones, and a copy of the profile.
The valid slot with the highest generation counts; no byte is trusted without its checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock import headers
from penstock import layout as L
from penstock._core import crc32c, encode_tags
from penstock.errors import Corrupt, TooLarge, UnsupportedVersion


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events a consumer wants: settled when it is made."""

    topic: bytes | tuple[bytes, ...] | None = None  # of several, any will do
    key: bytes | None = None
    tags: tuple[str, ...] | None = None

    @property
    def topics(self) -> str | tuple[str, ...] | None:
        """The topic, or several, as text."""
        if isinstance(self.topic, tuple):
            return tuple(one.decode(errors="replace") for one in self.topic)
        return None if self.topic is None else self.topic.decode(errors="replace")

    def __bool__(self) -> bool:
        return self.topic is not None or self.key is not None or self.tags is not None

    def __str__(self) -> str:
        """In the words of the call that makes a consumer.

        >>> str(Filter(topic=b"orders")), str(Filter())
        ("topic='orders'", 'every event')
        """
        parts = []
        if self.topic is not None:
            named = self.topics
            parts.append(f"topic={list(named) if isinstance(named, tuple) else named!r}")
        if self.key is not None:
            parts.append(f"key={self.key!r}")
        if self.tags is not None:
            parts.append(f"tags={list(self.tags)!r}")
        return ", ".join(parts) or "every event"

    def tag_bytes(self) -> bytes | None:
        """The tags as they stand in frames."""
        return None if self.tags is None else encode_tags(self.tags) or None


@dataclass(frozen=True, slots=True)
class Profile:
    """What was settled when the consumer was made."""

    created_ns: int
    wants: Filter

    def pack(self) -> bytes:
        """The bytes of the profile; `TooLarge` if a page has no room for them."""
        given, key, tags = self.wants.topic, self.wants.key, self.wants.tags
        topic = _pack_list(given) if isinstance(given, tuple) else given
        listed = _pack_list(tag.encode() for tag in tags or ())
        nbytes = L.PROFILE_HEADER_BYTES + len(topic or b"") + len(key or b"") + len(listed)
        if nbytes > L.PROFILE_BYTES_MAX:
            raise TooLarge(
                f"the topic, key and tags of a consumer must fit {L.PROFILE_BYTES_MAX} bytes, got "
                f"{nbytes}"
            )
        flags = (
            L.PROFILE_FLAG_TOPIC * isinstance(given, bytes)
            | L.PROFILE_FLAG_TOPICS * isinstance(given, tuple)
            | L.PROFILE_FLAG_KEY * (key is not None)
            | L.PROFILE_FLAG_TAGS * (tags is not None)
        )
        head = L.PROFILE.pack(
            created_ns=self.created_ns,
            topic_len=len(topic or b""),
            key_len=len(key or b""),
            tags_len=len(listed),
            flags=flags,
        )
        return head + (topic or b"") + (key or b"") + listed

    @classmethod
    def unpack(cls, data: bytes) -> Profile:
        """The profile whose checked bytes these are."""
        head = L.PROFILE.unpack(data)
        flags, at = head["flags"], L.PROFILE_HEADER_BYTES
        raw, at = data[at : at + head["topic_len"]], at + head["topic_len"]
        key, at = data[at : at + head["key_len"]], at + head["key_len"]
        listed = data[at : at + head["tags_len"]]
        topic: bytes | tuple[bytes, ...] | None = raw if flags & L.PROFILE_FLAG_TOPIC else None
        if flags & L.PROFILE_FLAG_TOPICS:
            topic = tuple(_unpack_list(raw))
        tags = tuple(tag.decode() for tag in _unpack_list(listed))
        wants = Filter(
            topic,
            key if flags & L.PROFILE_FLAG_KEY else None,
            tags if flags & L.PROFILE_FLAG_TAGS else None,
        )
        return cls(head["created_ns"], wants)

    @property
    def version(self) -> int:
        """The oldest version of the file that has room for it."""
        return 2 if isinstance(self.wants.topic, tuple) else 1


def _pack_list(parts: Iterable[bytes]) -> bytes:
    """Each part with its length before it."""
    return b"".join(L.PROFILE_TAG.pack(len=len(part)) + part for part in parts)


def _unpack_list(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        length = L.PROFILE_TAG.unpack(data, at)["len"]
        at += L.PROFILE_TAG_BYTES
        yield data[at : at + length]
        at += length


@dataclass(frozen=True, slots=True)
class PlaceSlot:
    """One place that was stored."""

    version: int
    profile_len: int
    uuid: bytes
    profile_crc: int
    flags: int
    clamped: int
    generation: int
    next: int
    position: int
    hint: int
    heartbeat_ns: int

    def pack(self) -> bytes:
        """The bytes of the slot, with the checksum."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return headers.seal(L.PLACE, magic=L.PLACE_MAGIC, **values)

    @classmethod
    def unpack(cls, raw: bytes, path: str) -> PlaceSlot | None:
        """The slot, or None if these bytes are none."""
        fields = L.PLACE.unpack(raw)
        if fields["magic"] != L.PLACE_MAGIC or not headers.is_good(L.PLACE, raw):
            return None
        version = fields["version"]
        if version > L.CONSUMER_VERSION:
            raise UnsupportedVersion(
                f"{path}: was written by a newer Penstock (version {version} of consumers; this "
                f"one reads up to {L.CONSUMER_VERSION}); open it with that one",
                path=path,
            )
        slot = cls(**{name: fields[name] for name in cls.__slots__})
        if not slot.generation or not 0 < slot.next <= L.SEQ_MAX + 1:
            return None
        return slot


@dataclass(frozen=True, slots=True)
class ConsumerPlace:
    """What the file of a consumer says, and which slot of each kind is written next."""

    slot: PlaceSlot
    profile: Profile
    plain_turn: int
    durable_turn: int


def new_file(uuid: bytes, next_seq: int, profile: Profile, now_ns: int) -> bytes:
    """The bytes of a new consumer's file."""
    packed = profile.pack()
    slot = PlaceSlot(
        version=profile.version,
        profile_len=len(packed),
        uuid=uuid,
        profile_crc=crc32c(packed),
        flags=0,
        clamped=0,
        generation=1,
        next=next_seq,
        position=next_seq,
        hint=0,
        heartbeat_ns=now_ns,
    )
    data = bytearray(L.CONSUMER_BYTES)
    data[L.PLACE_DURABLE_BYTES : L.PLACE_DURABLE_BYTES + L.PLACE_BYTES] = slot.pack()
    for page in (0, L.PAGE):
        at = page + L.PROFILE_OFFSET_BYTES
        data[at : at + len(packed)] = packed
    return bytes(data)


def parse(data: bytes, path: str) -> ConsumerPlace:
    """What the bytes of a consumer's file say; `Corrupt` if none of it can be trusted."""
    if len(data) < L.CONSUMER_BYTES:
        raise _damaged(path, f"has {len(data)} bytes where a consumer has {L.CONSUMER_BYTES}")
    newest: PlaceSlot | None = None
    profile: Profile | None = None
    turns = []
    for kind in (0, L.PLACE_DURABLE_BYTES):
        generations = []
        for page in (0, L.PAGE):
            slot = PlaceSlot.unpack(data[page + kind : page + kind + L.PLACE_BYTES], path)
            found = None if slot is None else _profile(data, slot)
            generations.append(0 if slot is None or found is None else slot.generation)
            if slot and found and (newest is None or slot.generation > newest.generation):
                newest, profile = slot, found
        turns.append(int(generations[1] < generations[0]))
    if newest is None or profile is None:
        raise _damaged(path, "has no slot with a valid checksum")
    return ConsumerPlace(newest, profile, *turns)


def _profile(data: bytes, slot: PlaceSlot) -> Profile | None:
    """The profile that a slot was stored with, from whichever page still has it."""
    for page in (0, L.PAGE):
        at = page + L.PROFILE_OFFSET_BYTES
        packed = data[at : at + slot.profile_len]
        if len(packed) >= L.PROFILE_HEADER_BYTES and crc32c(packed) == slot.profile_crc:
            return Profile.unpack(packed)
    return None


def _damaged(path: str, why: str) -> Corrupt:
    return Corrupt(
        f"{path}: {why}, so the position of this consumer is not known; delete it with "
        "log.consumers().delete(name), and open it again with start=",
        path=path,
        offset=0,
    )
