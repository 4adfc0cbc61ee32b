"""What `import penstock` loads, and what only the first log does."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import penstock

# What a log of plain bytes never needs,
NEVER = {"asyncio", "concurrent.futures", "msgspec", "numpy", "pandas", "polars", "pyarrow"}
# what takes long to load and few programs need from us,
HEAVY = NEVER | {"ctypes", "logging", "multiprocessing", "shutil", "socket", "urllib.parse"}
# and what an open log needs.
ENGINE = {
    "penstock.handle",
    "penstock.log",
    "penstock.opening",
    "penstock.ring",
    "penstock.segments",
}


def loaded_by(program: str, *args: object) -> set[str]:
    """The modules that a fresh process has loaded when the program has run."""
    found = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)", *map(str, args)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return set(found.stdout.split())


def test_import_loads_little() -> None:
    """`import penstock` loads the errors, and nothing of a log or of the compiled core."""
    found = loaded_by("import penstock") - loaded_by("")
    assert "penstock.errors" in found
    assert not found & (HEAVY | ENGINE | {"penstock._core", "penstock.data.codecs", "re", "typing"})


def test_a_first_log_loads_little(path: Path) -> None:
    """To open, append and read plain bytes loads no codec, no Arrow and no pool of threads."""
    found = loaded_by(
        "import sys, penstock\n"
        "with penstock.open(sys.argv[1]) as log:\n"
        "    log.append(b'x')\n"
        "    assert [event.value for event in log] == [b'x']",
        path,
    )
    assert "penstock.segments" in found
    assert not found & NEVER


def test_names_are_what_they_say() -> None:
    """Every public name is there, is listed, and is from where type checkers look."""
    told: dict[str, str] = {}
    tree = ast.parse(Path(penstock.__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("penstock"):
            told |= {alias.name: str(node.module) for alias in node.names}
    assert told.pop("errors") == "penstock"  # a module
    assert set(told) == set(penstock.__all__)
    for name, module in told.items():
        assert getattr(penstock, name) is getattr(import_module(module), name), name
    for name, module in penstock._LATER.items():
        assert told[name] == module
        assert name in vars(penstock), "asked for once, it is there"
    assert set(penstock.__all__) <= set(dir(penstock))


def test_names_before_they_are_loaded() -> None:
    """dir() and `import *` know every name in a process that has used none."""
    loaded_by(
        "import penstock\n"
        "assert set(penstock.__all__) <= set(dir(penstock))\n"
        "assert not hasattr(penstock, 'opn')\n"
        "from penstock import *\n"
        "assert all(name in globals() for name in penstock.__all__)"
    )


def test_without_descriptors(path: Path) -> None:
    """Where nothing can be loaded, the error is typed and says what to do; later it is loaded."""
    loaded_by(
        "import resource, sys, penstock\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))\n"
        "try:\n"
        "    penstock.open\n"
        "except penstock.Io as error:\n"
        "    assert 'loading' in str(error) and 'ulimit -n' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('it was loaded without a descriptor')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "penstock.open(sys.argv[1]).close()",
        path,
    )


def test_an_event_that_was_pickled(path: Path) -> None:
    """An event of another process has its value as an object where no log was ever opened."""
    with penstock.open(path, codec="json") as log:
        log.append({"a": [1]})
        pickled = pickle.dumps(log[1])
    found = loaded_by(
        f"import pickle\nassert pickle.loads({pickled!r}).data == {{'a': [1]}}",
    )
    assert not found & ENGINE


def test_an_event_without_descriptors(path: Path) -> None:
    """Where its codec cannot be loaded, an event says so with a typed error; later it has data."""
    with penstock.open(path, codec="json") as log:
        log.append({"a": [1]})
        pickled = pickle.dumps(log[1])
    loaded_by(
        "import pickle, resource, penstock\n"
        f"event = pickle.loads({pickled!r})\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))\n"
        "try:\n"
        "    event.data\n"
        "except penstock.Io as error:\n"
        "    assert 'loading' in str(error) and 'ulimit -n' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('it was loaded without a descriptor')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "assert event.data == {'a': [1]}"
    )


def test_messages_without_logging(path: Path) -> None:
    """A program that has not loaded logging is told nothing; one that has is told the rest."""
    program = (
        "import sys, penstock\n"
        "from penstock.system.messages import logger\n"
        "assert 'logging' not in sys.modules\n"
        "logger.warning('early')\n"
        "assert 'logging' not in sys.modules\n"
        "import logging\n"
        "logger.warning('nobody listens')\n"
        "logging.basicConfig(format='said: %(message)s')\n"
        "logger.warning('late %d', 1)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stderr == "said: late 1\n"
