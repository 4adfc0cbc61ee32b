"""A set of whole numbers that lie close together, as ranges."""

from __future__ import annotations

from bisect import bisect_right


class Ranges:
    """A set of numbers; it takes memory for each gap, not for each number.

    >>> some = Ranges([3, 5])
    >>> some.add(5)
    >>> 5 in some, 6 in some, some.bounds, len(some)
    (True, False, [3, 6], 3)
    """

    def __init__(self, bounds: list[int] | None = None) -> None:
        self.bounds: list[int] = list(bounds or ())  # first, stop, first, stop, ...

    def __contains__(self, number: int) -> bool:
        return bisect_right(self.bounds, number) % 2 == 1

    def __len__(self) -> int:
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def add(self, number: int) -> None:
        """Add a number."""
        at = bisect_right(self.bounds, number)
        if at % 2:
            return
        if at and self.bounds[at - 1] == number:  # right after a range
            self.bounds[at - 1] = number + 1
            if at < len(self.bounds) and self.bounds[at] == number + 1:
                del self.bounds[at - 1 : at + 1]
        elif at < len(self.bounds) and self.bounds[at] == number + 1:
            self.bounds[at] = number
        else:
            self.bounds[at:at] = [number, number + 1]
