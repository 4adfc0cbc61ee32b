"""To come."""

from typing import Any


class Typed:
    def __init__(self, *a: Any, **k: Any) -> None: ...
    def columns(self, *a: Any) -> Any: ...


def infer(*a: Any, **k: Any) -> Any: ...
