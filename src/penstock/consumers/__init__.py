"""Named readers whose place survives restarts. docs/architecture.md, "Consumers", says how."""
