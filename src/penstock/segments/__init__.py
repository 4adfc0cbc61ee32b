"""A log as a directory of segments."""
