"""``penstock verify``."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from penstock.cli import options, outcome
from penstock.cli.out import Out
from penstock.cli.paths import path_of
from penstock.cli.progress import Progress
from penstock.cli.registry import Example
from penstock.errors import Corrupt, PenstockError

ABOUT = """\
Check every frame, index, footer and checkpoint of logs, also of those that cannot be opened.
Writers may go on. Nothing is changed. Exit code 7 if there is damage."""
EXAMPLES = (
    Example("penstock verify orders", "what is damaged, and what to do"),
    Example("penstock list data -n | xargs penstock verify --quiet", "all logs; only what is bad"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    options.add_logs(parser)


def run(given: argparse.Namespace, out: Out) -> int | None:
    from penstock.opening import verify

    code = 0
    for name in given.logs:
        path = path_of(name)
        try:
            with Progress(out, f"checking {path}") as progress:
                report = verify(path, progress=progress.callback)
        except PenstockError as error:
            if len(given.logs) == 1:
                raise
            outcome.report(error, out.command, out.json_errors)
            code = code or error.exit_code
            continue
        if not report.ok:
            code = Corrupt.exit_code
        if out.json:
            out.value(told(report))
        elif not (given.quiet and report.ok):
            first, *rest = str(report).splitlines()
            out.line(out.paint(first, "green" if report.ok else "red"))
            for line in rest:
                out.line(outcome.one_line(line))
        out.flush()
    return code or None


def told(report: Any) -> dict[str, Any]:
    """A report as JSON."""
    return {"ok": report.ok, **dataclasses.asdict(report)}
