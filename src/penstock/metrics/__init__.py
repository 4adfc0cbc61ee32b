"""Metrics of logs for Prometheus and other monitors: ``from penstock import metrics``.

Everything here only reads. A log that cannot be read is reported as down, so that one bad log never
hides the others.

>>> from penstock import metrics
>>> log = penstock.open(path)
>>> log.append(b"hello")
1
>>> print([line for line in metrics.text(log).splitlines() if line.startswith("penstock_up")][0])
penstock_up{log="..."} 1
"""

from penstock.metrics.collector import Collector
from penstock.metrics.exposing import text
from penstock.metrics.file import write_file
from penstock.metrics.samples import Family, Sample, samples
from penstock.metrics.serving import asgi_app, wsgi_app

__all__ = [
    "Collector",
    "Family",
    "Sample",
    "asgi_app",
    "samples",
    "text",
    "write_file",
    "wsgi_app",
]
