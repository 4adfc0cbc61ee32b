"""Exactly once into a database: the position in the caller's own transaction, over DB-API.

Nothing is known of the database but what PEP 249 says, and how sqlite3 and DuckDB begin a
transaction. A position is never in the database without the rows that go with it, nor these without
it: the database sees to that.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from penstock import _core
from penstock import layout as L
from penstock.consumers.into import check_commits, identity
from penstock.errors import Conflict, Corrupt, Usage, WrongType

if TYPE_CHECKING:
    from penstock.consumers.consumer import Consumer

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_STEP = "penstock_step"  # the savepoint that says whether a transaction is still the same
# The trackers that have a step under way, by the id of the connection.
_stepping: WeakValueDictionary[int, Tracker] = WeakValueDictionary()
_MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s"}


class Tracker:
    """Keeps a consumer's position in a table of a database.

    ``with`` it for one step: a transaction that ends with the position and a commit, or, after an
    exception, with a rollback, and the consumer goes back; so neither commit nor roll back in it.
    Or call ``save()`` in a transaction of
    your own, commit that, and then the consumer.
    """

    def __init__(self, consumer: Consumer[Any], connection: Any, table: str) -> None:
        consumer._open_file()
        check_commits(consumer)
        if not isinstance(table, str):
            raise WrongType(f"table must be str, got {type(table).__name__}")
        if not _NAME.fullmatch(table):
            raise Usage(
                f"table must be a name of letters, digits and underscores, or schema.name, got "
                f"{table!r}"
            )
        for method in ("commit", "rollback", "cursor"):
            if not callable(getattr(connection, method, None)):
                raise WrongType(
                    f"connection must be a DB-API connection, got {type(connection).__name__}"
                )
        self._consumer = consumer
        self._connection = connection
        self._table = table
        self._who = identity(consumer)
        self._begun = False
        self._made = False  # whether the table was committed, not only made in a transaction
        self._module = type(connection).__module__.partition(".")[0].lstrip("_")
        self._transaction: object = None  # of the step under way
        self._check_transactions()
        mark, second = self._marks()
        self._select = f"SELECT next_seq FROM {table} WHERE consumer = {mark}"
        self._insert = f"INSERT INTO {table} (next_seq, consumer) VALUES ({mark}, {second})"
        self._update = f"UPDATE {table} SET next_seq = {mark} WHERE consumer = {second}"
        if consumer._outstanding:
            raise Usage(
                f"{consumer.log.path}: track the consumer {consumer.name!r} before it hands out "
                "events, or commit them first: where to go on is in the database"
            )
        self._catch_up()

    def _check_transactions(self) -> None:
        """Refuse a connection that commits each statement by itself."""
        if getattr(self._connection, "autocommit", False) is True:
            raise Usage(
                "the connection must have transactions, got one with autocommit=True; set "
                "connection.autocommit = False"
            )

    def _marks(self) -> tuple[str, str]:
        """Two placeholders, in the words of the connection's module."""
        style = getattr(sys.modules.get(self._module), "paramstyle", "qmark")
        if style == "numeric":
            return ":1", ":2"
        mark = _MARKS.get(style)
        if mark is None:
            raise Usage(
                f"the connection's paramstyle must be qmark, format, pyformat or numeric, got "
                f"{style!r}"
            )
        return mark, mark

    def _catch_up(self) -> None:
        """Make the table if there is none, and go on where the database says."""
        self._begin()
        try:
            found = self._stored()
        finally:
            if self._begun:
                self._connection.commit()
                self._made = True
                self._begun = False
        consumer = self._consumer
        if found is None or found == consumer.position:
            return
        end = consumer.log.last_seq + 1
        if found > end:
            raise Conflict(
                f"{self._table}: has come to seq {found} of {consumer.log.path}, and that ends "
                f"before seq {end}: it lost events when the machine lost power, or is another "
                "copy. Process it under another name; durable=True, for the consumer, hands out "
                "only events that survive power loss",
                path=consumer.log.path,
                expected=end,
                found=found,
            )
        consumer._seek_to(found)

    @property
    def position(self) -> int | None:
        """The position in the database, as the connection sees it; None if there is none yet."""
        return self._stored()

    def save(self) -> None:
        """Store the consumer's position in the transaction under way; commit it yourself."""
        place = self._consumer.position
        known = self._stored() is not None
        self._run(self._update if known else self._insert, (place, self._who))

    def __enter__(self) -> Tracker:
        consumer = self._consumer
        consumer._open_file()
        if consumer._stepping:
            raise Usage(
                f"{consumer.log.path}: the consumer {consumer.name!r} has a step under way; end it "
                "first"
            )
        if id(self._connection) in _stepping:
            raise Usage(
                f"{self._table}: the connection has a step of another consumer under way, and a "
                "step is a transaction; end it first, or call save() of both in a transaction of "
                "your own"
            )
        self._begin()
        self._mark_transaction()
        _stepping[id(self._connection)] = self
        consumer._stepping = True
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        consumer = self._consumer
        consumer._stepping = self._begun = False
        _stepping.pop(id(self._connection), None)
        try:
            if kind is None:
                self._check_transaction()
                self.save()
                _core.fail_point("consumer.saved")
                self._connection.commit()
        except BaseException:
            kind = BaseException
            raise
        finally:
            if kind is not None:
                if not consumer.closed:
                    consumer._seek_to(consumer._since)
                self._connection.rollback()
        if kind is None:
            _core.fail_point("consumer.tracked")
            consumer.commit()

    def _begin(self) -> None:
        """Begin a transaction, unless one is under way; most drivers do so by themselves."""
        connection = self._connection
        if isinstance(connection, sqlite3.Connection):
            if not connection.in_transaction:
                connection.execute("BEGIN")
                self._begun = True
            return
        begin = getattr(connection, "begin", None)
        if callable(begin):
            try:
                begin()
            except Exception as error:
                if "within a transaction" not in str(error):
                    raise
                return
        self._begun = True

    def _mark_transaction(self) -> None:
        """Note which transaction the step is in, where a database can say."""
        if isinstance(self._connection, sqlite3.Connection):
            self._run(f"SAVEPOINT {_STEP}")
        elif self._module == "duckdb":
            self._transaction = self._duckdb_transaction()

    def _check_transaction(self) -> None:
        """Raise if the caller ended it, and so has rows without the position, or this without rows.

        Of a database that is neither SQLite nor DuckDB nothing is known.
        """
        if isinstance(self._connection, sqlite3.Connection):
            try:
                self._run(f"RELEASE {_STEP}")
                return
            except sqlite3.OperationalError as error:
                if "savepoint" not in str(error):
                    raise
        elif (
            self._module != "duckdb"
            or self._run("SELECT txid_current()").fetchone() == self._transaction
        ):
            return
        self._begin()  # for the rollback to come, which DuckDB refuses outside of a transaction
        raise Usage(
            f"{self._table}: the transaction of this step was ended inside it, so its rows and the "
            "position are not one transaction; the position was not stored, and the events are "
            "handed out again. Leave commit and rollback to the tracker"
        )

    def _duckdb_transaction(self) -> object:
        return self._run("SELECT txid_current()").fetchone()

    def _stored(self) -> int | None:
        if not self._made:
            self._run(
                f"CREATE TABLE IF NOT EXISTS {self._table} "
                "(consumer VARCHAR(255) PRIMARY KEY, next_seq BIGINT NOT NULL)"
            )
        row = self._run(self._select, (self._who,)).fetchone()
        if row is None:
            return None
        found = row["next_seq"] if isinstance(row, Mapping) else row[0]
        try:
            seq = int(found)
        except (TypeError, ValueError):
            seq = 0
        if not 0 < seq <= L.SEQ_MAX + 1:
            raise Corrupt(
                f"{self._table}: next_seq of the consumer {self._who!r} must be a seq, got "
                f"{found!r}; put it right in the database",
                path=self._table,
            )
        return seq

    def _run(self, statement: str, values: tuple[object, ...] = ()) -> Any:
        """Run a statement in the connection's own transaction: of DuckDB, a cursor has another."""
        execute = getattr(self._connection, "execute", None)
        if callable(execute):
            return execute(statement, values)
        cursor = self._connection.cursor()
        cursor.execute(statement, values)
        return cursor
