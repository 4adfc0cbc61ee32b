"""One opener's hold on a log: control, locks, durability, producers; the same for every kind."""
