"""``penstock cheat``."""

from __future__ import annotations

import argparse

from penstock.cli.out import Out
from penstock.cli.registry import COMMANDS, Example, load
from penstock.errors import Usage

ABOUT = "Print examples by task. TASK is a part of its name; without one all are printed."
EXAMPLES = (Example("penstock cheat copy", "how to copy events"),)
TASKS: dict[str, tuple[Example, ...]] = {
    "begin": (
        Example("penstock create orders --codec json", "a log of JSON values"),
        Example("penstock append orders '{\"total\": 12}' --topic eu", "append an event"),
        Example("penstock cat orders", "print what it has"),
        Example("penstock follow orders", "print what comes"),
    ),
    "look back": (
        Example("penstock tail orders -n 20", "the last twenty"),
        Example("penstock cat orders --since yesterday --until today", "a day"),
        Example("penstock cat orders --from 100 --to 200 --topic eu", "by seq and topic"),
        Example("penstock cat orders --where 'data.total > 100' --grep urgent", "by what is in it"),
        Example("penstock get orders -1", "the newest event"),
    ),
    "copy and convert": (
        Example("penstock cat a -o jsonl | penstock append b --jsonl --create", "event by event"),
        Example("penstock import b a --create", "a whole log, at once"),
        Example("penstock export orders orders.parquet", "to Parquet"),
        Example("penstock backup orders /backup/orders", "a copy of the files"),
    ),
    "record a program": (
        Example("penstock tap build --create -- make test", "what it prints, and its exit code"),
        Example("tail -F app.log | penstock append app --create", "a file as it grows"),
    ),
    "process each event once": (
        Example("penstock follow orders --consumer mail -o raw", "goes on where it stopped"),
        Example("penstock consumer list orders", "how far behind"),
        Example(
            "penstock consumer reset orders mail --to -1h --yes", "process the last hour again"
        ),
    ),
    "share the work": (
        Example("penstock group work mails send -- ./send-mail", "run it several times"),
        Example("penstock group list mails", "how far, and what is dead"),
        Example("penstock group redrive mails send", "try dead letters again"),
    ),
    "scripts": (
        Example("seq=$(penstock append orders '{}')", "the seq of what was appended"),
        Example(
            "penstock follow orders --one --timeout 10s || echo none", "wait; 124 if none comes"
        ),
        Example(
            "penstock cat orders --format '%v' -0 | xargs -0 -n 1 echo", "a command for each value"
        ),
        Example("penstock append orders x --producer job:17", "safe to repeat"),
    ),
    "ask questions": (
        Example("penstock sql 'select topic, count(*) from orders group by 1'", "with SQL"),
        Example("penstock stats orders --by key", "events and bytes of each key"),
    ),
    "when something is wrong": (
        Example("penstock doctor orders", "what is fine, what is not, what to do"),
        Example("penstock verify orders", "is anything damaged"),
        Example("penstock cat orders --skip-damage > whole.jsonl", "read what is whole"),
        Example("penstock repair orders --to mended", "a mended copy"),
        Example("penstock dump orders frames -n 5 --hex", "the bytes themselves"),
    ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", nargs="?", help=f"such as {', '.join(TASKS)}")


def run(given: argparse.Namespace, out: Out) -> None:
    tasks = dict(TASKS)
    if given.task in COMMANDS:
        tasks = {given.task: load(given.task).EXAMPLES}
    elif given.task is not None:
        tasks = {name: found for name, found in TASKS.items() if given.task in name}
        if not tasks:
            raise Usage(f"TASK must be a part of one of {', '.join(TASKS)}, or a command")
    if given.json:
        for name, examples in tasks.items():
            for example in examples:
                out.value({"task": name, "command": example.line, "about": example.about})
        return
    for number, (name, examples) in enumerate(tasks.items()):
        if number:
            out.line()
        out.line(out.paint(f"# {name}", "bold"))
        for example in examples:
            out.line(f"  {example.line}")
            out.line(out.paint(f"      {example.about}", "dim"))
