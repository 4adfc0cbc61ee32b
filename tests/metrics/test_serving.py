"""Metrics over HTTP, in a file, and through prometheus_client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.validate import validator

import prometheus_client
import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed_text

import penstock
from penstock import metrics


class Quiet(WSGIRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The URL of a real server that runs the application, checked against the WSGI rules."""
    with make_server("127.0.0.1", 0, validator(app), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def test_a_real_request(path: Path) -> None:
    """A scrape over HTTP gets the numbers of that moment, in the format that it accepts."""
    with penstock.open(path) as log, served(metrics.wsgi_app(path)) as url:
        for count in (1, 2):
            log.append(b"a")
            with urllib.request.urlopen(url) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                body = answer.read().decode()
            numbers = {s.name: s.value for f in parsed_text(body) for s in f.samples}
            assert numbers["penstock_appends_total"] == count
        accepting = {"Accept": "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"}
        with urllib.request.urlopen(urllib.request.Request(url, headers=accepting)) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            families = openmetrics.text_string_to_metric_families(  # type: ignore[no-untyped-call]
                answer.read().decode()
            )
            assert "penstock_appends" in {family.name for family in families}


def test_other_methods(path: Path) -> None:
    """HEAD has no body, and what would change something is refused."""
    with served(metrics.wsgi_app(path)) as url:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            assert int(answer.headers["Content-Length"]) > 0
            assert answer.read() == b""
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b"x"))
        with caught.value as refused:
            assert (refused.code, refused.headers["Allow"]) == (405, "GET, HEAD")


def test_a_request_for_a_log_that_is_gone(path: Path) -> None:
    """The answer is 200 and says that the log is down."""
    with served(metrics.wsgi_app(path)) as url, urllib.request.urlopen(url) as answer:
        assert answer.status == 200
        assert f'penstock_up{{log="{path}"}} 0' in answer.read().decode()


def test_asgi(path: Path) -> None:
    """The ASGI application answers GET, HEAD and others, and takes part in the lifespan."""
    app = metrics.asgi_app(path)

    async def call(
        method: str, headers: list[tuple[bytes, bytes]]
    ) -> tuple[int, dict[bytes, Any], bytes]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await app({"type": "http", "method": method, "headers": headers}, receive, send)
        start, body = sent
        return start["status"], dict(start["headers"]), body["body"]

    async def live() -> list[str]:
        coming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        sent: list[str] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        async def receive() -> Any:
            return coming.pop(0)

        await app({"type": "lifespan"}, receive, send)
        return sent

    with penstock.open(path) as log:
        log.append(b"a")
        status, headers, body = asyncio.run(call("GET", []))
        assert (status, int(headers[b"content-length"])) == (200, len(body))
        assert f'penstock_appends_total{{log="{path}"}} 1\n' in body.decode()
        asked = [(b"accept", b"application/openmetrics-text")]
        assert asyncio.run(call("GET", asked))[2].endswith(b"# EOF\n")
        assert asyncio.run(call("HEAD", []))[::2] == (200, b"")
        assert asyncio.run(call("DELETE", []))[0] == 405
    assert asyncio.run(live()) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(ValueError, match="http"):
        asyncio.run(app({"type": "websocket"}, None, None))  # type: ignore[arg-type]


WRITER = """
import sys
from penstock import metrics
print("ready", flush=True)
for _ in range(100):
    metrics.write_file(sys.argv[1], sys.argv[2])
"""


FULL = "penstock_disk_full_timestamp_seconds"


def test_the_file_is_replaced_in_one_step(path: Path, tmp_path: Path) -> None:
    """While two processes write it, a reader never sees a part of the file; no other is left."""
    target = tmp_path / "out" / "penstock.prom"
    target.parent.mkdir()
    with penstock.open(path) as log:
        log.append(b"a")
        metrics.write_file(target, path, openmetrics=False)
        # The day on which the disk is full can be told only of a log that is a second old.
        whole = {one.family.name for one in metrics.samples(path)} - {FULL}
        run = [sys.executable, "-c", WRITER, str(target), str(path)]
        writers = [subprocess.Popen(run, stdout=subprocess.PIPE) for _ in range(2)]
        try:
            looks = 0
            while any(writer.poll() is None for writer in writers):
                families = {one.name for one in parsed_text(target.read_text()) if one.samples}
                assert families - {FULL} == whole
                looks += 1
            assert looks > 0
            assert [writer.wait() for writer in writers] == [0, 0]
        finally:
            for writer in writers:
                writer.kill()
                writer.communicate()
    assert [found.name for found in target.parent.iterdir()] == ["penstock.prom"]
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_file_that_cannot_be_written(path: Path, tmp_path: Path) -> None:
    """The error is typed, and the old file stays."""
    with pytest.raises(penstock.Usage, match="must be a file"):
        metrics.write_file(tmp_path, path)
    with pytest.raises(penstock.NoSuchLog):
        metrics.write_file(tmp_path / "no" / "logs.prom", path)
    assert list(tmp_path.iterdir()) == []


def test_prometheus_client(path: Path) -> None:
    """A registry with a Collector exposes the same samples as our own text."""
    registry = prometheus_client.CollectorRegistry()
    with penstock.open(path) as log:
        log.append(b"a")
        log.consumer("billing").close()
        registry.register(metrics.Collector(path))

        def steady(text: str) -> set[tuple[str, str]]:
            return {
                (one.name, json.dumps(one.labels, sort_keys=True))
                for family in parsed_text(text)
                for one in family.samples
            }

        assert steady(prometheus_client.generate_latest(registry).decode()) == steady(
            metrics.text(path)
        )
        labels = {"log": str(path), "consumer": "billing"}
        assert registry.get_sample_value("penstock_consumer_lag_events", labels) == 1


def test_without_prometheus_client() -> None:
    """Without that package all else works, and the error says what to install."""
    program = (
        "import sys\n"
        "sys.modules['prometheus_client'] = None\n"
        "import penstock\n"
        "from penstock import metrics\n"
        "assert metrics.text('nowhere')\n"
        "try:\n"
        "    metrics.Collector('nowhere')\n"
        "except penstock.NotInstalled as error:\n"
        "    assert 'pip install' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
