"""Sentences that wait in a service: who may share a batch, and who comes next.

Sentences of one group share batches: those whose `SearchOptions.of_batch` are equal. A worker
serves one group as long as any of it wait, and lets them into the batch that is under way. So that
no group starves, a worker whose batch is running takes no more into it once another group waits
that nobody serves: it lets its batch run out and serves that one next. Within a group nobody
starves either: what waits when the last of it were taken is taken, longest first, before what came
later.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Lock

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.search import Room, Sentence


@dataclass(frozen=True)
class Group:
    """Sentences that may share a batch.

    Attributes:
        options: what all of them share (`SearchOptions.of_batch`).
        alone: index of a sentence that a worker died with, which from then on shares with none.
    """

    options: SearchOptions
    alone: int | None = None


@dataclass
class _Members:
    """The waiting sentences of a group: those whose turn it is by length, and who came since."""

    turn: list[Sentence] = field(default_factory=list)
    arrived: list[Sentence] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.turn) + len(self.arrived)

    def longest(self) -> int:
        """Tokens of the one who comes next, the end symbol included; somebody must wait."""
        if not self.turn:
            self.turn = sorted(self.arrived, key=lambda one: len(one.tokens))
            self.arrived = []
        return len(self.turn[-1].tokens) + 1

    def take(self, count: int) -> list[Sentence]:
        """So many of those whose turn it is, longest first."""
        first = max(len(self.turn) - count, 0)
        taken = self.turn[first:][::-1]
        del self.turn[first:]
        return taken


class ServiceQueue:
    """What the workers of a service share.

    Args:
        workers: how many there are, numbered from 0.
        capacity: sentences in the service, waiting or not, from which on `put` waits; None: any.
        begin: is asked of each sentence that a batch is about to take; False: nobody wants it.
    """

    def __init__(
        self, workers: int, capacity: int | None, begin: Callable[[Sentence], bool]
    ) -> None:
        self._workers, self._capacity, self._begin = workers, capacity, begin
        lock = Lock()
        self._arrival, self._departure = Condition(lock), Condition(lock)
        self._waiting: dict[Group, _Members] = {}  # in the order in which they began to wait
        self._running: Counter[Group] = Counter()  # sentences in batches
        self._serves: dict[int, Group] = {}  # by worker
        self._next: dict[int, Group] = {}  # by worker, what it serves once its batch has run out
        self._fresh: set[int] = set()  # workers whose batch has not had any of the group yet
        self._size = 0
        self._closed = False

    # ---- for those who send ----

    def put(self, options: SearchOptions, sentences: Sequence[Sentence]) -> None:
        """Let sentences wait; first wait for room.

        Raises:
            TranslateTrtError: the service was closed.
        """
        with self._departure:
            while self._is_full() and not self._closed:
                self._departure.wait()
            if self._closed:
                raise TranslateTrtError("the translation service is closed; make another one.")
            self._size += len(sentences)
            self._add(Group(options), sentences)

    def close(self) -> None:
        """Take no more; the workers end once all sentences are done."""
        with self._arrival:
            self._closed = True
            self._arrival.notify_all()
            self._departure.notify_all()

    def drop_waiting(self) -> list[Sentence]:
        """Forget all who wait."""
        with self._arrival:
            groups = self._waiting.values()
            dropped = [one for members in groups for one in (*members.turn, *members.arrived)]
            self._waiting.clear()
            self._left(len(dropped))
        return dropped

    # ---- for workers ----

    def next_group(self, worker: int) -> Group | None:
        """Wait for sentences that a worker without a batch can serve; None: there will be none."""
        with self._arrival:
            self._serves.pop(worker, None)
            while self._size or not self._closed:
                group = self._next.pop(worker, None)
                if group not in self._waiting:
                    # Where every group has somebody, the one with most to do gets help.
                    group = self._unserved() or max(
                        self._waiting, key=lambda one: len(self._waiting[one]), default=None
                    )
                if group is not None:
                    self._serves[worker] = group
                    self._fresh.add(worker)
                    return group
                self._arrival.wait()
            return None

    def ready(self, worker: int, room: Room) -> int:
        """How many `take` would give now, unless nobody wants them any more."""
        with self._arrival:
            group = self._serves[worker]
            members = self._waiting.get(group)
            if self._yields(worker) or members is None:
                return 0
            return min(len(members), self._fair(group, room), room.more(members.longest()))

    def take(self, worker: int, room: Room) -> list[Sentence]:
        """Sentences for the worker's batch, of the group that it serves."""
        group, taken = self._serves[worker], list[Sentence]()
        with self._arrival:
            while not self._yields(worker) and (members := self._waiting.get(group)):
                count = min(room.more(members.longest()), self._fair(group, room))
                some = members.take(count)
                if not members:
                    del self._waiting[group]
                if not some:
                    break
                wanted = [one for one in some if self._begin(one)]
                self._left(len(some) - len(wanted))
                self._running[group] += len(wanted)
                taken += wanted
                longest = max((len(one.tokens) + 1 for one in taken), default=0)
                room = replace(
                    room,
                    beside=room.beside + len(wanted),
                    longest=max(room.longest, longest),
                )
            self._fresh.discard(worker)
        return taken

    def done(self, group: Group, count: int = 1) -> None:
        """Sentences of a batch have left the service."""
        with self._arrival:
            self._running -= Counter({group: count})
            self._left(count)

    def retry(self, group: Group, sentences: Sequence[Sentence]) -> None:
        """Let sentences of a batch that is no more wait again, each for a batch of its own."""
        with self._arrival:
            self._running -= Counter({group: len(sentences)})
            for one in sentences:
                self._add(Group(group.options, one.index), [one])

    # ---- with the lock held ----

    def _is_full(self) -> bool:
        return self._capacity is not None and self._size >= self._capacity

    def _add(self, group: Group, sentences: Sequence[Sentence]) -> None:
        self._waiting.setdefault(group, _Members()).arrived.extend(sentences)
        self._arrival.notify(len(sentences))

    def _left(self, count: int) -> None:
        self._size -= count
        self._departure.notify(count)
        if self._closed and not self._size:
            self._arrival.notify_all()

    def _unserved(self) -> Group | None:
        """The first group that waits for somebody to serve it."""
        served = {*self._serves.values(), *self._next.values()}
        return next((group for group in self._waiting if group not in served), None)

    def _yields(self, worker: int) -> bool:
        """True if the worker's batch is to run out, for the sake of another group."""
        if worker in self._fresh:
            return False
        if self._next.get(worker) in self._waiting:
            return True
        self._next.pop(worker, None)
        group = self._unserved() if len(self._serves) == self._workers else None
        if group is not None:
            self._next[worker] = group
        return group is not None

    def _fair(self, group: Group, room: Room) -> int:
        """How many more a batch takes, so that all workers have like numbers."""
        others = sum(one != group for one in self._serves.values())
        all_sentences = len(self._waiting[group]) + self._running[group]
        share = math.ceil(all_sentences / (self._workers - others))
        return max(share - room.beside, 0 if room.beside else 1)
