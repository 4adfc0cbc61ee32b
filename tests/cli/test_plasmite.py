"""The steps of Plasmite's published conformance manifests, done with our commands.

The steps are told here in our own words; docs/cli.md has the table of what corresponds to what.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import penstock
from tests.cli.support import COMMAND, Shell, real_environment

ROOT = Path(__file__).parents[2]


def message(data: object, *tags: str) -> list[str]:
    """What appends one message."""
    words = [json.dumps(data)]
    for tag in tags:
        words += ["--tag", tag]
    return words


def test_create_append_get_tail(shell: Shell) -> None:
    """Create a pool of 1 MiB, append a message with a tag, get it by its seq, tail it."""
    shell("create", "chat.ring", "--ring", "1MiB", "--codec", "json")
    data = {"from": "alice", "msg": "hi"}
    assert shell("append", "chat.ring", *message(data, "greeting")).lines == ["1"]
    for words in (["get", "chat.ring", "1"], ["cat", "chat.ring", "--from", "1", "-n", "1"]):
        (found,) = shell(*words).values
        assert (found["seq"], found["data"], found["tags"]) == (1, data, ["greeting"])


def test_pool_administration(shell: Shell) -> None:
    """Create two, list both, ask for size and bounds of an empty one, delete one, list again."""
    for name in ("alpha.ring", "beta.ring"):
        shell("create", name, "--ring", "1MiB", "--codec", "json")
    assert [Path(row["path"]).name for row in shell("list").values] == ["alpha.ring", "beta.ring"]
    info = shell("info", "alpha.ring").values[0]
    assert (info["file_bytes"], info["oldest"], info["newest"], info["events"]) == (
        1 << 20,
        None,
        None,
        0,
    )
    shell("delete", "beta.ring", "--yes")
    assert [Path(row["path"]).name for row in shell("list").values] == ["alpha.ring"]


def test_errors_by_kind(shell: Shell) -> None:
    """A missing pool is NotFound with its path, a broken header is refused; and so on."""
    error = shell("get", "missing", "1", code=3).error
    assert error["kind"] == "NotFound" and error["path"].endswith("missing")
    shell("create", "corrupt.ring", "--ring", "1MiB", "--codec", "json")
    with open("corrupt.ring", "r+b") as file:
        file.write(b"NOPE" * 1024)
        for at in (4096, 8192):  # a copy of the header is in each of the next pages
            file.seek(at)
            file.write(b"\0" * 4096)
    error = shell("get", "corrupt.ring", "1", code=None).error
    assert error["kind"] in ("Corrupt", "Usage") and "corrupt.ring" in error["message"]
    penstock.create("ok.ring", ring="1MiB", codec="json").close()
    assert shell("append", "ok.ring", "not json", code=2).error["kind"] == "Usage"
    assert shell("get", "ok.ring", "7", code=3).error["kind"] == "NotFound"
    assert shell("create", "ok.ring", "--ring", "1MiB", code=4).error["kind"] == "AlreadyExists"
    with penstock.open("ok.ring"):
        assert shell("delete", "ok.ring", "--yes", code=5).error["kind"] == "Busy"


def test_many_processes(shell: Shell) -> None:
    """Four processes append at once; all four messages are there, whatever their order."""
    shell("create", "multi.ring", "--ring", "1MiB", "--codec", "json")
    writers = [
        subprocess.Popen(
            [*COMMAND, "append", "multi.ring", *message({"writer": name, "value": n}, name)],
            env=real_environment(),
            stdout=subprocess.DEVNULL,
        )
        for n, name in enumerate(("alpha", "beta", "gamma", "delta"), 1)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = shell("cat", "multi.ring", "--from", "1", "-n", "4").values
    assert {(row["data"]["writer"], row["data"]["value"], *row["tags"]) for row in found} == {
        ("alpha", 1, "alpha"),
        ("beta", 2, "beta"),
        ("gamma", 3, "gamma"),
        ("delta", 4, "delta"),
    }


def test_a_gap(shell: Shell) -> None:
    """What a small pool has overwritten is a Gap that says where to go on, or is passed over."""
    with penstock.create("gap.ring", ring="64KiB") as ring:
        for _ in range(100):
            ring.extend([b"x" * 1000] * 10)
    error = shell("cat", "gap.ring", "--from", "1", code=9).error
    assert error["kind"] == "Gap" and error["first_seq"] > 1
    done = shell("cat", "gap.ring", "--from", "1", "--skip-gaps", "--one", code=12)
    assert done.values[0]["seq"] == error["first_seq"]
    assert done.notices[0]["count"] == error["first_seq"] - 1


def test_the_table_names_commands() -> None:
    """Each of our commands in the table of docs/cli.md is one, with options that it has."""
    from penstock.cli.parser import command_parser

    table = (ROOT / "docs" / "cli.md").read_text().partition("## Plasmite's commands\n")[2]
    rows = [line for line in table.partition("\n## ")[0].splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 15
    for row in rows:
        for text in row.split("|")[2].split("`")[1::2]:
            words = text.split()
            if words[0] == "penstock":
                command_parser(words[1]).parse(words[2:])
