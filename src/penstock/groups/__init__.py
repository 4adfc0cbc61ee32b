"""Groups: workers share the events of a log between them, each event to one worker."""
