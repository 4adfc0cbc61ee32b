"""Builds the one compiled module, `penstock._core`; everything else is in pyproject.toml.

The C side takes its numbers from `src/penstock/core/layout.h`, which is written here from
`src/penstock/layout.py` before every build. Never edit or commit that header.

Switches, read from the environment (1 = on):

    PENSTOCK_WERROR    a compiler warning is an error
    PENSTOCK_SANITIZE  address and undefined-behaviour sanitizers, assert() alive
    PENSTOCK_FUZZ      the same sanitizers, and coverage that libFuzzer reads; needs clang
    PENSTOCK_POLLING   processes poll instead of sleeping on a futex
    PENSTOCK_PROFILE   debug information beside full optimisation, for callgrind and perf
"""

import os
import runpy
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler.Errors import CompileError
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = Path("src/penstock")
LAYOUT = PACKAGE / "layout.py"
CORE = PACKAGE / "core"
LAYOUT_HEADER = CORE / "layout.h"
CORE_C = CORE / "_core.c"

SWITCHES = [
    name
    for name in ("POLLING", "SANITIZE", "FUZZ", "PROFILE", "WERROR")
    if os.environ.get(f"PENSTOCK_{name}", "0") not in ("", "0")
]

DIRECTIVES = {
    "language_level": 3,
    # Methods of extension types must be method descriptors, which check the type of `self`. The
    # functions of `binding` do not: Reader.close(None) would end the process.
    "binding": False,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
    "embedsignature.format": "clinic",
}

# Undefined behaviour ends the process: a report that lets the test pass would go unread. Python's
# own flags hold -fwrapv, under which signed overflow would go unreported.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-wrapv"]

INT_MAX = 0x7FFFFFFF
UINT64_MAX = 0xFFFFFFFFFFFFFFFF


def int_literal(name: str, number: int) -> str:
    """Return `number` as C source; it must fit an int or an unsigned 64-bit integer."""
    if not -INT_MAX <= number <= UINT64_MAX:
        raise ValueError(f"{LAYOUT}: {name} = {number} fits no C integer type")
    if number < 0:
        return f"({number})"
    return f"{number}ULL" if number > INT_MAX else str(number)


def layout_header() -> str:
    """Return the C header that mirrors the upper-case constants of layout.py."""
    macros: dict[str, str] = {}

    def define(name: str, literal: str) -> None:
        if name in macros:
            raise ValueError(f"{LAYOUT}: two constants would both become PSK_{name}")
        macros[name] = literal

    for name, value in runpy.run_path(str(LAYOUT)).items():
        if name.startswith("_") or not name.isupper():
            continue
        if type(value) is int:
            define(name, int_literal(name, value))
        elif type(value) is bytes:
            define(name, '"' + "".join(f"\\x{byte:02x}" for byte in value) + '"')
            define(f"{name}_LEN", str(len(value)))

    lines = [f"#define PSK_{name} {literal}" for name, literal in macros.items()]
    return "\n".join(
        [
            f"/* Generated from {LAYOUT.name} by setup.py: edit that file, not this one. */",
            "#ifndef PSK_LAYOUT_H",
            "#define PSK_LAYOUT_H",
            "",
            *lines,
            "",
            "#endif",
            "",
        ]
    )


def write_layout_header() -> None:
    """Bring layout.h up to date, leaving its time stamp alone if nothing changed."""
    text = layout_header()
    if not LAYOUT_HEADER.exists() or LAYOUT_HEADER.read_text() != text:
        LAYOUT_HEADER.write_text(text)


def compile_args() -> list[str]:
    """Return the compiler's arguments under the current switches."""
    # -g0: whether Python itself was built with -g must not decide the size of our wheel.
    args = ["-O3", "-g0", "-fno-strict-aliasing", "-fvisibility=hidden", "-Wall", "-Wextra"]
    if "WERROR" in SWITCHES:
        args += ["-Werror"]
    if "POLLING" in SWITCHES:
        args += ["-DPENSTOCK_POLLING=1"]
    if "PROFILE" in SWITCHES:
        args += ["-g"]
    if "SANITIZE" in SWITCHES or "FUZZ" in SWITCHES:
        args += ["-O1", "-g", "-fno-omit-frame-pointer", "-UNDEBUG", *SANITIZERS]
    if "FUZZ" in SWITCHES:
        # clang would report the "null + 0" that calls without arguments are translated to.
        args += ["-fsanitize=fuzzer-no-link", "-fno-sanitize=pointer-overflow"]
    return args


class BuildCore(build_ext):
    """Translate the core to C with our directives, then compile it."""

    def build_extension(self, ext: Extension) -> None:
        write_layout_header()
        # Cython looks at the time stamps of its sources, not at the directives given here.
        stale = CORE_C.exists() and CORE_C.stat().st_mtime < Path(__file__).stat().st_mtime
        try:
            [translated] = cythonize(
                ext, compiler_directives=DIRECTIVES, force=stale or bool(self.force), quiet=True
            )
        except CompileError as error:
            raise SystemExit(f"{error}: does not translate to C; Cython says why above") from None
        ext.sources = translated.sources
        super().build_extension(ext)


core = Extension(
    "penstock._core",
    [str(CORE / "_core.pyx")],
    depends=[*map(str, CORE.glob("*.h")), str(LAYOUT_HEADER), "setup.py"],
    libraries=["pthread"],
    extra_compile_args=compile_args(),
    # A core to fuzz finds the sanitizers' runtime in the library that the fuzzer preloads.
    extra_link_args=SANITIZERS if "SANITIZE" in SWITCHES else [],
)

# Object files of different switches never share a directory, so they can never be mixed.
variant = "-".join(name.lower() for name in SWITCHES) or "plain"

setup(
    ext_modules=[core],
    cmdclass={"build_ext": BuildCore},
    options={"build": {"build_base": f"build/obj/{variant}"}},
)
