"""One open log in one process: control, locks, durability, producers; the same for every kind."""
