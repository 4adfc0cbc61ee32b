"""Maintenance of a log: roll, seal, and the thread that does what can be done ahead of time."""

from penstock.steward.steward import Steward

__all__ = ["Steward"]
