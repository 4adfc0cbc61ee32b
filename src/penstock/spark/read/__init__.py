"""The data source: a log as a table and as a stream."""
