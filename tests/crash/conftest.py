"""Worker processes for the tests in this directory."""

from tests.support.fixtures import _zygote, any_scene, crew, scene

__all__ = ["_zygote", "any_scene", "crew", "scene"]
