"""Worker processes for the tests in this directory."""

from tests.support.fixtures import _faulty_zygote, _zygote, any_scene, crew, faulty_crew, scene

__all__ = ["_faulty_zygote", "_zygote", "any_scene", "crew", "faulty_crew", "scene"]
