"""Descriptors run out: the error names the log, and the log is as good as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KINDS: dict[str, dict[str, Any]] = {"log": {}, "ring": {"ring": "64KiB"}}
kinds = pytest.mark.parametrize("options", KINDS.values(), ids=list(KINDS))

HUNGRY = """
import os, resource, sys
import penstock
path, options = sys.argv[1], eval(sys.argv[2])
penstock.open(path, **options).close()
lowest = os.open("/", os.O_RDONLY)
os.close(lowest)
seen = 0
for spare in range(40):
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, 4096))
    log = None
    try:
        log = penstock.open(f"{path}-new-{spare}", **options)
        log.append(b"x")
        log.close()
        log = penstock.open(path)
        log.append(b"x")
        log.sync()
    except OSError as error:
        seen += 1
        assert isinstance(error, penstock.PenstockError), repr(error)
        assert error.errno == 24, repr(error)
        assert error.filename.startswith(path), error.filename
        assert "Too many open files" in str(error) and path in str(error), str(error)
    else:
        print("fits", spare, seen)
        break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
        if log is not None:
            log.close()
"""


@kinds
def test_no_descriptors_left_is_told_of_the_log(tmp_path: Path, options: dict[str, Any]) -> None:
    """With too few descriptors the error names the log and says so, whichever call was refused."""
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY, str(tmp_path / "x"), repr(options)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    word, _, seen = done.stdout.split()
    assert word == "fits" and int(seen) >= 2


CALLS = """
import os, pickle, resource, shutil, sys
import pyarrow
import penstock

for name in penstock.__all__:
    getattr(penstock, name)  # loads what was not loaded
where, options = sys.argv[1], eval(sys.argv[2])
is_ring = "ring" in options

def fresh(number):
    path = os.path.join(where, str(number), "x")
    os.mkdir(os.path.dirname(path))
    with penstock.open(path, **options) as log:
        for _ in range(6):
            log.extend([b"v" * 100] * (20 if is_ring else 100))
        log.consumer("known").close()
    return path

both = {
    "read": lambda log, path: list(log.read()),
    "read reverse": lambda log, path: list(log.read(reverse=True)),
    "item": lambda log, path: log[log.first_seq],
    "scan": lambda log, path: log.scan().to_arrow(),
    "follow": lambda log, path: list(log.follow("start", timeout=0)),
    "append": lambda log, path: log.append(b"x", durable=True),
    "extend": lambda log, path: log.extend([b"x" * 100] * 100),
    "load": lambda log, path: log.load([b"x" * 100] * 100),
    "sync": lambda log, path: log.sync(),
    "configure": lambda log, path: log.configure(file_mode=0o640),
    "consumer": lambda log, path: log.consumer("known").close(),
    "new consumer": lambda log, path: log.consumer("new").close(),
    "consumers": lambda log, path: list(log.consumers()),
    "verify": lambda log, path: log.verify(),
    "repair": lambda log, path: log.repair(to=path + "-repaired"),
    "backup": lambda log, path: log.backup(path + "-backup"),
    "stats": lambda log, path: log.stats(),
    "tail": lambda log, path: log.tail(3),
    "seq_at": lambda log, path: log.seq_at(0),
    "merge": lambda log, path: list(penstock.merge(log, log)),
    "pickle": lambda log, path: pickle.loads(pickle.dumps(log)).close(),
    "exists": lambda log, path: penstock.exists(path),
    "find": lambda log, path: penstock.find(os.path.dirname(path)),
    "create": lambda log, path: penstock.create(path + "-new", **options).close(),
    "open": lambda log, path: penstock.open(path).close(),
    "close": lambda log, path: log.close(),
}
calls = {
    "log": both | {"roll": lambda log, path: log.steward.roll()},
    "ring": both | {"resize": lambda log, path: log.resize("256KiB")},
}["ring" if is_ring else "log"]

number = refused = 0
for name, call in calls.items():
    for spare in range(16):
        number += 1
        path = fresh(number)
        log = penstock.open(path)
        log.append(b"first")
        lowest = os.open("/", os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, 4096))
        done = False
        try:
            call(log, path)
            done = True
        except OSError as error:
            refused += 1
            assert isinstance(error, penstock.PenstockError), (name, spare, repr(error))
            assert error.errno == 24, (name, spare, repr(error))
            there = os.path.dirname(path) if name == "find" else path
            assert error.filename.startswith(there), (name, spare, error.filename)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
        log.close()
        with penstock.open(path) as log:
            log.append(b"after", durable=True)
            assert log[log.last_seq].value == b"after", (name, spare)
        assert penstock.verify(path).ok, (name, spare)
        shutil.rmtree(os.path.dirname(path))
        if done:
            break
    else:
        raise AssertionError(f"{name} never fits")
print(refused)
"""


@kinds
def test_every_call_without_descriptors_names_the_log(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """With ever so few descriptors a call works or is an error that names the log, which then
    takes appends as before: none is lost, nothing is left damaged or poisoned."""
    given = {**options, **({"ring": "128KiB"} if options else {"segment_size": "64KiB"})}
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(tmp_path), repr(given)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
    assert os.listdir(tmp_path) == []
