"""Modules and packages that only some calls need: imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import NotInstalled, PenstockError, Usage, from_os


class loading:
    """The imports of its block are for the log at ``path``, and an error of them names it.

    Code is read from files, so an import fails where, for example, no descriptor is left. A signal
    handler may interrupt the import that it needs itself, which cannot go on before it returns.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, PenstockError):
            raise from_os(error, "loading the code of a call for", self._path) from error
        if isinstance(error, ImportError) and "partially initialized" in str(error):
            raise Usage(
                f"{self._path}: this call interrupts the first one of its kind in the same thread, "
                "whose code is still being loaded; make such a call before a handler makes it"
            ) from error


def needed(module: str, install: str) -> Any:
    """The module, or an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(
            f"this needs {module}, which cannot be imported ({error}): pip install {install}",
            name=module,
        ) from error
    except OSError as error:  # for example, no descriptor is left
        raise from_os(error, "loading", error.filename or module) from error


def pyarrow() -> Any:
    """The module pyarrow."""
    return needed("pyarrow", "'penstock[arrow]'")
