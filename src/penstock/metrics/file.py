"""Metrics in a file, for the textfile collector of the node exporter.

The file is replaced by a rename, so a reader sees all of one version.
"""

from __future__ import annotations

import os

from penstock.errors import Usage
from penstock.metrics.exposing import text
from penstock.metrics.samples import Logs, listed
from penstock.system import files

_MODE = 0o644  # the exporter runs as another user


def write_file(path: str | os.PathLike[str], logs: Logs, *, openmetrics: bool = False) -> None:
    """Write the metrics of the logs to ``path``, replacing what was there in one step.

    The node exporter reads files that end in ``.prom``, in the Prometheus text format. With
    ``openmetrics`` the file is OpenMetrics, for agents that read that.

    >>> log = penstock.open(path)
    >>> write_file(path.with_suffix(".prom"), log)
    >>> path.with_suffix(".prom").read_text().startswith("# HELP penstock_up")
    True
    """
    target = files.path_text(path)
    if files.is_dir(target):
        raise Usage(f"path must be a file, got the directory {target!r}; add a name like logs.prom")
    data = text(listed(logs), openmetrics=openmetrics).encode()
    above, name = os.path.split(target)
    partial = os.path.join(above, f".{name}.{os.urandom(4).hex()}.tmp")  # no *.prom, no clash
    fd = files.create_file(partial, _MODE)
    try:
        try:
            files.write_at(fd, data, 0, partial)
        finally:
            files.close(fd)
        files.rename(partial, target)
    except BaseException:
        files.unlink(partial)
        raise
