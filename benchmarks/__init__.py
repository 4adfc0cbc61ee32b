"""Speed and cost of Penstock, always compared with something else that does the same work.

Run with ``make bench`` or ``python -m benchmarks``. No test depends on anything measured here.
"""
