"""What other processes do beside compactions and erasures."""

from __future__ import annotations

import os
from pathlib import Path

import penstock
from tests.support.ext4 import Ext4
from tests.support.jobs import report

KEY = b"a key on a real device 4711"
VALUE = b"its value, which nobody shall find"


def write(path: str, count: int) -> None:
    """Append numbers without keys, and events of keys that are compacted."""
    with penstock.open(path) as log:
        for number in range(count):
            log.append(b"%d" % number, topic="numbers")
            if number % 5 == 0:
                log.append(b"v" * 300, key=b"key %d" % (number % 7))
    os._exit(0)


def follow(path: str, count: int) -> None:
    """Follow the log to its end: each number, once and in order."""
    numbers, last, in_order = 0, 0, True
    with penstock.open(path, mode="r") as log:
        for event in log.follow("start", timeout=60):
            in_order &= event.seq > last
            last = event.seq
            if event.topic == "numbers":
                in_order &= int(event.value) == numbers
                numbers += 1
            if event.topic == "end":
                break
    report(keyless=numbers, in_order=in_order)
    os._exit(0)


def on_a_device(directory: str) -> None:
    """Erase a key on a small ext4, and count what is left of it on the image."""
    image = Path(directory, "image")
    try:
        device = Ext4(Path(directory), 4096)
        device.mount()
    except OSError as error:
        report(unable=f"no file system of its own: {error}")
        os._exit(0)
    log = penstock.open(device.root / "log", segment_size="256KiB")
    for number in range(400):
        log.append(VALUE + b"%d" % number, key=KEY)
        log.append(b"o" * 1000, key=b"other %d" % number)
    log.sync()
    log.steward.roll()
    device.sync()
    before = image.read_bytes().count(VALUE)
    done = log.steward.erase(KEY)
    log.close()
    device.sync()
    device.unmount()
    raw = image.read_bytes()
    report(before=before, after=raw.count(VALUE) + raw.count(KEY), complete=done.complete)
    os._exit(0)
