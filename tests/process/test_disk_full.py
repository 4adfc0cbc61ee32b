"""A full disk is an exception, not a signal, and costs nothing that was acknowledged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FILL = """
import os, sys
import penstock

where = sys.argv[1]
ballast = os.path.join(where, "ballast")
with open(ballast, "wb") as file:
    file.write(bytes(2 << 20))
acknowledged = []
log = penstock.open(os.path.join(where, "log"), segment_size="1MiB")
reader = log.follow("start", timeout=0)
try:
    for n in range(1 << 20):
        size = (n * 37) % 5000
        if n % 7 == 0:
            acknowledged += log.extend([b"%d" % n] * 3)
        else:
            acknowledged.append(log.append(b"." * size))
except penstock.DiskFull as error:
    assert "free some space" in str(error), error
else:
    sys.exit("the disk never became full")
for _ in range(50):
    try:
        acknowledged.append(log.append(b"." * 5000))
    except penstock.DiskFull:
        pass
assert [e.seq for e in log] == acknowledged == [e.seq for e in reader]
assert [e.seq for e in reversed(log)] == acknowledged[::-1]
with penstock.open(log.path, mode="r") as other:
    assert [e.seq for e in other] == acknowledged
os.unlink(ballast)
for n in range(100):
    acknowledged.append(log.append(b"room again" * 100))
assert [e.seq for e in log] == acknowledged
log.close()
with penstock.open(log.path) as log:
    assert [e.seq for e in log] == acknowledged
    log.append(b"and on")
print(len(acknowledged))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare(1)")
def test_a_full_disk(tmp_path: Path) -> None:
    """On a full tmpfs appends raise DiskFull, reads go on, and appends do once there is room."""
    where = tmp_path / "small"
    where.mkdir()
    script = f'mount -t tmpfs -o size=6m none "{where}" && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", FILL, str(where)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
