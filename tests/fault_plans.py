"""A seeded plan of faults, and the record of those that were struck: both are files, so that a killed process loses
neither.

Every kind of request has a queue of its own. After a fault some requests of any kind pass, so that work is done between
two faults. Who makes a fault calls `struck` at that moment; what nobody struck is in `left`.
"""

import json
import os
import random
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

MOST_PASS = 12  # requests between two faults
Wanted = Mapping[str, Mapping[str, int]]  # request -> fault -> how many


class Fault(NamedTuple):
    number: int
    request: str
    what: str
    after: int  # requests that pass between the last fault and this one

    def __str__(self) -> str:
        return f"{self.what} @ {self.request}"


def draw(seed: int, wanted: Wanted) -> list[Fault]:
    """As many faults of each kind as wanted, in an order that the seed draws."""
    generator = random.Random(seed)
    kinds = [(request, what) for request, row in wanted.items() for what, count in row.items() for _ in range(count)]
    generator.shuffle(kinds)
    return [Fault(number, *kind, generator.randint(0, MOST_PASS)) for number, kind in enumerate(kinds)]


class Plan:
    """The faults that are left in `folder`; it strikes only after `arm`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock, self._armed = threading.Lock(), False
        self._queues: dict[str, deque[Fault]] = defaultdict(deque)
        self._passed = 0
        for fault in self.left():
            self._queues[fault.request].append(fault)

    @classmethod
    def make(cls, folder: Path, faults: list[Fault]) -> "Plan":
        folder.mkdir(parents=True)
        (folder / "plan.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
        (folder / "struck.jsonl").touch()
        return cls(folder)

    def arm(self) -> None:
        (self.folder / "armed").touch()

    def all(self) -> list[Fault]:
        return [Fault(*fields) for fields in _lines(self.folder / "plan.jsonl")]

    def strokes(self) -> list[Fault]:
        return [Fault(*fields) for fields in _lines(self.folder / "struck.jsonl")]

    def left(self) -> list[Fault]:
        done = {fault.number for fault in self.strokes()}
        return [fault for fault in self.all() if fault.number not in done]

    def due(self, request: str, *, at_once: bool = False) -> Fault | None:
        """The fault that this request is to meet. Its maker says `struck`, or gives it `back`.

        `at_once`: for requests that are so rare that none of them may pass.
        """
        with self._lock:
            self._armed = self._armed or (self.folder / "armed").exists()
            queue = self._queues.get(request)
            self._passed += self._armed
            if not self._armed or not queue:
                return None
            if self._passed <= queue[0].after * self._share(queue) and not at_once:
                return None
            self._passed = 0
            return queue.popleft()

    def _share(self, queue: deque[Fault]) -> float:
        """Of the requests that are to pass: rare requests, of which most faults are left, are struck sooner."""
        lengths = [len(each) for each in self._queues.values()]
        return 0.25 if len(lengths) > 2 and len(queue) == max(lengths) else 1.0

    def struck(self, fault: Fault) -> None:
        line = (json.dumps(fault) + "\n").encode()
        descriptor = os.open(self.folder / "struck.jsonl", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def back(self, fault: Fault) -> None:
        """It could not be made here: its turn comes again."""
        with self._lock:
            self._passed = fault.after
            self._queues[fault.request].appendleft(fault)


def _lines(path: Path) -> Iterator[list]:
    """Lines of JSON; the last one may be half written by somebody who was killed."""
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def counts(plans: Mapping[str, Plan]) -> Iterator[tuple[str, int, int]]:
    """For each place and kind of fault how many were to be struck, and how many were."""
    rows: Counter[tuple[str, str]] = Counter()
    struck: Counter[tuple[str, str]] = Counter()
    for place, plan in plans.items():
        rows.update((place, fault.what) for fault in plan.all())
        struck.update((place, fault.what) for fault in plan.strokes())
    for place, what in sorted(rows):
        yield f"A mirror ({place}): {what}", rows[place, what], struck[place, what]
