"""The log as a table."""
