"""What people see: commands in a real terminal, its screen captured."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.cli.support import Shell, real_environment

if shutil.which("tmux") is None:
    pytest.skip("needs tmux: apt-get install tmux", allow_module_level=True)

SECONDS = 60
BASH = "bash --norc --noprofile"


class Screen:
    """A terminal of a certain width, in which bash runs."""

    def __init__(self, socket: Path, width: int) -> None:
        self.width = width
        self.count = 0  # of commands
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        environment = real_environment(PS1="$ ", TERM="xterm-256color", LC_ALL="C.UTF-8")
        subprocess.run(
            [
                *self._tmux,
                "new-session",
                "-d",
                "-x",
                str(width),
                "-y",
                "30",
                "bash --norc --noprofile",
            ],
            env=environment,
            check=True,
        )
        end = time.monotonic() + SECONDS
        while not self.shows():  # what is typed before bash reads would be lost
            assert time.monotonic() < end, "bash does not start"

    def type(self, text: str) -> None:
        """Type text, and Enter."""
        subprocess.run([*self._tmux, "send-keys", text, "Enter"], check=True)

    def press(self, key: str) -> None:
        """Press one key."""
        subprocess.run([*self._tmux, "send-keys", key], check=True)

    def penstock(self, words: str) -> None:
        """Run a command, and say when it has ended."""
        self.count += 1
        run = f"{shlex.quote(sys.executable)} -m penstock {words}"
        self.type(f"clear; {run}; echo end{self.count}-$?")

    def ended(self, code: int, colours: bool = False) -> list[str]:
        """The lines of the screen, once the command has ended with that exit code."""
        return self.shows(f"end{self.count}-{code}", colours=colours)

    def shows(self, *wanted: str, colours: bool = False) -> list[str]:
        """The lines of the screen, once all of these are on it."""
        end = time.monotonic() + SECONDS
        while True:
            words = [*self._tmux, "capture-pane", "-p", *(["-e"] if colours else [])]
            text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            if all(word in text for word in wanted):
                return [line.rstrip() for line in text.splitlines() if line.strip()]
            assert time.monotonic() < end, f"{wanted} did not come:\n{text}"

    def close(self) -> None:
        """End the terminal and what runs in it."""
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@pytest.fixture(params=[80, 200])
def screen(request: pytest.FixtureRequest, shell: Shell, tmp_path: Path) -> Iterator[Screen]:
    """A narrow terminal, and a wide one."""
    with penstock.open("orders", codec="json") as log:
        for n in range(3):
            log.append({"total": n, "text": "long " * 30}, topic="eu", key=b"k", time=n)
        log.consumer("billing").close()
    made = Screen(tmp_path / "tmux", request.param)
    yield made
    made.close()


def test_tables_and_colours(screen: Screen) -> None:
    """Tables fit the terminal, what is cut says so, and there are colours."""
    width = screen.width
    screen.penstock("consumer list orders")
    lines = screen.ended(0)
    row = next(line for line in lines if line.startswith("billing"))
    assert len(row) <= width and row.endswith("…") == (width == 80)
    screen.penstock("list .")
    lines = screen.ended(0)
    assert any(line.split()[:4] == ["orders", "segments", "1", "3"] for line in lines)
    screen.penstock("cat orders --utc --one")
    text = "\n".join(screen.ended(0, colours=True))
    assert "36m1970-01-01T00:00:00.000000000Z" in text


def test_errors_and_questions(screen: Screen) -> None:
    """An error is one sentence, not JSON; deleting asks, and no means no."""
    screen.penstock("cat none")
    text = " ".join(screen.ended(3))
    assert "penstock cat: " in text and "there is no log here" in text and "{" not in text
    screen.penstock("delete orders")
    screen.shows("[y/N]")
    screen.type("n")
    screen.ended(2)
    assert penstock.exists("orders")
    screen.penstock("delete orders")
    screen.shows("[y/N]")
    screen.type("y")
    screen.ended(0)
    assert not penstock.exists("orders")


def test_live(screen: Screen) -> None:
    """top draws over itself and follow prints what comes; Ctrl-C ends both with 130."""
    screen.penstock("top orders --interval 50ms")
    screen.shows("not durable", "1 logs")
    with penstock.open("orders") as log:
        log.append({"total": 4})
        lines = screen.shows(" yes ")
        assert sum("last seq" in line for line in lines) == 1
        screen.press("C-c")
        screen.ended(130)
        screen.penstock("follow orders --where 'data.total > 4'")
        screen.type("")  # it has begun, or will find the event by its place
        for total in range(5, 200):
            log.append({"total": total, "mark": "seen"})
            time.sleep(0.05)
            text = subprocess.run(
                [*screen._tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True
            ).stdout
            if "seen" in text:
                break
        screen.shows("seen")
        screen.press("C-c")
        screen.ended(130)
