"""A mail queue: several workers, retries with delays, dead letters.

    python -m examples.mail_queue DIRECTORY [WORKERS]

Each worker is a process; kill one, and the others go on with what it had.
"""

from __future__ import annotations

import multiprocessing
import sys

import penstock

ADDRESSES = ["ann@example.org", "bob@example.org", "nonsense", "eve@example.org"]


def send(address: str) -> None:
    """Where a real one would talk to a mail server."""
    if "@" not in address:
        raise ValueError(f"{address!r} is no address")
    print(f"sent to {address}\n", end="", flush=True)


def work(path: str) -> None:
    """Send until nothing has come for half a second."""
    with penstock.open(path) as log, log.group("send") as group:
        for job in group.worker(timeout=0.5, on_error="log"):
            with job:
                send(job.event.value.decode())


def main(path: str, workers: int = 2) -> None:
    """Append some mails, and have them sent."""
    with penstock.open(path) as log:
        log.group("send", deliveries=3, backoff=(0.05, 0.1)).close()
        log.extend([address.encode() for address in ADDRESSES])
        crew = [multiprocessing.Process(target=work, args=(path,)) for _ in range(workers)]
        for worker in crew:
            worker.start()
        for worker in crew:
            worker.join()
        with log.group("send") as group:
            for letter in group.dead:
                reason, tries = letter.header("dead.reason"), letter.header("dead.deliveries")
                print("given up:", letter.value, reason, "after", tries, "tries")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
