"""verify and repair of a log of segments: nothing here trusts a byte."""
