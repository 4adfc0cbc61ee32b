"""Every example in a docstring of the package runs, those in the compiled module among them."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock

MODULES = ["penstock"] + [
    info.name
    for info in pkgutil.walk_packages(penstock.__path__, "penstock.")
    if ".spark" not in info.name and not info.name.endswith("__main__")
]


def documented() -> Iterator[tuple[str, str, Any]]:
    """Name, docstring and module of everything in the package that has a docstring of its own."""
    for name in MODULES:
        module = importlib.import_module(name)
        if module.__doc__:
            yield name, module.__doc__, module
        for attribute, value in vars(module).items():
            if getattr(value, "__module__", None) != name:
                continue
            if value.__doc__:
                yield f"{name}.{attribute}", value.__doc__, module
            if inspect.isclass(value):
                for member, found in vars(value).items():
                    if not member.startswith("_") and getattr(found, "__doc__", None):
                        yield f"{name}.{attribute}.{member}", found.__doc__, module


EXAMPLES = {name: (text, module) for name, text, module in documented() if ">>>" in text}


def test_examples_are_found_everywhere() -> None:
    """Examples are found in plain and compiled modules, and there are many."""
    assert "penstock" in EXAMPLES
    assert "penstock._core.LogCore.append" in EXAMPLES
    assert "penstock.opening.open" in EXAMPLES
    assert len(EXAMPLES) >= 12


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name: str, tmp_path: Path) -> None:
    """The example does what it shows."""
    text, module = EXAMPLES[name]
    globs = {**vars(penstock), **vars(module)}
    globs |= {"penstock": penstock, "path": tmp_path / "log", "Entry": penstock.Entry}
    test = doctest.DocTestParser().get_doctest(text, globs, name, None, 0)
    said: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(said)


def test_public_callables_are_documented() -> None:
    """Every public name has a docstring, and so has every public method and property of it."""
    for name in penstock.__all__:
        value = getattr(penstock, name)
        assert value.__doc__, name
        if not inspect.isclass(value):
            continue
        for member, found in inspect.getmembers(value):
            if member.startswith("_") or not (callable(found) or isinstance(found, property)):
                continue
            if issubclass(value, BaseException | tuple):
                continue
            assert found.__doc__, f"{name}.{member}"
