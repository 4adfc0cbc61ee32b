"""Logs to archive, and object servers on loopback that keep them."""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from penstock.archive import depots
from tests.archive.faulty_proxy import FaultyProxy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path where no log is yet."""
    return tmp_path / "log"


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of a server that speaks S3."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def proxy(s3_port: int) -> Iterator[FaultyProxy]:
    """What stands between the object server and its clients, and can fail."""
    with FaultyProxy(s3_port) as proxy:
        yield proxy


@pytest.fixture
def s3(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty place in an object store, through the proxy."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(depots, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(depots, "TIMEOUT_SECONDS", 2)
    bucket = f"b{uuid.uuid4().hex[:12]}"
    made = urllib.request.Request(f"http://127.0.0.1:{proxy.port}/{bucket}", method="PUT")
    with urllib.request.urlopen(made) as answer:
        assert answer.status == 200
    return f"s3://{bucket}/logs"


@pytest.fixture(params=["inside", "directory", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Each kind of place for an archive; None: inside the log's directory."""
    if request.param == "s3":
        url: str = request.getfixturevalue("s3")
        return url
    if request.param == "memory":
        return f"memory:///{uuid.uuid4().hex}"
    return None if request.param == "inside" else str(tmp_path / "elsewhere" / "archives")
