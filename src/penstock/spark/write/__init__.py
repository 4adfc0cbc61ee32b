"""The sink: rows of Spark appended to a log, each batch exactly once."""
