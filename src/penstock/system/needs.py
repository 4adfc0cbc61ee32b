"""Optional packages that some calls need: imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import NotInstalled


def needed(module: str, install: str) -> Any:
    """The module, or an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(
            f"this needs {module}, which cannot be imported ({error}): pip install {install}",
            name=module,
        ) from error


def pyarrow() -> Any:
    """The module pyarrow."""
    return needed("pyarrow", "'penstock[arrow]'")
