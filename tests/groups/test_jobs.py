"""Claiming and settling: each event goes to one worker, until it has one final outcome."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Backpressure, Closed, Conflict, Entry, Log, NotFound, Usage
from penstock.groups.group import Group
from penstock.groups.job import Job
from penstock.groups.worker import Worker


def values(jobs: list[Job[Any]]) -> list[bytes | None]:
    """What their events say."""
    return [job.event.value for job in jobs]


def all_of(worker: Worker[Any]) -> list[int]:
    """Ack everything that comes now; the seqs."""
    seqs = []
    while jobs := worker.poll(100):
        seqs += [job.seq for job in jobs]
        worker.ack(jobs)
    return seqs


def die(worker: Worker[Any]) -> None:
    """What a dead worker leaves: no lock, and claims."""
    worker._closed = True
    worker._life.let_go()


def test_two_workers_share_all_events(log: Log) -> None:
    """Workers get different events, in order, and together all of them."""
    log.extend([b"%d" % i for i in range(10)])
    group = log.group("mail")
    one, two = group.worker(), group.worker()
    a, b = one.poll(3), two.poll(4)
    c = one.poll(100)
    assert [job.seq for job in a + b + c] == list(range(1, 11))
    assert all(job.deliveries == 1 for job in a + b + c)
    assert two.poll() == []
    one.ack(a + c)
    two.ack(b)
    assert (group.stats().acked, group.stats().ready, group.pending()) == (10, 0, [])


def test_two_handles_share_all_events(path: Path, log: Log) -> None:
    """It is the same with two handles of the log, each of which derives its own state."""
    log.extend([b"%d" % i for i in range(500)])
    with penstock.open(path) as other:
        one, two = log.group("mail").worker(), other.group("mail").worker()
        seen: list[int] = []
        while jobs := one.poll(7) + two.poll(3):
            seen += [job.seq for job in jobs]
            for job in jobs:
                job.ack()
        assert seen == list(range(1, 501))
        one.group.close()
        two.group.close()


def test_a_group_goes_on_where_it_was(path: Path, kind: str, log: Log) -> None:
    """What was acked never comes again, in a later process either; what was not, does."""
    log.extend([b"a", b"b", b"c"])
    with log.group("mail") as group, group.worker() as worker:
        jobs = worker.poll(3)
        jobs[1].ack()
    with log.group("mail") as group, group.worker() as worker:
        again = worker.poll(3)
        assert values(again) == [b"a", b"c"]
        assert [job.deliveries for job in again] == [1, 1], "a close is no try"


def test_a_dead_worker_gives_back_what_it_had(log: Log) -> None:
    """What a dead worker was handed comes again at once, as another try; the rest as none."""
    log.extend([b"a", b"b", b"c"])
    group = log.group("mail")
    dead = group.worker(prefetch=3)
    next(dead)
    assert group.stats().claimed == 3
    die(dead)
    with group.worker(timeout=5) as heir:
        jobs = [next(heir) for _ in range(3)]
        assert [(job.event.value, job.deliveries) for job in jobs] == [
            (b"a", 2),
            (b"b", 1),
            (b"c", 1),
        ]


def test_the_block_acks_or_nacks(log: Log) -> None:
    """Leaving ``with job`` acks; an exception has it tried again, and goes on."""
    log.extend([b"a"])
    worker = log.group("mail", backoff=(0,)).worker(timeout=0)
    with pytest.raises(ZeroDivisionError), next(worker):
        raise ZeroDivisionError("no")
    with next(worker) as job:
        assert job.deliveries == 2
        assert worker.group.pending()[0].reason == "ZeroDivisionError: no"
    assert job.done
    assert list(worker) == []
    assert worker.group.stats().acked == 1


def test_a_worker_can_outlive_its_errors(log: Log) -> None:
    """With on_error="log" the worker goes on with the next job."""
    log.extend([b"a", b"b"])
    group = log.group("mail", deliveries=1)
    done = []
    for job in group.worker(timeout=0, on_error="log"):
        with job:
            if job.event.value == b"a":
                raise ValueError("bad")
            done.append(job.event.value)
    assert done == [b"b"]
    assert [letter.header("dead.reason") for letter in group.dead] == [b"ValueError: bad"]


def test_ctrl_c_is_not_the_fault_of_the_job(log: Log) -> None:
    """An exception that ends the program gives the event back, and no try is counted."""
    log.append(b"a")
    worker = log.group("mail").worker(timeout=0)
    with pytest.raises(KeyboardInterrupt), next(worker):
        raise KeyboardInterrupt
    assert next(worker).deliveries == 1


def test_a_worker_that_ends_with_an_error_tried(log: Log) -> None:
    """A worker that an exception ends has tried its job; a closed one has not."""
    log.append(b"a")
    group = log.group("mail")
    with pytest.raises(ValueError, match="boom"), group.worker() as worker:
        next(worker)
        raise ValueError("boom")
    assert next(group.worker()).deliveries == 2


def test_tries_run_out(log: Log) -> None:
    """After the given deliveries an event goes to the dead letters, with the last reason."""
    log.append(b"a", key=b"k", topic="t", headers={"x": b"1"}, tags=["red"])
    group = log.group("mail", deliveries=3, backoff=(0,))
    worker = group.worker(timeout=0)
    for i in range(3):
        next(worker).nack(reason=f"try {i}")
    assert list(worker) == []
    [letter] = group.dead
    assert (letter.value, letter.key, letter.topic, letter.tags) == (b"a", b"k", "t", ("red",))
    assert letter.header("x") == b"1"
    assert letter.header("dead.seq") == b"1"
    assert letter.header("dead.group") == b"mail"
    assert letter.header("dead.deliveries") == b"3"
    assert letter.header("dead.reason") == b"try 2"
    assert letter.header("dead.log") == log.path.encode()
    assert letter.time_ns == log[1].time_ns


def test_backoff_delays(log: Log) -> None:
    """Each failure delays the event by the next step of the backoff; delay= by that much."""
    log.append(b"a")
    group = log.group("mail", backoff=(100, 200))
    worker = group.worker(timeout=0)
    for steps in (100, 200, 7):
        before = time.time()
        next(worker).nack(delay=7 if steps == 7 else None)
        [found] = group.pending()
        assert found.state == "delayed" and found.next_try is not None
        assert steps - 1 < found.next_try.timestamp() - before < steps + 60
        assert list(worker) == []
        with group._desk.guard:  # the time has come
            group._desk.ledger.state.open[1].due = 1
            group._desk.ledger.state.offer_again([1])
    assert next(worker).deliveries == 4


def test_nacks_that_do_not_count(log: Log) -> None:
    """nack(count=False) has no delay and uses no try up."""
    log.append(b"a")
    worker = log.group("mail", deliveries=1).worker(timeout=0)
    for _ in range(5):
        job = next(worker)
        assert job.deliveries == 1
        job.nack(count=False)


def test_a_lost_job_conflicts(log: Log) -> None:
    """Settling an event that was taken from the worker raises Conflict, changes nothing."""
    log.extend([b"a", b"b"])
    group = log.group("mail")
    one, two = group.worker(timeout=0), group.worker(timeout=0)
    jobs = one.poll(2)
    assert group.release(one.number) == 2
    again = next(two)
    assert (again.seq, again.deliveries) == (1, 1)
    with pytest.raises(Conflict, match="has lost the event with seq"):
        jobs[0].ack()
    with pytest.raises(Conflict, match="has lost the event with seq"):
        jobs[1].ack(result=b"x")
    again.ack()
    other = next(one)
    assert other.seq == 2
    group.release(one.number)
    with pytest.raises(Conflict):
        other.nack()
    assert group.stats().acked == 1
    with pytest.raises(NotFound):
        log.result(2)


def test_a_batch_with_a_lost_job(log: Log) -> None:
    """Of a batch, what was not lost is acked; Conflict names what was."""
    log.extend([b"a", b"b", b"c"])
    group = log.group("mail")
    one, two = group.worker(), group.worker(timeout=0)
    jobs = one.poll(2)
    group.release(one.number)
    jobs += one.poll(3)
    assert [job.seq for job in jobs] == [1, 2, 1, 2, 3]
    with pytest.raises(Conflict, match="seq 1, 2:"):
        one.ack(jobs)
    assert group.stats().acked == 3
    assert list(two) == []


def test_settled_twice(log: Log) -> None:
    """A job is settled once; another time is a mistake of the caller."""
    log.append(b"a")
    job = next(log.group("mail").worker())
    job.ack()
    for settle in (job.ack, job.nack, job.reject, job.__enter__):
        with pytest.raises(Usage, match="settled already"):
            settle()


def test_keys_keep_their_order(log: Log) -> None:
    """With order="key" an event waits for the one before it of its key, through failures."""
    log.extend([Entry(b"%d" % i, key=key) for i, key in enumerate([b"a", b"a", b"b", b"a", None])])
    group = log.group("mail", order="key", backoff=(0,), deliveries=2)
    one, two = group.worker(timeout=0), group.worker(timeout=0)
    first = one.poll(10)
    assert values(first) == [b"0", b"2", b"4"]
    assert two.poll(10) == []
    first[0].nack()
    again = next(two)
    assert again.event.value == b"0"
    assert one.poll(10) == []
    again.nack()  # to the dead letters
    second = one.poll(10)
    assert values(second) == [b"1"]
    die(one)
    found = [(job.event.value, job.deliveries) for job in two.poll(10, timeout=5)]
    assert found == [(b"1", 2), (b"2", 2), (b"4", 2)]
    assert group.stats().waiting == 1


def test_a_redriven_event_waits_for_its_key(log: Log) -> None:
    """A dead letter that comes back never overlaps with another event of its key."""
    log.extend([Entry(b"%d" % i, key=b"a") for i in range(3)])
    group = log.group("mail", order="key")
    worker = group.worker(timeout=0)
    next(worker).reject()
    busy = next(worker)
    assert busy.event.value == b"1"
    assert group.redrive() == 1
    assert worker.poll() == []
    busy.ack()
    assert values(worker.poll(10)) == [b"0"]


def test_delayed_events(log: Log) -> None:
    """An event with not_before is handed out when it is due; later ones go first."""
    log.append(b"late", not_before="+300ms")
    log.append(b"now")
    group = log.group("mail")
    worker = group.worker(timeout=10)
    assert next(worker).event.value == b"now"
    assert [found.state for found in group.pending()] == ["delayed", "claimed"]
    job = next(worker)
    assert job.event.value == b"late"
    assert job.event.not_before is not None and time.time_ns() >= job.event.not_before


def test_only_what_it_wants(log: Log) -> None:
    """A group with a topic gets nothing else, and what it passed over holds nothing back."""
    for i in range(3000):
        log.append(b"%d" % i, topic="odd" if i % 1000 == 999 else "even")
    worker = log.group("mail", topic="odd").worker(timeout=0)
    assert values(worker.poll(100)) == [b"999", b"1999", b"2999"]
    assert worker.group._desk.ledger.state.cursor > 2000


def test_where_a_group_begins(log: Log) -> None:
    """``start`` counts when the group is made, and only then."""
    log.extend([b"a", b"b", b"c"])
    assert values(log.group("two", start=2).worker().poll(9)) == [b"b", b"c"]
    end = log.group("end", start="end").worker()
    assert end.poll(9) == []
    log.append(b"d")
    assert values(end.poll(9)) == [b"d"]
    assert values(log.group("end", start="start").worker().poll(9)) == []


def test_max_pending(log: Log) -> None:
    """All workers together never have more events than max_pending."""
    log.extend([b"x"] * 10)
    group = log.group("mail", max_pending=3)
    one, two = group.worker(), group.worker()
    jobs = one.poll(10)
    assert len(jobs) == 3
    assert two.poll(10) == []
    jobs[0].ack()
    assert len(two.poll(10)) == 1


def test_the_breaker(log: Log) -> None:
    """More dead letters in a minute than allowed stop the group, and it says so."""
    log.extend([b"x"] * 10)
    group = log.group("mail", dead_per_minute=2)
    worker = group.worker(timeout=0)
    for _ in range(3):
        next(worker).reject("no")
    with pytest.raises(Backpressure, match="more than 2 events went to the dead letters"):
        next(worker)
    assert group.stats().stopped is not None
    assert len(group.dead) == 3
    group.resume()
    assert next(worker).seq == 4


def test_leases(log: Log) -> None:
    """A job whose lease has ended goes to another worker; the first one's ack raises Conflict."""
    log.extend([b"a"])
    group = log.group("video", lease=0.05)
    one, two = group.worker(timeout=0), group.worker(timeout=10)
    job = next(one)
    again = next(two)
    assert (again.seq, again.deliveries) == (1, 2)
    with pytest.raises(Conflict):
        job.ack()
    again.extend(600)
    assert one.poll(timeout=0.2) == []
    again.ack()
    assert (group.stats().lapsed, group.stats().acked) == (1, 1)


def test_no_lease_to_extend(log: Log) -> None:
    """Without a lease there is nothing to extend, and nothing is silently ignored."""
    log.append(b"a")
    with pytest.raises(Usage, match="no lease to extend"):
        next(log.group("mail").worker()).extend(5)


def test_results(log: Log) -> None:
    """A result is there for whoever asks, by the event's seq; the newest counts."""
    log.extend([b"a", b"b"])
    worker = log.group("sums").worker()
    with pytest.raises(NotFound, match="no result of seq 1"):
        log.result(1)
    next(worker).ack(result=b"first")
    next(worker).ack()
    assert log.result(1) == log.result(1, timeout=1, group="sums") == b"first"
    with pytest.raises(NotFound):
        log.result(2, timeout=0.01)
    log.append(b"c")
    other = log.group("other").worker()
    other.poll(1)[0].ack(result=b"second")
    with pytest.raises(Usage, match="say which with group="):
        log.result(1)
    assert log.result(1, group="other") == b"second"


def test_redriving(log: Log) -> None:
    """Dead letters come back as if never tried: those that ``where`` selects, each once."""
    log.extend([b"%d" % i for i in range(6)])
    group = log.group("mail")
    worker = group.worker(timeout=0)
    for job in worker:
        job.reject("odd" if int(job.event.value or b"") % 2 else "even")

    def is_odd(letter: penstock.Event) -> bool:
        return letter.header("dead.reason") == b"odd"

    assert group.redrive(is_odd, dry_run=True) == 3
    assert group.stats().dead == 6
    assert group.redrive(is_odd, limit=2) == 2
    assert group.redrive(is_odd) == 1
    assert group.redrive(is_odd) == 0
    jobs = worker.poll(10)
    assert [(job.event.value, job.seq, job.deliveries) for job in jobs] == [
        (b"1", 2, 1),
        (b"3", 4, 1),
        (b"5", 6, 1),
    ]
    jobs[0].reject("again")
    assert group.redrive(is_odd) == 0
    assert len(group.dead) == 7


def test_inspecting(log: Log) -> None:
    """Everything unfinished is listed, with its worker; every worker with its claims."""
    log.extend([b"a", b"b"])
    group = log.group("mail")
    one = group.worker()
    job = next(one)
    [found] = group.pending()
    assert (found.seq, found.state, found.worker, found.deliveries) == (1, "claimed", one.number, 1)
    [info] = group.workers()
    assert (info.number, info.live, info.claims) == (one.number, True, 1)
    assert [(g.name, g.live, g.position, g.needed, g.lag.events) for g in log.groups()] == [
        ("mail", True, 2, 1, 1)
    ]
    job.ack()
    assert group.stats().acked_per_s > 0
    die(one)
    assert not group.workers()[0].live


def test_closed_is_closed(log: Log) -> None:
    """A closed worker, and a worker of a closed group, raise Closed, and closing twice is fine."""
    log.append(b"a")
    group = log.group("mail")
    worker = group.worker(timeout=0)
    job = next(worker)
    worker.close()
    worker.close()
    for call in (lambda: next(worker), worker.poll, job.ack):
        with pytest.raises(Closed, match="worker is closed"):
            call()
    group.close()
    group.close()
    for again in (group.worker, group.stats, group.pending, lambda: group.dead, group.redrive):
        with pytest.raises(Closed, match="'mail' is closed"):
            again()


def test_a_group_of_the_same_events(log: Log) -> None:
    """Two groups do not know of each other: each gets every event."""
    log.extend([b"a", b"b"])
    assert all_of(log.group("one").worker()) == all_of(log.group("two").worker()) == [1, 2]


def test_a_large_group_opens_from_its_snapshot(log: Log, kind: str) -> None:
    """Whatever was done, an opener reads a snapshot and a few decisions; old ones are deleted."""
    count = 2000 if kind == "ring" else 12_000
    for _ in range(count // 500):
        log.extend([b"x"] * 500)
    group = log.group("mail")
    worker = group.worker(timeout=0, batch=1)
    kept = []
    for job in worker:
        if job.seq % 1000 == 0:
            kept.append(job.seq)
        else:
            job.ack()
    worker.close()
    group.close()
    opened: Group = log.group("mail")
    book = opened._desk.ledger
    assert sorted(book.state.open) == kept
    assert book.snapped > 0 and book.state.at - book.snapped < 5000
    assert [job.seq for job in opened.worker().poll(100)] == kept


def test_prefetched_jobs_are_handed_out(log: Log) -> None:
    """What was claimed ahead comes one by one, and what was released meanwhile does not."""
    log.extend([b"%d" % i for i in range(7)])
    group = log.group("mail")
    worker = group.worker(prefetch=4, timeout=0)
    assert [next(worker).seq for _ in range(2)] == [1, 2]
    assert group.stats().claimed == 4
    group.release(worker.number)
    seen = []
    for job in worker:
        job.ack()
        seen.append(job.seq)
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_results_forget_the_oldest(log: Log) -> None:
    """Results take a bounded space, whatever is stored; the newest are there."""
    log.extend([b"x"] * 30)
    group = log.group("mail")
    worker = group.worker(timeout=0)
    for job in worker:
        job.ack(result=bytes(1 << 20))
    files = list((Path(group.path) / "results").glob("*.seg"))
    assert len(files) <= 6
    assert log.result(30) == bytes(1 << 20)
    with pytest.raises(NotFound):
        log.result(1)


def test_objects_in_dead_letters(tmp_path: Path) -> None:
    """A log of objects has dead letters of objects; other codecs of single events are kept."""
    with penstock.open(tmp_path / "log", codec="json") as log:
        log.append({"n": 1})
        log.append({"n": 2}, codec="msgpack")
        group = log.group("mail")
        for job in group.worker(timeout=0):
            job.reject(str(job.event.data["n"]))
        assert [letter.data for letter in group.dead] == [{"n": 1}, {"n": 2}]
        group.redrive()
        assert [job.event.data["n"] for job in group.worker(timeout=0)] == [1, 2]


def test_first_openers_agree(path: Path, log: Log) -> None:
    """Of two that make a group with other terms at the same time, one gets Usage."""
    told: list[object] = []
    ready = threading.Barrier(2)

    def make(deliveries: int) -> None:
        with penstock.open(path) as mine:
            ready.wait()
            try:
                with mine.group("mail", deliveries=deliveries) as group:
                    told.append(group.terms.deliveries)
            except Usage:
                told.append("refused")

    crew = [threading.Thread(target=make, args=(n,)) for n in (3, 4)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    assert "refused" in told
    assert len({3, 4} & set(told)) == 1
