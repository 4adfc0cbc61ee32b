"""``penstock steward``."""

from __future__ import annotations

import signal

import penstock
from tests.cli.support import Shell, picture, started


def filled() -> None:
    """A log of three segments, of which it is to keep one."""
    with penstock.open("a") as log:
        for n in range(3):
            log.append(b"%d" % n, time=f"2026-01-0{n + 1}T00:00Z")
            log.steward.roll()
        log.append(b"last")


def test_retain(shell: Shell) -> None:
    """A dry run writes nothing and says what would go; then it goes."""
    filled()
    shell("configure", "a", "keep_segments=1")
    before = picture("a")
    (plan,) = shell("steward", "retain", "a", "--dry-run").values
    assert picture("a") == before and plan["new_first_seq"] == 4
    assert "a" in shell("steward", "retain", "a", "--dry-run", terminal=True).text
    shell("steward", "retain", "a")
    with penstock.open("a", "r") as log:
        assert log.first_seq == 4


def test_trim(shell: Shell) -> None:
    """It asks, takes a seq or a time, and a dry run writes nothing."""
    filled()
    before = picture("a")
    assert shell("steward", "trim", "a", "--before", "3", "--dry-run").values[0]["first_seq"] == 3
    assert picture("a") == before
    shell("steward", "trim", "a", "--before", "3", code=2)
    shell("steward", "trim", "a", "--before", "2026-01-02T00:00Z", "--yes")
    assert [row["seq"] for row in shell("cat", "a").values] == [2, 3, 4]
    shell("steward", "trim", "a", "--before", "9", "--yes", code=2)
    shell("cat", "a", "--from", "1", code=9)


def test_why_and_roll(shell: Shell) -> None:
    """why says what became of a seq; roll begins a segment."""
    filled()
    shell("steward", "trim", "a", "--before", "2", "--yes")
    states = [shell("steward", "why", "a", "--seq", str(n)).values[0]["state"] for n in (1, 2, 9)]
    assert states == ["gone", "there", "to come"]
    assert shell("steward", "roll", "a").values == [{"active_first_seq": 5}]


def test_run(shell: Shell) -> None:
    """run retains until Ctrl-C, which ends it with 130."""
    filled()
    shell("configure", "a", "keep_segments=1")
    with started("steward", "run", "a", "--every", "10ms") as process:
        with penstock.open("a", "r") as log:
            while log.first_seq < 4:
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (130, b"")


def keyed() -> None:
    """A log of one sealed segment: two keys, and older events of one of them."""
    with penstock.open("a") as log:
        for value in (b"1", b"2", b"3"):
            log.append(value, key=b"ann")
        log.append(b"secret", key=b"bob")
        log.append(b"no key")
        log.steward.roll()


def values() -> list[bytes]:
    """The values that are there."""
    with penstock.open("a", "r") as log:
        return [event.value for event in log]


def test_compact(shell: Shell) -> None:
    """A dry run writes nothing and says what would go; then it asks, and it goes."""
    keyed()
    before = picture("a")
    (plan,) = shell("steward", "compact", "a", "--dry-run").values
    assert (plan["dry_run"], plan["events"], plan["dead"]) == (True, 5, 2)
    assert "would remove 2" in shell("steward", "compact", "a", "--dry-run", terminal=True).text
    assert picture("a") == before
    shell("steward", "compact", "a", code=2)
    assert len(values()) == 5
    shell("steward", "compact", "a", "--versions", "2", "--yes")
    assert values() == [b"2", b"3", b"secret", b"no key"]
    words = ("--drop-keyless", "--grace", "1s", "--memory", "1MiB", "--timeout", "5s")
    shell("steward", "compact", "a", *words, stdin=b"yes\n", terminal=True)
    assert values() == [b"3", b"secret"]


def test_erase(shell: Shell) -> None:
    """A dry run writes nothing; then no file has a byte of the key, and others stay."""
    keyed()
    before = picture("a")
    (plan,) = shell("steward", "erase", "a", "--key", "bob", "--dry-run").values
    assert (plan["dry_run"], plan["events"], plan["complete"]) == (True, 1, False)
    assert picture("a") == before
    shell("steward", "erase", "a", "--key", "bob", code=2)
    assert b"secret" in values()
    (done,) = shell("steward", "erase", "a", "--key", "bob", "--yes").values
    assert (done["events"], done["complete"]) == (1, True)
    assert values() == [b"1", b"2", b"3", b"no key"]
    assert not any(b"secret" in data for _, _, data in picture("a").values())


def test_erase_says_what_remains(shell: Shell) -> None:
    """While a reader is in an old file, the exit code is 12, and the file is named."""
    keyed()
    with penstock.open("a", "r") as log:
        event = log[4]
        words = ("steward", "erase", "a", "--key", "bob", "--yes", "--timeout", "0")
        done = shell.real(*words, code=12)
        assert done.values[0]["remaining"] and done.notices[-1]["kind"] == "skipped"
        assert event.value == b"secret"
        del event
    shell("steward", "erase", "a", "--key", "bob", "--yes")


def test_run_compacts(shell: Shell) -> None:
    """With --compact-at run compacts as well."""
    keyed()
    words = ("--every", "10ms", "--compact-at", "0.1", "--versions", "2", "--drop-keyless")
    with started("steward", "run", "a", *words) as process:
        while values() != [b"2", b"3", b"secret"]:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 143


def test_what_does_not_go_together(shell: Shell) -> None:
    """No option is ignored."""
    filled()
    for words in (
        ["trim", "a"],
        ["why", "a"],
        ["why", "a", "--seq", "x"],
        ["roll", "a", "--dry-run"],
        ["retain", "a", "--before", "1"],
        ["run", "a", "--every", "soon"],
        ["compress", "a"],
        ["compact", "a", "--versions", "0", "--yes"],
        ["compact", "a", "--grace", "soon", "--yes"],
        ["compact", "a", "--memory", "much", "--yes"],
        ["compact", "a", "--key", "k", "--yes"],
        ["erase", "a", "--yes"],
        ["erase", "a", "--key", "k", "--versions", "2", "--yes"],
        ["retain", "a", "--timeout", "1s"],
        ["run", "a", "--versions", "2"],
        ["run", "a", "--compact-at", "2"],
        ["run", "a", "--compact-at", "nan"],
    ):
        shell("steward", *words, code=2)
    shell("steward", "retain", "none", code=3)
