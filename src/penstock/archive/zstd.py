"""The zstd library: what Python has from 3.14 on, and its backport before."""

from __future__ import annotations

import sys
from typing import Any

from penstock.system.needs import needed


def library() -> Any:
    """The module, or an error that says what to install."""
    if sys.version_info >= (3, 14):
        return needed("compression.zstd", "'penstock[archive]'")
    return needed("backports.zstd", "'penstock[archive]'")
