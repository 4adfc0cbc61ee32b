"""What is measured, and that a log in a bad state is a number, not an exception."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed_text

import penstock
from penstock import metrics

Values = dict[tuple[str, tuple[str, ...]], float]


def values(text: str) -> Values:
    """Every sample by its name and its labels but for the log, as the real parser reads them."""
    return {
        (one.name, tuple(value for name, value in one.labels.items() if name != "log")): one.value
        for family in parsed_text(text)
        for one in family.samples
    }


def tree(top: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory, with its time of change and its bytes."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(top.rglob("*"))
        if path.is_file()
    }


def test_numbers_agree_with_the_log(log: penstock.Log) -> None:
    """Each number is what the log itself says, for a log of segments and for a ring."""
    for _ in range(90):
        log.append(b"x" * 500)
    log.append(b"y", durable=True)
    stats = log.stats()
    found = values(metrics.text(log))
    assert found["penstock_up", ()] == 1
    assert found["penstock_appends_total", ()] == log.last_seq == 91
    assert found["penstock_first_seq", ()] == log.first_seq
    assert found["penstock_events", ()] == len(log)
    assert found["penstock_durable_seq", ()] == 91
    assert found["penstock_segments", ()] == stats.segments
    assert found["penstock_disk_bytes", ()] == stats.disk_bytes
    assert found["penstock_disk_allocated_bytes", ()] >= stats.disk.live > 0
    assert ("penstock_disk_dead_bytes", ()) not in found  # nobody has counted them
    assert ("penstock_disk_limit_bytes", ()) not in found
    assert found["penstock_syncs_total", ()] == stats.syncs > 0
    assert found["penstock_live", ()] == 1
    assert found["penstock_log_info", (stats.uuid, log.kind, "bytes")] == 1
    assert abs(found["penstock_last_append_timestamp_seconds", ()] - log[-1].append_ns / 1e9) < 1
    assert (("penstock_ring_used_bytes", ()) in found) == (stats.ring is not None)
    assert ("penstock_error", ()) not in found


def is_up(log: penstock.Log) -> bool:
    """Whether its two events and the room on its disk are measured."""
    found = values(metrics.text(log))
    assert found["penstock_events", ()] == 2
    assert found["penstock_disk_free_bytes", ()] > 0
    return found["penstock_up", ()] == 1


def test_a_renamed_log_is_measured_where_it_is(log: penstock.Log) -> None:
    """An open log whose name is another's, or nobody's, is still up, with its own numbers."""
    log.extend([b"a", b"b"])
    kind = log.kind
    Path(log.path).rename(Path(log.path).with_name("moved"))
    assert is_up(log)
    with penstock.create(log.path, ring="64KiB" if kind == "ring" else None):
        assert is_up(log)
    if kind == "segments":
        shutil.rmtree(Path(log.path).with_name("moved"))
        assert values(metrics.text(log))["penstock_up", ()] == 0


def test_both_formats_say_the_same(log: penstock.Log) -> None:
    """The real parsers of Prometheus and of OpenMetrics read the same numbers, types and labels."""
    log.extend([b"x", b"y"])
    log.consumer("billing").close()
    found = metrics.samples(log)
    expected = {(s.family.name, s.family.kind, s.labels) for s in found}
    for parse, text in (
        (parsed_text, metrics.text(log)),
        (openmetrics.text_string_to_metric_families, metrics.text(log, openmetrics=True)),
    ):
        seen = {
            (family.name, family.type, tuple(one.labels.items()))
            for family in parse(text)
            for one in family.samples
        }
        assert seen == expected


def test_a_consumer_has_a_lag(log: penstock.Log) -> None:
    """Per consumer: what it has yet to commit, who lives, and a filter counts."""
    log.extend([b"a", b"b"], topic="one")
    log.append(b"c", topic="two")
    log.consumer("late", topic="one").close()
    with log.consumer("live", timeout=0) as live:
        live.poll()
        live.commit()
        found = values(metrics.text(log))
    assert found["penstock_consumer_lag_events", ("late",)] == 2
    assert found["penstock_consumer_lag_bytes", ("late",)] > 0
    assert found["penstock_consumer_lag_seconds", ("late",)] >= 0
    assert found["penstock_consumer_live", ("late",)] == 0
    assert found["penstock_consumer_live", ("live",)] == 1
    assert found["penstock_consumer_lag_events", ("live",)] == 0
    assert found["penstock_consumer_committed_seq", ("live",)] == 4


def test_a_group_has_counts(log: penstock.Log) -> None:
    """Per group: what no worker has looked at, what has no outcome, who lives, what died."""
    log.extend([b"a", b"b", b"c", b"d", b"e"])
    group = log.group("mail")
    with group.worker(timeout=0) as worker:
        next(worker).ack()
        next(worker).reject("no address")
        job = next(worker)
        found = values(metrics.text(log))
        assert job.seq == 3
    assert len(group.dead) == 1
    after = values(metrics.text(log))
    assert found["penstock_group_up", ("mail",)] == 1
    assert found["penstock_group_live", ("mail",)] == 1
    assert after["penstock_group_live", ("mail",)] == 0
    assert found["penstock_group_lag_events", ("mail",)] == 2
    assert found["penstock_group_lag_seconds", ("mail",)] > 0
    assert found["penstock_group_claimed_events", ("mail",)] == 1
    assert after["penstock_group_claimed_events", ("mail",)] == 0
    assert after["penstock_group_unfinished_events", ("mail",)] == 1
    assert after["penstock_group_dead_letters", ("mail",)] == 1
    assert found["penstock_group_stopped", ("mail",)] == 0


def test_a_damaged_consumer_does_not_hide_the_others(path: Path) -> None:
    """A consumer whose file cannot be read is down; the log and the other consumers are not."""
    with penstock.open(path) as log:
        log.append(b"a")
        log.consumer("bad").close()
        log.consumer("good").close()
        path.joinpath("consumers", "bad").write_bytes(b"\xff" * 9000)
        found = values(metrics.text(log))
    assert found["penstock_up", ()] == 1
    assert found["penstock_consumer_up", ("bad",)] == 0
    assert ("penstock_consumer_lag_events", ("bad",)) not in found
    assert found["penstock_consumer_lag_events", ("good",)] == 1


def ruin(log: Path) -> None:
    """Overwrite every header of the log, and its control."""
    for file in (*log.glob("*.seg"), log / "control"):
        file.write_bytes(b"\xff" * file.stat().st_size)


def test_a_bad_log_is_down(tmp_path: Path) -> None:
    """A log that is damaged, gone or never was is down, with the kind of error; others are up."""
    for name in ("good", "ruined", "gone"):
        with penstock.open(tmp_path / name) as log:
            log.append(b"a")
    ruin(tmp_path / "ruined")
    shutil.rmtree(tmp_path / "gone")
    tmp_path.joinpath("a file").write_text("no log")
    names = ["good", "ruined", "gone", "a file"]
    text = metrics.text([tmp_path / name for name in names])
    down = {
        Path(one.labels["log"]).name: one.labels["kind"]
        for family in parsed_text(text)
        for one in family.samples
        if one.name == "penstock_error"
    }
    up = {
        Path(one.labels["log"]).name: one.value
        for family in parsed_text(text)
        for one in family.samples
        if one.name == "penstock_up"
    }
    assert up == {"good": 1, "ruined": 0, "gone": 0, "a file": 0}
    assert down == {"ruined": "Corrupt", "gone": "NoSuchLog", "a file": "Usage"}


def test_an_open_log_that_is_closed_or_deleted_is_down(path: Path) -> None:
    """So is a log that was given open, once it is closed."""
    log = penstock.open(path)
    log.append(b"a")
    assert values(metrics.text(log))["penstock_up", ()] == 1
    log.close()
    found = values(metrics.text(log))
    assert found == {("penstock_up", ()): 0, ("penstock_error", ("Closed",)): 1}


def test_a_directory_is_all_its_logs(tmp_path: Path) -> None:
    """A directory stands for the logs that are below it at each call, each of them once."""
    for name in ("a", "b/c"):
        penstock.open(tmp_path / name).close()
    logs = [tmp_path, tmp_path / "a"]

    def seen() -> list[str]:
        return [
            one.labels["log"].removeprefix(str(tmp_path))
            for family in parsed_text(metrics.text(logs))
            for one in family.samples
            if one.name == "penstock_up"
        ]

    assert sorted(seen()) == ["/a", "/b/c"]
    penstock.open(tmp_path / "d").close()
    assert sorted(seen()) == ["/a", "/b/c", "/d"]


@pytest.mark.parametrize("openmetrics_too", [False, True])
def test_labels_are_escaped(tmp_path: Path, openmetrics_too: bool) -> None:
    """A path with quotes, backslashes and newlines comes back from the parser as it is."""
    path = tmp_path / 'a "b"\\n\\\nc,{d="e"} é'
    penstock.open(path).close()
    text = metrics.text(path, openmetrics=openmetrics_too)
    parse = openmetrics.text_string_to_metric_families if openmetrics_too else parsed_text
    assert {one.labels["log"] for family in parse(text) for one in family.samples} == {str(path)}


def test_a_path_that_is_not_utf8(tmp_path: Path) -> None:
    """A path with bytes that no format can write still gives text that can be sent and parsed."""
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff\xfe"))
    penstock.open(path).close()
    text = metrics.text(path)
    text.encode()
    assert values(text)["penstock_up", ()] == 1


def test_it_only_reads(path: Path) -> None:
    """Measuring a log changes no byte and no time of any file of it, without and with a writer."""
    with penstock.open(path) as log:
        log.extend([b"a", b"b"])
        log.consumer("late").close()
        log.group("mail").close()
        before = tree(path)
        metrics.text(path)
        assert tree(path) == before
    before = tree(path)
    found = values(metrics.text(path))
    assert found["penstock_consumer_lag_events", ("late",)] == 2
    assert found["penstock_group_lag_events", ("mail",)] == 2
    assert tree(path) == before


def test_counters_without_control_are_left_out(path: Path) -> None:
    """Without control its counters are left out: zeros would look like a reset."""
    with penstock.open(path) as log:
        log.append(b"a", durable=True)
    found = values(metrics.text(path))
    assert found["penstock_live", ()] == 0
    assert ("penstock_syncs_total", ()) not in found
    assert found["penstock_appends_total", ()] == 1


def test_background_work_of_this_process(path: Path) -> None:
    """A log that is given open reports the failures of its background jobs; a path has none."""
    with penstock.open(path) as log:
        log._record.failed("seal", OSError("no space"))
        found = values(metrics.text(log))
        assert found["penstock_background_failures_total", ("seal",)] == 1
        assert found["penstock_background_failing", ("seal",)] == 1
        assert found["penstock_background_failing", ("sync",)] == 0
        log._record.succeeded("seal")
        found = values(metrics.text(log))
        assert found["penstock_background_failing", ("seal",)] == 0
        assert found["penstock_background_last_success_timestamp_seconds", ("seal",)] > 1e9
        assert not any("background" in name for name, _ in values(metrics.text(path)))


@pytest.mark.parametrize("logs", [None, 7, [b"a"], ["a", None]])
def test_what_is_no_log_is_refused(logs: object) -> None:
    """A wrong argument is an error of the caller, not a log that is down."""
    with pytest.raises(penstock.WrongType, match="logs must be"):
        metrics.text(logs)  # type: ignore[arg-type]
