#!/usr/bin/env bash
# Builds the package with the PENSTOCK_* switches of the environment and installs it, as for a
# user, into build/NAME, where PYTHONPATH finds it before the editable install.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=$1
target=$PWD/build/$name

# setuptools reuses files of an earlier build, including modules that were deleted since. Keep only
# the compiled core: it is rebuilt when its sources are newer.
mkdir -p build/obj
find build/obj -type f ! -name '*.so' -delete
rm -rf "$target"

.venv/bin/python -m pip --disable-pip-version-check install -qq \
    --no-deps --no-build-isolation --target "$target" .

# The tests that follow must not run against another build by accident. The package is found but
# not imported: a sanitized core loads only into a process prepared for it.
PYTHONPATH=$target .venv/bin/python - "$target/penstock" <<'PROOF'
import sys
from importlib.util import find_spec
from pathlib import Path

package = Path(sys.argv[1])
spec = find_spec("penstock")
found = spec.origin if spec else None
assert found == str(package / "__init__.py"), f"python finds {found}, not the build in {package}"
assert len(list(package.glob("_core.*.so"))) == 1, f"no compiled core in {package}"
PROOF
