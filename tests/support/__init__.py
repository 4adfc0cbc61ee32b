"""Helpers for tests that need real processes: a forking server, jobs for workers, a checker."""
