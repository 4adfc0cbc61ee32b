"""Per-customer order: many customers at once, but one step of a customer after the other.

python -m examples.ordered_jobs DIRECTORY
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict

import penstock

STEPS = ["order", "pay", "pack", "ship"]


def main(path: str, customers: int = 5, workers: int = 3) -> dict[str, list[str]]:
    """Append steps of several customers, mixed, and do them; what was done, by customer."""
    done: dict[str, list[str]] = defaultdict(list)
    with penstock.open(path) as log, log.group("shop", order="key", backoff=(0.01,)) as group:
        for step in STEPS:
            for customer in range(customers):
                log.append(step.encode(), key=b"customer-%d" % customer)

        def work() -> None:
            for job in group.worker(timeout=0.3):
                if job.event.value == b"pay" and job.deliveries == 1:
                    job.nack(reason="the bank is busy")  # the customer's later steps wait
                    continue
                with job:
                    customer = (job.event.key or b"").decode()
                    done[customer].append(job.event.value.decode())

        crew = [threading.Thread(target=work) for _ in range(workers)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
    return done


if __name__ == "__main__":
    for name, steps in sorted(main(sys.argv[1]).items()):
        print(name, *steps)
