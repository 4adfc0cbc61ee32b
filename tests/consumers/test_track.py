"""Exactly once into a database: rows and position are one transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import penstock
from penstock import Conflict, Log, Usage, WrongType

Connect = Callable[[], Any]


class Manual(sqlite3.Connection):
    """What a connection with autocommit=False is, which Python has from 3.12: always in a
    transaction, the next of which begins when one ends."""

    autocommit = False

    def __init__(self, database: Any) -> None:
        super().__init__(database, isolation_level=None)
        self.execute("BEGIN")

    def commit(self) -> None:
        super().commit()
        self.execute("BEGIN")

    def rollback(self) -> None:
        super().rollback()
        self.execute("BEGIN")


@pytest.fixture(params=["sqlite3", "sqlite3 without isolation", "sqlite3 manual", "duckdb"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connect]:
    """What connects to one database of each dialect; it has a table of letters."""
    opened: list[Any] = []

    def connect_again() -> Any:
        for connection in opened:
            connection.close()
        if request.param == "duckdb":
            connection = duckdb.connect(str(tmp_path / "db"))
        elif request.param == "sqlite3":
            connection = sqlite3.connect(tmp_path / "db")
        elif request.param == "sqlite3 manual":
            connection = Manual(tmp_path / "db")
        else:
            connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS letters (letter VARCHAR)")
        connection.commit()
        opened.append(connection)
        return connection

    yield connect_again
    for connection in opened:
        connection.close()


def letters(connection: Any) -> list[str]:
    return [row[0] for row in connection.execute("SELECT letter FROM letters").fetchall()]


def take(consumer: penstock.Consumer, connection: Any, count: int = 100) -> None:
    for event in consumer.poll(count):
        connection.execute("INSERT INTO letters VALUES (?)", (event.value.decode(),))


def test_rows_and_position_are_one_transaction(log: Log, connect: Connect) -> None:
    """The database says where to go on, whatever became of the consumer's own place."""
    log.extend([b"a", b"b", b"c"])
    connection = connect()
    with log.consumer("c") as consumer:
        tracker = consumer.track(connection)
        assert tracker.position is None
        with tracker:
            take(consumer, connection, 2)
        assert [tracker.position, consumer.committed] == [3, 3]
    log.consumers().delete("c")
    connection = connect()
    with log.consumer("c") as consumer, consumer.track(connection):
        take(consumer, connection)
    assert letters(connect()) == ["a", "b", "c"]


def test_an_exception_rolls_back(log: Log, connect: Connect) -> None:
    """Neither rows nor position are there, and the events are handed out again."""
    log.extend([b"a", b"b"])
    connection = connect()
    with log.consumer("c") as consumer:
        tracker = consumer.track(connection, table="places")
        with tracker:
            take(consumer, connection, 1)
        with pytest.raises(RuntimeError), tracker:
            take(consumer, connection)
            raise RuntimeError
        assert (letters(connection), tracker.position, consumer.position) == (["a"], 2, 2)
        with tracker:
            take(consumer, connection)
    assert letters(connect()) == ["a", "b"]


def test_the_first_step_may_fail(log: Log, connect: Connect) -> None:
    """A rollback takes along a table that track() made in that transaction: it is made again."""
    log.extend([b"a", b"b"])
    connection = connect()
    with log.consumer("c") as consumer:
        tracker = consumer.track(connection)
        with pytest.raises(RuntimeError), tracker:
            take(consumer, connection)
            raise RuntimeError
        assert (tracker.position, consumer.position, letters(connection)) == (None, 1, [])
        with tracker:
            take(consumer, connection)
    assert letters(connect()) == ["a", "b"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_ends_inside_a_step(log: Log, connect: Connect, end: str) -> None:
    """It raises and stores no position, which would pass over rows that were rolled back."""
    log.extend([b"a", b"b", b"c"])
    connection = connect()
    with log.consumer("c") as consumer:
        tracker = consumer.track(connection)
        with tracker:
            take(consumer, connection, 1)
        with pytest.raises(Usage, match="ended inside it"), tracker:
            take(consumer, connection, 1)
            getattr(connection, end)()
            connection.execute("SELECT 1")
        assert (tracker.position, consumer.position, consumer.committed) == (2, 2, 2)
        with tracker:
            take(consumer, connection)
    assert letters(connect()) == ["a", *(["b"] if end == "commit" else []), "b", "c"]


def test_rows_of_any_kind(log: Log) -> None:
    """A connection may give rows as dictionaries, or as sqlite3.Row."""
    log.extend([b"a", b"b"])
    connection = sqlite3.connect(":memory:")
    with log.consumer("c") as consumer:
        for factory in (
            lambda cursor, row: {c[0]: v for c, v in zip(cursor.description, row, strict=True)},
            sqlite3.Row,
        ):
            connection.row_factory = factory
            tracker = consumer.track(connection)
            with tracker:
                consumer.poll(1)
            assert tracker.position == consumer.position


@pytest.mark.parametrize("odd", [0, -5, "abc", None, 1 << 62, b"x"])
def test_odd_positions(log: Log, odd: Any) -> None:
    """A position that somebody put into the table, and that is none, raises; nothing moves."""
    log.append(b"a")
    connection = sqlite3.connect(":memory:")
    with log.consumer("c") as consumer:
        with consumer.track(connection, "t"):
            consumer.poll()
        connection.execute("CREATE TABLE odd AS SELECT * FROM t")  # without its NOT NULL
        connection.execute("UPDATE odd SET next_seq = ?", (odd,))
        connection.commit()
        with pytest.raises((penstock.Corrupt, Conflict), match="odd: "):
            consumer.track(connection, "odd")
        assert consumer.position == 2


def test_save_is_part_of_a_transaction_of_yours(log: Log, connect: Connect) -> None:
    """save() stores the position and commits nothing."""
    log.extend([b"a", b"b"])
    connection = connect()
    with log.consumer("c") as consumer:
        tracker = consumer.track(connection)
        for end in (connection.rollback, connection.commit):
            consumer.seek("start")
            if not getattr(connection, "in_transaction", False):
                connection.execute("BEGIN")
            take(consumer, connection)
            tracker.save()
            end()
    connection = connect()
    assert letters(connection) == ["a", "b"]
    with log.consumer("c") as consumer:
        assert consumer.position == 1
        consumer.track(connection)
        assert consumer.position == 3


def test_several_consumers_share_a_table(log: Log, connect: Connect) -> None:
    """Each has a row of its own, and no other changes."""
    log.extend([b"a", b"b"])
    connection = connect()
    with log.consumer("one") as one, log.consumer("two") as two:
        with one.track(connection):
            one.poll(1)
        with two.track(connection):
            two.poll(2)
        assert (one.track(connection).position, two.track(connection).position) == (2, 3)


@pytest.mark.parametrize("table", ["", "a b", "x; DROP TABLE letters", 'a"b', "1a", None, b"t"])
def test_odd_tables(log: Log, table: Any) -> None:
    """A table is a plain name, never a piece of SQL."""
    connection = sqlite3.connect(":memory:")
    with log.consumer("c") as consumer, pytest.raises(Usage, match="table must be"):
        consumer.track(connection, table)


def test_odd_connections(log: Log) -> None:
    """What is no connection is refused, and so is one that has no transactions."""
    log.append(b"a")
    with log.consumer("c") as consumer:
        for odd in (None, "db", object(), log):
            with pytest.raises(WrongType, match="DB-API"):
                consumer.track(odd)

        class Auto(sqlite3.Connection):
            autocommit = True

        with pytest.raises(Usage, match="autocommit"):
            consumer.track(Auto(":memory:"))
        consumer.poll()
        with pytest.raises(Usage, match="before it hands out"):
            consumer.track(sqlite3.connect(":memory:"))


def test_every_paramstyle(log: Log) -> None:
    """Placeholders are those of the connection's module."""
    from penstock.consumers.track import Tracker

    with log.consumer("c") as consumer:
        tracker = Tracker(consumer, sqlite3.connect(":memory:"), "t")
        found = {}
        for style in ("qmark", "format", "pyformat", "numeric"):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sqlite3, "paramstyle", style)
                found[style] = tracker._marks()
        assert found == {
            "qmark": ("?", "?"),
            "format": ("%s", "%s"),
            "pyformat": ("%s", "%s"),
            "numeric": (":1", ":2"),
        }


def test_a_log_that_lost_events(log: Log, tmp_path: Path) -> None:
    """If the log ends before what the database has, its next events are not passed over."""
    log.append(b"a")
    copy = tmp_path / "copy"
    log.backup(copy)
    log.append(b"b")
    connection = sqlite3.connect(":memory:")
    with log.consumer("c") as consumer, consumer.track(connection):
        consumer.poll()
    with (
        penstock.open(copy) as older,
        older.consumer("c") as consumer,
        pytest.raises(Conflict, match="lost events"),
    ):
        consumer.track(connection)


def test_one_step_at_a_time(log: Log, connect: Connect) -> None:
    """A step within that of another consumer, in the same connection, would end its transaction:
    it is refused, and nothing is stored. save() stores the positions of both in one."""
    log.extend([b"a", b"b"])
    connection = connect()
    with log.consumer("one") as one, log.consumer("two") as two:
        first, second = one.track(connection), two.track(connection)
        with pytest.raises(Usage, match="another consumer under way"), first:
            take(one, connection)
            second.__enter__()
        assert letters(connection) == []
        assert (one.position, two.position, first.position, second.position) == (1, 1, None, None)
        with first:
            take(one, connection)
        with second:
            take(two, connection)
        assert letters(connection) == ["a", "b"] * 2
        assert (first.position, second.position) == (3, 3)
