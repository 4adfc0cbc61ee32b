"""A Spark driver that streams into a log is killed, again and again; each row is there once."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from tests.support.fixtures import STORM
from tests.support.wait import wait_for

pytestmark = [pytest.mark.crash, pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # seconds; for a Spark that starts on a machine with other things to do

DRIVER = """
import ctypes
import sys
from pathlib import Path

ctypes.CDLL(None).prctl(1, 9)  # nobody outlives the test

from tests.support.spark import local_session

where = Path(sys.argv[1])
spark = local_session(where / "scratch")
rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(where / "in"))
query = (
    rows.repartition(3)
    .writeStream.format("penstock")
    .option("checkpointLocation", str(where / "checkpoint"))
    .trigger(availableNow=True)
    .start(str(where / "log"))
)
query.awaitTermination()
spark.stop()
"""


class Driver:
    """A process, and all that it starts, in a session of their own."""

    def __init__(self, where: Path) -> None:
        self.where = where
        (where / "tmp").mkdir(exist_ok=True)
        self._output = (where / "output").open("ab")
        java = f"-Djava.io.tmpdir={where / 'tmp'} -XX:-UsePerfData"
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(where)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(where / "tmp"), "JAVA_TOOL_OPTIONS": java},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )

    def members(self) -> Iterator[tuple[int, str]]:
        """Ids and names of the processes that are still alive."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = stat.read_text()
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            fields = rest.split()
            if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                yield int(stat.parts[2]), name

    def kill(self, *, only_java: bool = False) -> None:
        """Kill all of them, or the Java process alone: the others are then orphans for a while."""
        for pid, name in self.members():
            if name == "java" or not only_java:
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Be sure that none of them is left."""
        if self.process.poll() is None:
            self.kill()
        self.process.wait()
        wait_for(self._none_left, "the end of all processes of a driver")
        self._output.close()

    def _none_left(self) -> bool:
        self.kill()
        return not list(self.members())

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Return once something is so; False if the driver ended before."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, (self.where / "output").read_text()
            time.sleep(0.0005)
        return True


class Scene:
    """Files that are fed to a driver, and the log that it appends them to."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.log = where / "log"
        self.lines: Counter[str] = Counter()
        self._numbers = itertools.count()
        (where / "in").mkdir()
        penstock.create(self.log, segment_size="1MiB").close()

    def feed(self, *counts: int) -> None:
        """Add a file of so many lines each; a file is a batch."""
        for count in counts:
            n = next(self._numbers)
            lines = [f"{n}-{i}" for i in range(count)]
            hidden = self.where / "in" / f"_{n}"
            hidden.write_text("\n".join(lines))
            os.utime(hidden, (1_700_000_000 + n,) * 2)
            hidden.rename(self.where / "in" / f"{n}.txt")
            self.lines.update(lines)

    def staged(self) -> bool:
        """Whether a task has staged something, finished or not."""
        return any(self.log.glob("staging/*/*"))

    def began(self) -> bool:
        """Whether a batch is planned that is not done yet."""
        plans = self._batches("offsets")
        return bool(plans) and max(plans) not in self._batches("commits")

    def _batches(self, kind: str) -> set[int]:
        names = (file.name for file in self.where.glob(f"checkpoint/{kind}/*"))
        return {int(name) for name in names if name.isdigit()}

    def check(self) -> None:
        """Each row is in the log once, the rows of a batch side by side, and nothing is left."""
        with penstock.open(self.log) as log:
            found = [(event.value or b"").decode() for event in log]
            assert log.verify().problems == ()
        assert Counter(found) == self.lines
        batches = [n for n, _ in itertools.groupby(found, lambda line: line.split("-")[0])]
        assert len(batches) == len(set(batches))
        assert os.listdir(self.log / "staging") == []
        assert not [name for name in os.listdir(self.log) if name.endswith(".tmp")]


def die(driver: Driver, scene: Scene, moment: str) -> None:
    """Kill a driver at a chosen moment, if it does not end before."""
    with penstock.open(scene.log, "r") as log:
        if moment == "staged":
            driver.wait_for(scene.staged)
        elif moment == "any":
            driver.wait_for(scene.began)
            time.sleep(random.uniform(0, 2))
        else:
            last = log.last_seq + random.choice([0, 30])
            driver.wait_for(lambda: log.last_seq > last)
        driver.kill(only_java=moment == "orphans")


@pytest.mark.timeout(3600)
def test_a_driver_is_killed(tmp_path: Path) -> None:
    """Whenever a driver is killed, and run again until it is done, each row is there once.

    It dies while tasks stage; when the log has a batch that Spark does not know to be done, be it
    with all its workers or as the only one; and at any other moment.
    """
    scene = Scene(tmp_path)
    moments = ["staged", "orphans"]
    if STORM:
        moments += ["published", "any", *random.choices([*moments, "published", "any"], k=30)]
    drivers: list[Driver] = []
    try:
        for moment in moments:
            scene.feed(30, 25_000, 30)  # the one in the middle is more than the log takes at once
            drivers.append(Driver(tmp_path))
            die(drivers[-1], scene, moment)
            if moment == "orphans":  # the next driver comes while they go on
                drivers[-1].process.wait(PATIENCE)
            else:
                drivers.pop().end()
        drivers.append(Driver(tmp_path))
        assert drivers[-1].process.wait(PATIENCE) == 0, (tmp_path / "output").read_text()
    finally:
        for driver in drivers:
            driver.end()
    scene.check()
