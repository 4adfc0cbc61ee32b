"""Job: an event that a worker has claimed, until it says what came of it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Generic, Self

from penstock._core import Event
from penstock.errors import Conflict, Usage, WrongType

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.groups.worker import Worker

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")


class Job(Generic[T]):
    """An event that this worker has, and nobody else.

    ``with job:`` acks it in the end, or has it tried again if the block raised.
    """

    __slots__ = ("_done", "_number", "_worker", "deliveries", "event", "seq")

    event: Event[T]
    seq: int  # that of the event in its log, also if this is the copy of a dead letter
    deliveries: int  # this one is counted
    _worker: Worker[T]
    _number: int  # of the claim
    _done: bool

    def __new__(cls, *_: object, **__: object) -> Self:
        raise Usage("a Job comes from a worker: for job in log.group(name).worker()")

    @property
    def done(self) -> bool:
        """Whether it was acked, nacked or rejected here."""
        return self._done

    def ack(self, *, result: Any = None, durable: bool = False) -> None:
        """The event is done: no worker gets it again.

        It survives the death of any process; with ``durable`` power loss as well. A ``result``,
        bytes, can be read with ``log.result(seq)``. `Conflict` if this worker had lost the event.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> with log.group("mail").worker(timeout=0) as worker:
        ...     for job in worker:
        ...         job.ack(result=b"sent")
        >>> log.result(1)
        b'sent'
        """
        self._check()
        self._worker._ack_one(self, result, durable)
        self._done = True

    def nack(
        self,
        *,
        delay: float | dt.timedelta | None = None,
        reason: str = "",
        count: bool = True,
    ) -> None:
        """Have the event tried again, after ``delay`` seconds or the group's backoff.

        With ``count=False`` it was not the event's fault: the try does not count, and the event
        comes again at once. After the group's ``deliveries`` it goes to the dead letters.

        >>> log = penstock.open(path)
        >>> log.append(b"a")
        1
        >>> with log.group("mail").worker(timeout=0) as worker:
        ...     next(worker).nack(delay=0, reason="busy")
        ...     next(worker).deliveries
        2
        """
        self._check()
        self._worker._nack_one(self, delay, _text(reason), bool(count))
        self._done = True

    def reject(self, reason: str = "") -> None:
        """Send the event to the dead letters: trying again makes no sense.

        >>> log = penstock.open(path)
        >>> log.append(b"nonsense")
        1
        >>> group = log.group("mail")
        >>> with group.worker(timeout=0) as worker:
        ...     next(worker).reject("no address")
        >>> [letter.header("dead.reason") for letter in group.dead]
        [b'no address']
        """
        self._check()
        self._worker._reject_one(self, _text(reason))
        self._done = True

    def extend(self, seconds: float | dt.timedelta) -> None:
        """Have the lease end that much later than now. Only a group with ``lease=`` has leases.

        >>> log = penstock.open(path)
        >>> log.append(b"long work")
        1
        >>> with log.group("video", lease=60).worker(timeout=0) as worker:
        ...     with next(worker) as job:
        ...         job.extend(600)
        """
        self._check()
        self._worker._extend_one(self, seconds)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> bool:
        if self._done:
            return False
        if kind is None:
            self.ack()
            return False
        if not issubclass(kind, Exception):  # Ctrl-C, the end of the program, a cancelled task
            self._settle_late("", count=False)
            return False
        self._settle_late(f"{kind.__name__}: {error}", count=True)
        return self._worker._swallows(self, error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, _: object) -> bool:
        return self.__exit__(kind, error, _)

    def _settle_late(self, reason: str, *, count: bool) -> None:
        """After an exception, which is not to be replaced by that of a claim that was lost."""
        try:
            self.nack(reason=reason, count=count)
        except Conflict as lost:
            self._done = True
            self._worker._say(self, lost)

    def _check(self) -> None:
        if self._done:
            raise Usage(f"{self._worker._path}: the job of seq {self.seq} is settled already")

    def __repr__(self) -> str:
        state = "settled" if self._done else f"delivery {self.deliveries}"
        return f"<penstock.Job seq={self.seq} {state}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise WrongType(
            "a Job belongs to its worker, in this process, and cannot be copied or pickled; send "
            "job.event, and settle the job here"
        )


def _text(reason: object) -> str:
    if not isinstance(reason, str):
        raise WrongType(f"reason must be str, got {type(reason).__name__}")
    return reason.encode("utf-8", "replace").decode()
