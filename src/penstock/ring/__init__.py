"""A log in one file of fixed size, which overwrites its oldest events."""
