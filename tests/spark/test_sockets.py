"""The wait between the two messages of a task, which ends when a reader is unpickled."""

from __future__ import annotations

import json
import pickle
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.spark import sockets
from penstock.spark.read.source import TableReader, schema
from penstock.spark.read.stream import StreamReader

UNACKNOWLEDGED = slice(24, 28)  # tcpi_unacked in Linux's struct tcp_info


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A JVM's and a worker's end of a connection over which a task has been answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        jvm = socket.create_connection(server.getsockname())
        worker, _ = server.accept()
    with jvm, worker:
        for _ in range(20):  # both kernels take it for a conversation, and delay what they can
            jvm.sendall(b"task")
            worker.recv(100)
            worker.sendall(b"answer")
            jvm.recv(100)
        yield jvm, worker


def unacknowledged(end: socket.socket) -> int:
    """How many segments that were sent the other side has not acknowledged."""
    info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack("=I", info[UNACKNOWLEDGED])[0])


@pytest.mark.parametrize("kind", [TableReader, StreamReader])
def test_a_reader_has_the_message_acknowledged_in_which_it_came(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket], kind: Any
) -> None:
    """Else the JVM keeps the split back for 40 ms, in every task."""
    penstock.open(tmp_path / "log").close()
    given = {"paths": json.dumps([str(tmp_path / "log")])}
    message = pickle.dumps(kind(given, schema(given)))
    jvm, worker = connection
    jvm.sendall(message)
    received = b""
    while len(received) < len(message):
        received += worker.recv(1 << 16)
    reader = pickle.loads(received)
    assert unacknowledged(jvm) == 0
    assert isinstance(reader, kind)


def test_other_descriptors_are_left_alone(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket]
) -> None:
    """Files, datagrams and Unix sockets stay open and as they are, and so does the connection."""
    jvm, worker = connection
    left, right = socket.socketpair()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with left, right, datagrams, (tmp_path / "file").open("w") as file:
        sockets.acknowledge()
        left.sendall(b"still")
        assert right.recv(10) == b"still"
        datagrams.bind(("127.0.0.1", 0))
        file.write("there")
        file.flush()
    jvm.sendall(b"here")
    assert worker.recv(10) == b"here"
