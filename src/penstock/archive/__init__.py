"""The archive of a log: sealed segments, compressed, in a directory or an object store."""
