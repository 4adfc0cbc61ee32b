"""What README and docs say can be run, and is."""

from __future__ import annotations

import ast
import graphlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark import QUICK_JAVA, why_no_spark

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"


def snippets(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]), ids=str)
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    """The Python blocks of the page run as they stand, one after the other, in a new directory."""
    code = "\n".join(snippets(page))
    if "pyspark" in code and (why := why_no_spark()):
        pytest.skip(why)
    environment = {
        **os.environ,
        "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stderr[-4000:]}"


def test_readme_has_a_snippet() -> None:
    """The test above would prove nothing of a README without code."""
    assert snippets(ROOT / "README.md")


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]), ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of the page names a file that is there."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_make_targets_exist() -> None:
    """Every `make target` that README or docs mention is in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for name in re.findall(r"(?:`|^ {4})make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert name in targets, f"{page.name}: make {name}"


def test_named_tests_exist() -> None:
    """Every test that a page names as a proof is there."""
    named = 0
    for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        for file, *names in re.findall(
            r"`(tests/[\w/]+\.py)(?:::(\w+))?::(\w+)`", page.read_text()
        ):
            body = ast.parse((ROOT / file).read_text()).body
            for name in filter(None, names):
                found = [
                    n
                    for n in body
                    if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name
                ]
                assert found, f"{page.name}: {file} has no {name}"
                body = found[0].body
            named += 1
    assert named > 30


def test_every_guarantee_names_its_proof() -> None:
    """No row of the tables of guarantees is without a test, but for those that explain words."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    for part in ("## What survives what", "## What readers may rely on"):
        rows = [
            line
            for line in text.split(part, 1)[1].split("\n## ", 1)[0].splitlines()
            if line.startswith("|")
        ][2:]
        assert len(rows) > 5
        for row in rows:
            assert "::test_" in row, row


def layers() -> dict[str, int]:
    """The layer of each module or package in docs/architecture.md, the topmost being 0."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.split("## Who may import whom", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    return {
        module: depth for depth, row in enumerate(rows) for module in re.findall(r"`([\w.]+)`", row)
    }


def layer_of(module: str, place: dict[str, int]) -> int | None:
    """The layer of a module: its own row, or that of the nearest package that has one."""
    while module and module not in place:
        module = module.rpartition(".")[0]
    return place.get(module)


def imported(path: Path) -> set[str]:
    """The modules of the package that a module imports when it is loaded."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    skipped = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or id(node) in skipped or not node.module:
            continue
        if node.module == "penstock" or node.module.startswith("penstock."):
            package = node.module.removeprefix("penstock").removeprefix(".")
            names = {f"{package}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= {name if is_module(name) else package for name in names}
    return found - {""}


def is_module(name: str) -> bool:
    """Whether the package has a module, or the compiled one, of that dotted name."""
    path = SOURCE.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir() or name == "_core"


def modules() -> dict[str, set[str]]:
    """Every module of the package, and what it imports."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = imported(path) - {name}
    return found


def test_imports_point_down() -> None:
    """No module imports one of a layer above it, and every module has its layer."""
    place = layers()
    for module, others in modules().items():
        layer = layer_of(module, place)
        assert layer is not None, f"{module} is not in the table of docs/architecture.md"
        for other in others:
            below = layer_of(other, place)
            assert below is not None, f"{module} imports {other}, which has no layer"
            assert below >= layer, f"{module} imports {other}, which lies above it"


def test_no_imports_in_a_circle() -> None:
    """Inside a package, too, a module never imports one that leads back to it."""
    graph = modules()
    assert "segments.check.verify" in graph["segments.check.repair"]
    graphlib.TopologicalSorter(graph).prepare()


def test_layers_are_of_modules_that_exist() -> None:
    """Every name in the table of layers is a module or a package."""
    for name in layers():
        assert name == "__init__" or is_module(name), name


def test_storages_know_no_handle() -> None:
    """What has the files of a log does not import the handle or the log: they are given to it."""
    graph = modules()
    for module, others in graph.items():
        if module.split(".")[0] in ("segments", "ring", "steward"):
            assert not others & {"handle.handle", "log", "opening"}, module


# The same thing of a ring and of segments, or in Python and in the compiled core.
TWINS = {"ArrowArray", "ArrowStream", "Findings", "Follower", "Header", "SegmentPosition", "Slot"}


def test_a_name_has_one_meaning() -> None:
    """No class or struct is defined twice, but for what is the same thing in both kinds of log."""
    found: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.p*")):
        if path.suffix in (".py", ".pyx", ".pxi"):
            for name in re.findall(r"^(?:cdef )?(?:class|struct) +(\w+)", path.read_text(), re.M):
                found.setdefault(name.lstrip("_"), []).append(path.name)
    twice = {name for name, homes in found.items() if len(homes) > 1}
    assert twice <= TWINS, {name: found[name] for name in twice - TWINS}
