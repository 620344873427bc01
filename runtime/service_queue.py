"""Sentences that wait in a service: who may share a batch, and who comes next.

Sentences of equal shared options (`SearchOptions.of_batch`), like length and requests of like size
share batches: a group. A worker serves several groups at once, a batch each, which share its tokens
and take turns step by step; so nobody waits until the batch of another group has run out. A worker
with as many groups as it may have lets its oldest batch run out once a group waits that nobody
serves.

Within a group, requests take turns: each round takes one sentence of every request that waits, the
longest first. So a request of thousands of sentences holds up nobody, and what waits when a round
is formed is taken before what came later.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition, Lock

from translate_trt.runtime.errors import TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.search import Room, Sentence

#: Sentences of more tokens share no batch with shorter ones, which would wait for their end: all
#: sentences of a batch together have `batch_tokens` of the longest one's length.
LONG = 64

#: Of requests that have more sentences in the service, the others share no batch with those of
#: small requests, which would wait for a row of it, and then for each of its longer steps.
LARGE = 8


@dataclass(frozen=True)
class Group:
    """Sentences that may share a batch.

    Attributes:
        options: what all of them share (`SearchOptions.of_batch`).
        long: they have more than LONG tokens.
        large: they are of requests with more than LARGE sentences.
        alone: index of a sentence that a worker died with, which from then on shares with none.
    """

    options: SearchOptions
    long: bool = False
    large: bool = False
    alone: int | None = None


@dataclass
class _Members:
    """The waiting sentences of a group.

    Attributes:
        requests: by request, its sentences, the shortest first, but for those of the round.
        round: at most one of each request, the shortest first.
    """

    requests: dict[int, list[Sentence]] = field(default_factory=dict)
    round: list[tuple[int, Sentence]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.round) + sum(map(len, self.requests.values()))

    def add(self, request: int, sentences: Sequence[Sentence]) -> None:
        theirs = self.requests.setdefault(request, [])
        theirs.extend(sentences)
        theirs.sort(key=_length)

    def all_requests(self) -> set[int]:
        return self.requests.keys() | {request for request, _ in self.round}

    def longest(self) -> int:
        """Tokens of the one who comes next, the end symbol included; somebody must wait."""
        if not self.round:
            self.round = [(request, theirs.pop()) for request, theirs in self.requests.items()]
            self.round.sort(key=lambda one: _length(one[1]))
            self.requests = {request: theirs for request, theirs in self.requests.items() if theirs}
        return _length(self.round[-1][1]) + 1

    def take(self, count: int) -> list[Sentence]:
        """So many of the round, longest first."""
        first = max(len(self.round) - count, 0)
        taken = [sentence for _, sentence in self.round[first:][::-1]]
        del self.round[first:]
        return taken

    def drop(self, request: int) -> list[Sentence]:
        """Take out all sentences of a request."""
        dropped = [sentence for of, sentence in self.round if of == request]
        self.round = [one for one in self.round if one[0] != request]
        return dropped + self.requests.pop(request, [])


def _length(sentence: Sentence) -> int:
    return len(sentence.tokens)


@dataclass(frozen=True)
class Load:
    """Sentences in a service; long lines count with each of their pieces.

    Attributes:
        waiting: for a batch.
        running: in batches.
    """

    waiting: int
    running: int


class ServiceQueue:
    """What the workers of a service share.

    Args:
        workers: how many there are, numbered from 0.
        capacity: sentences in the service, waiting or not, from which on `put` waits; None: any.
        begin: is asked of each sentence that a batch is about to take; False: nobody wants it.
        batches: that a worker may run at once.
    """

    def __init__(
        self,
        workers: int,
        capacity: int | None,
        begin: Callable[[Sentence], bool],
        batches: int = 1,
    ) -> None:
        self._capacity, self._begin, self._batches = capacity, begin, batches
        lock = Lock()
        self._arrival, self._departure = Condition(lock), Condition(lock)
        self._waiting: dict[Group, _Members] = {}  # in the order in which they began to wait
        self._running: dict[Group, set[int]] = {}  # indices of sentences in batches
        self._serves: list[list[Group]] = [[] for _ in range(workers)]  # by worker, oldest first
        self._next: dict[int, Group] = {}  # by worker, what it serves once a batch has run out
        # Of which group and worker a batch has not had any sentence yet.
        self._fresh: set[tuple[int, Group]] = set()
        self._requests: dict[int, int] = {}  # by index of the sentence
        self._sizes: Counter[int] = Counter()  # by request, its sentences in the service
        self._size = 0
        self._closed = False
        self._failure: BaseException | None = None

    # ---- for those who send ----

    def put(self, options: SearchOptions, sentences: Sequence[Sentence], request: int) -> None:
        """Let sentences wait; first wait until the service is not full.

        Raises:
            TranslateTrtError: the service was closed, or has failed.
        """
        with self._departure:
            while self._is_full() and not self._closed:
                self._departure.wait()
            if self._failure is not None:
                raise TranslateTrtError(
                    f"the translation service has failed ({self._failure!r}); make another one."
                )
            if self._closed:
                raise TranslateTrtError("the translation service is closed; make another one.")
            self._size += len(sentences)
            self._requests |= {one.index: request for one in sentences}
            self._sizes[request] += len(sentences)
            large = self._sizes[request] > LARGE
            by_length = itertools.groupby(
                sorted(sentences, key=_length), lambda one: _length(one) > LONG
            )
            for long, some in by_length:
                self._add(Group(options, long, large), list(some), request)

    def close(self, failure: BaseException | None = None) -> None:
        """Take no more; the workers end once all sentences are done, or at once after a failure."""
        with self._arrival:
            self._closed = True
            self._failure = self._failure or failure
            self._arrival.notify_all()
            self._departure.notify_all()

    def drop_waiting(self, request: int | None = None) -> list[Sentence]:
        """Forget all that wait, or those of a request."""
        with self._arrival:
            dropped = list[Sentence]()
            for group, members in list(self._waiting.items()):
                of = members.all_requests()
                for one in of if request is None else of & {request}:
                    dropped += members.drop(one)
                if not members:
                    del self._waiting[group]
            self._left({one.index for one in dropped})
        return dropped

    def load(self) -> Load:
        """Count waiting and running sentences."""
        with self._arrival:
            return Load(
                sum(map(len, self._waiting.values())), sum(map(len, self._running.values()))
            )

    @property
    def failed(self) -> bool:
        """True once `close` was given a failure."""
        return self._failure is not None

    # ---- for workers ----

    def next_group(self, worker: int, wait: bool = True) -> Group | None:
        """A group that the worker is to begin a batch of.

        Args:
            worker: its number.
            wait: until there is one; then None: there will be none. Else None: none now.
        """
        with self._arrival:
            while self._failure is None and (self._size or not self._closed):
                group = self._to_begin(worker)
                if group is not None:
                    self._serves[worker].append(group)
                    self._fresh.add((worker, group))
                    return group
                if not wait:
                    return None
                self._arrival.wait()
            return None

    def end(self, worker: int, group: Group) -> None:
        """The worker's batch of that group has run out, or has failed."""
        with self._arrival:
            self._serves[worker].remove(group)
            self._fresh.discard((worker, group))

    def ready(self, worker: int, group: Group, room: Room) -> int:
        """How many `take` would give now, unless nobody wants them any more."""
        with self._arrival:
            members = self._waiting.get(group)
            if members is None or self._yields(worker, group):
                return 0
            room = self._part(worker, room)
            return min(len(members), self._fair(group, room), room.more(members.longest()))

    def take(self, worker: int, group: Group, room: Room) -> list[Sentence]:
        """Sentences for the worker's batch of that group."""
        taken = list[Sentence]()
        with self._arrival:
            room = self._part(worker, room)
            while (members := self._waiting.get(group)) and not self._yields(worker, group):
                count = min(room.more(members.longest()), self._fair(group, room))
                some = members.take(count)
                if not members:
                    del self._waiting[group]
                if not some:
                    break
                wanted = [one for one in some if self._begin(one)]
                self._left({one.index for one in some} - {one.index for one in wanted})
                self._running.setdefault(group, set()).update(one.index for one in wanted)
                taken += wanted
                longest = max((_length(one) + 1 for one in taken), default=0)
                room = replace(
                    room,
                    beside=room.beside + len(wanted),
                    longest=max(room.longest, longest),
                )
            self._fresh.discard((worker, group))
        return taken

    def share(self, worker: int, sentences: Sequence[Sentence]) -> float:
        """Number of requests in a batch of the worker; one in n of its batches counts 1 / n."""
        with self._arrival:
            batches = [
                {self._requests[index] for index in self._running.get(group, ())}
                for group in self._serves[worker]
            ]
            here = {self._requests[one.index] for one in sentences}
            return sum(1 / max(sum(one in some for some in batches), 1) for one in here)

    def done(self, group: Group, sentences: Sequence[Sentence]) -> None:
        """Sentences of a batch have left the service."""
        with self._arrival:
            indices = {one.index for one in sentences}
            self._stop(group, indices)
            self._left(indices)

    def retry(self, group: Group, sentences: Sequence[Sentence]) -> None:
        """Let sentences of a batch that is no more wait again, each for a batch of its own."""
        with self._arrival:
            self._stop(group, {one.index for one in sentences})
            for one in sentences:
                alone = replace(group, alone=one.index)
                self._add(alone, [one], self._requests[one.index])

    # ---- with the lock held ----

    def _is_full(self) -> bool:
        return self._capacity is not None and self._size >= self._capacity

    def _add(self, group: Group, sentences: Sequence[Sentence], request: int) -> None:
        self._waiting.setdefault(group, _Members()).add(request, sentences)
        self._arrival.notify(len(sentences))

    def _stop(self, group: Group, indices: set[int]) -> None:
        running = self._running.get(group, set())
        running -= indices
        if not running:
            self._running.pop(group, None)

    def _left(self, indices: set[int]) -> None:
        self._size -= len(indices)
        for index in indices:
            request = self._requests.pop(index)
            self._sizes[request] -= 1
            if not self._sizes[request]:
                del self._sizes[request]
        self._departure.notify(len(indices))
        if self._closed and not self._size:
            self._arrival.notify_all()

    def _to_begin(self, worker: int) -> Group | None:
        serves = self._serves[worker]
        if len(serves) >= self._batches:
            return None
        group = self._next.pop(worker, None)
        if group not in self._waiting or group in serves:
            # A worker without a batch begins one soonest.
            group = None if serves and not all(self._serves) else self._unserved()
        if group is not None:
            return group
        # Where every group has somebody, the one with most to do gets help of a worker without a
        # batch; where there is no such worker, of one whose own groups have fewer requests.
        if serves and not all(self._serves):
            return None
        others = (one for one in self._waiting if one not in serves)
        group = max(others, key=lambda one: len(self._waiting[one]), default=None)
        if group is None or not serves:
            return group
        own = set[int]()
        for one in serves:
            own |= {self._requests[index] for index in self._running.get(one, ())}
            own |= self._waiting[one].all_requests() if one in self._waiting else set()
        return group if len(self._waiting[group].all_requests()) > len(own) else None

    def _unserved(self) -> Group | None:
        """The first group that waits for somebody to serve it."""
        served = {*itertools.chain(*self._serves), *self._next.values()}
        return next((group for group in self._waiting if group not in served), None)

    def _yields(self, worker: int, group: Group) -> bool:
        """True if this batch, the worker's oldest, is to run out, for the sake of another group."""
        if (worker, group) in self._fresh or group != self._serves[worker][0]:
            return False
        if self._next.get(worker) in self._waiting:
            return True
        self._next.pop(worker, None)
        full = all(len(serves) >= self._batches for serves in self._serves)
        found = self._unserved() if full else None
        if found is not None:
            self._next[worker] = found
        return found is not None

    def _part(self, worker: int, room: Room) -> Room:
        """Capacity of a batch beside the worker's other batches, which share its tokens."""
        return replace(room, batch_tokens=room.batch_tokens // len(self._serves[worker]))

    def _fair(self, group: Group, room: Room) -> int:
        """How many more a batch takes, so that all workers have like numbers."""
        others = sum(bool(serves) and group not in serves for serves in self._serves)
        all_sentences = len(self._waiting[group]) + len(self._running.get(group, ()))
        share = math.ceil(all_sentences / max(len(self._serves) - others, 1))
        return max(share - room.beside, 0 if room.beside else 1)
