"""Metrics over HTTP, as a WSGI or an ASGI application, for any server or framework to mount.

A request is answered whatever state the logs are in. The path of the URL is not looked at: what
mounts the application chooses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from penstock.metrics.exposing import OPENMETRICS_TYPE, TEXT_TYPE, text
from penstock.metrics.samples import Logs, listed

Environ: TypeAlias = "dict[str, Any]"
WsgiApp: TypeAlias = "Callable[[Environ, Callable[..., Any]], Iterable[bytes]]"
AsgiApp: TypeAlias = "Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]"  # noqa: E501

_ALLOWED = ("GET", "HEAD")
_REFUSED = b"metrics are only read: use GET\n"


def wsgi_app(logs: Logs) -> WsgiApp:
    """A WSGI application that answers each GET with the metrics of the logs.

    A client that accepts OpenMetrics gets that, others Prometheus text.

    >>> from wsgiref.util import setup_testing_defaults
    >>> log = penstock.open(path)
    >>> environ = {}
    >>> setup_testing_defaults(environ)
    >>> body = b"".join(wsgi_app(log)(environ, lambda status, headers: print(status)))
    200 OK
    >>> body.startswith(b"# HELP penstock_up")
    True
    """
    given = listed(logs)

    def app(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        method = environ.get("REQUEST_METHOD", "GET")
        if method not in _ALLOWED:
            start_response("405 Method Not Allowed", _headers("text/plain", _REFUSED, allow=True))
            return [_REFUSED]
        kind, body = _answer(given, environ.get("HTTP_ACCEPT", ""))
        start_response("200 OK", _headers(kind, body))
        return [] if method == "HEAD" else [body]

    return app


def asgi_app(logs: Logs) -> AsgiApp:
    """An ASGI application that answers each GET with the metrics of the logs.

    The logs are read in a thread, so that the event loop goes on meanwhile.

    >>> import asyncio
    >>> log = penstock.open(path)
    >>> async def send(message):
    ...     print(message.get("status", "body"))
    >>> asyncio.run(asgi_app(log)({"type": "http", "method": "GET", "headers": []}, None, send))
    200
    body
    """
    given = listed(logs)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"metrics are served over http, got {scope['type']!r}")
        import asyncio

        method = scope.get("method", "GET")
        status, kind, body = 405, "text/plain", _REFUSED
        if method in _ALLOWED:
            accepted = b",".join(value for name, value in scope["headers"] if name == b"accept")
            status = 200
            kind, body = await asyncio.to_thread(_answer, given, accepted.decode("latin-1"))
        headers = _headers(kind, body, allow=status == 405)
        raw = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    return app


async def _live(receive: Any, send: Any) -> None:
    """Tell a server that the application is ready, and when it has ended."""
    while True:
        what = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{what}.complete"})
        if what == "shutdown":
            return


def _answer(logs: Logs, accepted: str) -> tuple[str, bytes]:
    """The content type that the client accepts, and the metrics in it."""
    openmetrics = "application/openmetrics-text" in accepted
    return OPENMETRICS_TYPE if openmetrics else TEXT_TYPE, text(
        logs, openmetrics=openmetrics
    ).encode()


def _headers(kind: str, body: bytes, *, allow: bool = False) -> list[tuple[str, str]]:
    found = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    return [*found, ("Allow", ", ".join(_ALLOWED))] if allow else found
