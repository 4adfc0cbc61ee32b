"""A proxy on loopback between an object server and its clients, which fails as it is told."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

FAULTS = ("500", "503", "drop", "lost", "cut", "slow")


class FaultyProxy:
    """Each fault in ``plan`` is used up by the next request of that method.

    "500" and "503" are answers of the server; "drop" ends the connection before the request is
    passed on, "lost" after it was done; "cut" gives half of the body; "slow" answers when the
    client has given up.
    """

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.plan: dict[str, deque[str]] = {}
        self.requests: list[tuple[str, str]] = []
        self.over = threading.Event()
        self.stopped = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return lambda: proxy.handle(self)
                raise AttributeError(name)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail(self, method: str, *faults: str) -> None:
        """Fail the next requests of that method, one after the other."""
        assert set(faults) <= set(FAULTS)
        self.plan.setdefault(method, deque()).extend(faults)

    def stop(self) -> None:
        """Answer nobody from now on."""
        self.stopped = True

    def handle(self, client: BaseHTTPRequestHandler) -> None:
        body = client.rfile.read(int(client.headers.get("Content-Length", 0)))
        if self.stopped:
            self.hang_up(client)
            return
        faults = self.plan.get(client.command)
        fault = faults.popleft() if faults else ""
        self.requests.append((client.command, fault))
        if fault in ("500", "503"):
            self.answer(client, int(fault), {}, b"")
        elif fault == "drop":
            self.hang_up(client)
        elif fault == "slow":
            self.over.wait(20)
            self.hang_up(client)
        else:
            status, headers, data = self.forward(client, body)
            if fault == "lost":
                self.hang_up(client)
            elif fault == "cut":
                client.send_response(status)
                for name, value in headers.items():
                    client.send_header(name, value)
                client.send_header("Content-Length", str(len(data)))
                client.end_headers()
                client.wfile.write(data[: len(data) // 2])
                self.hang_up(client)
            else:
                self.answer(client, status, headers, data)

    def forward(
        self, client: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Pass a request on; its answer."""
        onward = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=30)
        try:
            headers = {k: v for k, v in client.headers.items() if k.lower() != "connection"}
            onward.request(client.command, client.path, body, headers)
            answer = onward.getresponse()
            data = answer.read()
            skipped = ("content-length", "transfer-encoding", "connection")
            kept = {k: v for k, v in answer.getheaders() if k.lower() not in skipped}
            if client.command == "HEAD":
                kept["Content-Length"] = answer.getheader("Content-Length", "0")
            return answer.status, kept, data
        finally:
            onward.close()

    def answer(
        self, client: BaseHTTPRequestHandler, status: int, headers: dict[str, str], data: bytes
    ) -> None:
        client.send_response(status)
        for name, value in headers.items():
            client.send_header(name, value)
        if "Content-Length" not in headers:
            client.send_header("Content-Length", str(len(data)))
        client.end_headers()
        client.wfile.write(data)

    def hang_up(self, client: BaseHTTPRequestHandler) -> None:
        client.close_connection = True
        client.wfile.flush()
        client.connection.shutdown(socket.SHUT_RDWR)
