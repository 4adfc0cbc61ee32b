"""Maintenance of a log: roll, seal, and the thread that does such work ahead of time."""

from penstock.steward.steward import Steward

__all__ = ["Steward"]
