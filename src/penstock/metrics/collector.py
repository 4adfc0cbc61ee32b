"""Metrics for programs that use the package prometheus_client, which this needs and does not load
before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.metrics.exposing import grouped
from penstock.metrics.samples import Logs, listed, samples
from penstock.system.needs import needed

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Collector:
    """A collector of prometheus_client: ``REGISTRY.register(Collector("data"))``.

    >>> import prometheus_client
    >>> log = penstock.open(path)
    >>> registry = prometheus_client.CollectorRegistry()
    >>> registry.register(Collector(log))
    >>> registry.get_sample_value("penstock_up", {"log": log.path})
    1.0
    """

    def __init__(self, logs: Logs) -> None:
        self._logs = listed(logs)
        self._core = needed("prometheus_client.core", "prometheus_client")

    def describe(self) -> list[Metric]:
        """Nothing: the names are known only when the logs are read, not when it is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of the logs as they are now."""
        for family, members in grouped(samples(self._logs)).items():
            metric = self._core.Metric(family.name, family.help, family.kind)
            name = family.name + ("_total" if family.kind == "counter" else "")
            for sample in members:
                metric.add_sample(name, dict(sample.labels), sample.value)
            yield metric
