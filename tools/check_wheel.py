"""Proves that a built wheel is complete: it installs and works without a compiler.

    python tools/check_wheel.py dist/penstock-….whl

The wheel goes into a fresh virtual environment outside the source tree, without an index and
without dependencies, and a script appends an event there and reads it back: plain bytes need no
other package.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path, PurePosixPath

WANTED = {".py", ".so", ".pyi"}
UNWANTED = {".pyx", ".pxd", ".pxi", ".c", ".h", ".o"}

ROUND_TRIP = """
import sys
import penstock

assert penstock.__file__.startswith(sys.prefix), penstock.__file__
log = penstock.open(sys.argv[1])
seq = log.append(b"hello")
assert log[seq].value == b"hello"
log.close()
"""


def check_contents(wheel: Path) -> None:
    """Exit with a message unless the wheel has all that it needs, and no sources of the core."""
    names = [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]
    suffixes = {name.suffix for name in names}
    if missing := WANTED - suffixes:
        sys.exit(f"{wheel}: no {', '.join(sorted(missing))} file in it")
    if not any(name.name == "py.typed" for name in names):
        sys.exit(f"{wheel}: no py.typed in it")
    if unwanted := [str(name) for name in names if name.suffix in UNWANTED]:
        sys.exit(f"{wheel}: must not hold {', '.join(unwanted)}")


def check_round_trip(wheel: Path) -> None:
    """Install the wheel without index or compiler, then append an event and read it back."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        venv.create(scratch / "venv", with_pip=True)
        binaries = scratch / "venv" / "bin"
        environment = {"PATH": str(binaries), "HOME": name, "CC": "/bin/false"}

        def run(*arguments: str) -> None:
            command = [str(binaries / "python"), *arguments]
            subprocess.run(command, cwd=scratch, env=environment, check=True)

        run("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-cache-dir", str(wheel))
        run("-c", ROUND_TRIP, str(scratch / "x"))


def main() -> None:
    wheel = Path(sys.argv[1]).resolve(strict=True)
    check_contents(wheel)
    check_round_trip(wheel)
    print(f"{wheel.name}: installs without a compiler, appends and reads back")


if __name__ == "__main__":
    main()
