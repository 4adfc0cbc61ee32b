"""Samples as text: the Prometheus text format (0.0.4), and OpenMetrics (1.0).

The two differ in the name that a counter's family has, in what is escaped, and in the last line.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.metrics.samples import Family, Logs, Sample, samples

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def text(logs: Logs, *, openmetrics: bool = False) -> str:
    """The metrics of the logs as Prometheus text, or with ``openmetrics`` as OpenMetrics.

    ``logs`` is a path or an open log, or several of them; a directory stands for all logs below it.

    >>> log = penstock.open(path)
    >>> log.extend([b"a", b"b"])
    range(1, 3)
    >>> [line for line in text(log).splitlines() if "appends" in line][2]
    'penstock_appends_total{log="..."} 2'
    """
    return written(samples(logs), openmetrics=openmetrics)


def grouped(found: Iterable[Sample]) -> dict[Family, list[Sample]]:
    """The samples of each family together, as both formats require."""
    families: dict[Family, list[Sample]] = {}
    for sample in found:
        families.setdefault(sample.family, []).append(sample)
    return families


def written(found: Iterable[Sample], *, openmetrics: bool) -> str:
    """The samples in one of the formats."""
    lines: list[str] = []
    for family, members in grouped(found).items():
        sample_name = family.name + ("_total" if family.kind == "counter" else "")
        name = family.name if openmetrics else sample_name
        lines.append(f"# HELP {name} {_escape(family.help, quotes=openmetrics)}")
        lines.append(f"# TYPE {name} {family.kind}")
        lines += (f"{sample_name}{_labels(one)} {_number(one.value)}" for one in members)
    if openmetrics:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines)


def _labels(sample: Sample) -> str:
    said = (f'{name}="{_escape(value, quotes=True)}"' for name, value in sample.labels)
    return "{" + ",".join(said) + "}"


def _escape(value: str, *, quotes: bool) -> str:
    value = value.replace("\\", r"\\").replace("\n", r"\n")
    if quotes:
        value = value.replace('"', r"\"")
    # A file's name may have bytes that are not UTF-8, and the formats have no way to write them.
    return value.encode("utf-8", "replace").decode()


def _number(value: float) -> str:
    """A whole number without a fraction; any other with all its digits."""
    return str(int(value)) if value.is_integer() else repr(value)
