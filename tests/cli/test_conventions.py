"""What all commands share: exit codes, errors, pipes, signals, names, help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors
from penstock.cli import outcome
from penstock.cli.registry import COMMANDS, load
from tests.cli.support import COMMAND, Shell, real_environment

ROOT = Path(__file__).parents[2]


def test_every_command_is_complete() -> None:
    """Each command has help, an example, a part of docs/cli.md and a file of tests."""
    docs = (ROOT / "docs" / "cli.md").read_text()
    for name in COMMANDS:
        command = load(name)
        assert command.ABOUT and command.EXAMPLES, name
        assert all(f"penstock {name}" in example.line for example in command.EXAMPLES), name
        assert f"## penstock {name}\n" in docs, name
        tests = ROOT / "tests" / "cli" / f"test_{name}.py"
        assert f'shell("{name}"' in tests.read_text() or f'"{name}"' in tests.read_text(), name


def test_every_module_is_a_command() -> None:
    """There is no module of a command that the registry does not know."""
    loaded = {Path(str(load(name).__file__)).stem for name in COMMANDS}  # type: ignore[attr-defined]
    folder = ROOT / "src" / "penstock" / "cli" / "commands"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == loaded


def test_help(shell: Shell) -> None:
    """Help is on stdout, for everything and for each command; nothing at all is exit code 2."""
    text = shell("--help").text
    assert all(f"  {name:<12}" in text for name in COMMANDS)
    assert shell("help", "cat").text == shell("cat", "--help").text
    assert shell("cat", "x", "-h", "--unknown").text.startswith("usage: penstock cat")
    assert shell(code=2).text == text
    assert shell("--version").text == f"penstock {penstock.__version__}\n"
    assert shell("append", "none", "--", "-h", code=3).raw == b""


def test_unknown_words(shell: Shell) -> None:
    """An unknown command or option is refused, with what may have been meant."""
    for words, hint in (
        (["caat"], "did you mean cat?"),
        (["cat", "a", "--topc", "x"], "did you mean --topic?"),
        (["cat", "a", "--topc=x"], "did you mean --topic?"),
        (["--json", "cat", "a"], "after the command"),
        (["cat"], "LOG"),
        (["cat", "a", "b"], "'b'"),
        (["cat", "a", "--top", "x"], "--topic"),
    ):
        error = shell(*words, code=2).error
        assert error["kind"] == "Usage" and hint in error["message"], error


def test_errors_as_text_and_json(shell: Shell) -> None:
    """On a terminal an error is one line; elsewhere, or with --json, it is JSON."""
    text = shell("cat", "none", terminal=True, code=3).said
    assert text.startswith("penstock cat: ") and text.count("\n") == 1
    for done in (
        shell("cat", "none", code=3),
        shell("cat", "none", "--json", terminal=True, code=3),
        shell("cat", "none", "--json", "--no-such", terminal=True, code=2),
    ):
        assert {"kind", "type", "message", "exit_code"} <= set(done.error)


def test_exit_codes_are_those_of_errors() -> None:
    """Every error has the exit code of its type, and a kind that errors.py documents."""
    for name in penstock.__all__:
        found = getattr(penstock, name)
        if isinstance(found, type) and issubclass(found, penstock.PenstockError):
            error = found("x")
            told = outcome.told(error)
            assert told["exit_code"] == found.exit_code and told["type"] == name
            assert f" {told['kind']} " in str(errors.__doc__) or name == "PenstockError"


def test_a_bug_is_reported(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw is exit code 1, one line, and no traceback unless it is asked for."""

    def broken(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(load("get"), "run", broken)
    done = shell("get", "a", "1", code=1)
    assert done.error["kind"] == "Internal" and "RuntimeError" in done.error["message"]
    assert "Traceback" not in done.said
    monkeypatch.setenv("PENSTOCK_TRACEBACK", "1")
    assert "Traceback" in shell("get", "a", "1", code=1).said


def test_names_in_a_directory(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare name lies in $PENSTOCK_DIR; one with a slash or a dot is a path."""
    monkeypatch.setenv("PENSTOCK_DIR", "logs")
    shell("create", "a")
    shell("create", "./b")
    assert Path("logs/a").is_dir() and Path("b").is_dir()
    shell("cat", "a")
    shell("cat", "b", code=3)
    shell("cat", "", code=2)


def many(path: str) -> None:
    """A log that no pipe holds."""
    with penstock.open(path) as log:
        for _ in range(20):
            log.extend([b"x" * 100] * 1000)


def test_a_closed_pipe(shell: Shell) -> None:
    """`penstock cat | head -1` ends quietly with the code that shells have for it."""
    many("a")
    script = f"{sys.executable} -m penstock cat a | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, env=real_environment(), check=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert (len(lines), lines[-1], done.stderr) == (2, b"141", b"")


@pytest.mark.parametrize("words", [["cat", "a"], ["--help"], ["--version"], ["info", "a"]])
def test_a_full_disk(shell: Shell, words: list[str]) -> None:
    """If stdout cannot take it, that is an error with exit code 8, not a traceback."""
    many("a")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            env=real_environment(),
            check=False,
            timeout=60,
        )
    assert done.returncode == 8
    assert b"No space left" in done.stderr and done.stderr.count(b"\n") == 1


def test_closed_streams(shell: Shell) -> None:
    """Without stdin, stdout or stderr a command does what it can, and says what it cannot."""
    shell("create", "a")
    for redirect, words, code in (
        (">&-", "cat a -o raw", 0),
        (">&-", "--version", 8),
        ("<&-", "append a", 8),
        ("2>&-", "cat none", 3),
        ("<&- >&- 2>&-", "append a x", 8),
    ):
        script = f"{sys.executable} -m penstock {words} {redirect}"
        done = subprocess.run(
            ["bash", "-c", script], env=real_environment(), check=False, timeout=60
        )
        assert done.returncode == code, (redirect, words)


def test_odd_locales(shell: Shell) -> None:
    """Text comes out as UTF-8 whatever the locale says, and without buffering as well."""
    with penstock.open("a") as log:
        log.append("üñ😀".encode(), topic="ß")
    environments: list[dict[str, Any]] = [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONUNBUFFERED": "1"},
    ]
    for environment in environments:
        done = shell.real("cat", "a", "-o", "text", **environment)
        assert "üñ😀" in done.text and "ß" in done.text
        shell.real("cat", "ü-none", code=3, **environment)


def test_start_up_loads_little() -> None:
    """Neither the version nor an error of usage loads an open log, let alone rich or pyarrow."""
    for words, never in (
        (["--version"], {"argparse", "penstock._core", "penstock.log", "re"}),
        (["caat"], {"penstock._core", "penstock.log"}),
        (["get", "none", "1"], {"rich", "pyarrow", "msgspec", "shtab", "json.tool", "logging"}),
    ):
        program = (
            "import sys\nfrom penstock.cli import main\nmain(sys.argv[1:])\n"
            "print(*sys.modules, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-S", "-c", program, *words],
            capture_output=True,
            text=True,
            env=real_environment(),
            check=True,
        )
        assert not set(done.stderr.split()) & never, words


def test_as_a_module_and_a_script() -> None:
    """`python -m penstock` and the script `penstock` are the same function."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"penstock": "penstock.cli:script"}
    assert os.access(ROOT / "src" / "penstock" / "__main__.py", os.R_OK)
