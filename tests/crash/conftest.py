"""Worker processes for the tests in this directory."""

from tests.support.fixtures import _zygote, crew, scene

__all__ = ["_zygote", "crew", "scene"]
