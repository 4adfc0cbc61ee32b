"""Run one command: find it, parse its arguments, and turn what happens into an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from penstock.cli import outcome
from penstock.cli.out import Out
from penstock.cli.registry import COMMANDS, load
from penstock.errors import PenstockError


def run(given: list[str]) -> int:
    """Run ``penstock`` with these arguments; returns the exit code."""
    name = given[0] if given else ""
    program = f"penstock {name}" if name in COMMANDS else "penstock"
    # Whatever fails before the options are known is reported as these words ask for.
    out = Out(program, json="--json" in given[: _words_of_ours(given)])
    try:
        with _terminated():
            return _run(given, name, out)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError, KeyboardInterrupt, PenstockError):
            out.flush()
        return _silenced(outcome.INTERRUPTED)
    except BrokenPipeError:
        return _silenced(outcome.BROKEN_PIPE)
    except outcome.TimedOut:
        return outcome.TIMEOUT
    except BaseException as error:
        if isinstance(error, SystemExit):
            return int(error.code or 0)
        code = outcome.report(error, program, out.json_errors)
        with contextlib.suppress(OSError, PenstockError):
            out.flush()  # what was found before it failed
        return _silenced(code)


def _run(given: list[str], name: str, out: Out) -> int:
    from penstock.cli.parser import Help, command_parser, help_text, unknown_command

    try:
        if name in ("", "-h", "--help", "help"):
            if len(given) > 1 and given[1] in COMMANDS:
                raise Help(command_parser(given[1]).format_help())
            raise Help(help_text())
        if name in ("--version", "-V"):
            import penstock

            raise Help(f"penstock {penstock.__version__}\n")
        if name not in COMMANDS:
            raise unknown_command(name)
        arguments = command_parser(name).parse(given[1:])
    except Help as found:
        out.write(str(found).encode())
        out.flush()
        return outcome.DONE if given else 2
    out.__init__(  # type: ignore[misc]
        out.command, json=arguments.json, quiet=arguments.quiet, color=arguments.color
    )
    code = load(name).run(arguments, out)
    out.flush()
    if code:
        return code
    return outcome.SKIPPED if out.skipped else outcome.DONE


def _words_of_ours(given: list[str]) -> int:
    """How many words come before ``--``."""
    return given.index("--") if "--" in given else len(given)


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """Have SIGTERM end the command as Ctrl-C does: what is open is closed."""

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _silenced(code: int) -> int:
    """Have Python not complain, when it ends, about a stdout that takes nothing more."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return code
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return code
