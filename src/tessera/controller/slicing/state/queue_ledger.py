"""What each queue holds of the cards, now and with its decayed past: the shares by which waiting pods are ordered.

The resource is the memory slot of a card model: slots of an A100 and of an H100 are different resources, and the share
of a queue is its *dominant* share, the largest over the models (DRF: Ghodsi et al., NSDI '11). Usage decays as in
Kueue's admission fair sharing: ``usage = A x held + (1 - A) x usage`` with ``A = 1 - 0.5 ^ (dt / halfLife)``. A queue
counts for the larger of what it holds and its decayed usage, divided by its weight.

What is held is constant between two calls of :meth:`QueueLedger.assign`, so usage is computed only when it is read.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from heapq import nsmallest

from tessera.api.names import PodUid
from tessera.api.queues import HALF_LIFE, Queue, Share
from tessera.limits import SPARE_SLICES

#: Most queues whose usage the controller remembers. Some 650 bytes each; of more, the namespaces without a Queue that
#: hold nothing and have used least are forgotten.
QUEUE_ACCOUNTS = 10_000


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod holds, or asks for.

    Attributes:
        slots: memory slots by model of card.
        gib: GPU memory.
    """

    slots: Mapping[str, int]
    gib: int

    @property
    def total(self) -> int:
        """Memory slots of all models."""
        return sum(self.slots.values())


NO_SLOTS = Holding({}, 0)


@dataclass(slots=True)
class QueueAccount:
    """The account of one queue.

    Attributes:
        held: memory slots that its pods hold, by model.
        gib: GPU memory that they hold.
        usage: decayed usage by model, as it was at ``date``.
        date: seconds since 1970.
    """

    held: Counter[str] = field(default_factory=Counter)
    gib: int = 0
    usage: dict[str, float] = field(default_factory=dict)
    date: float = 0.0

    def used(self, half_life: float, now: float) -> dict[str, float]:
        """Decayed usage at a time."""
        if half_life <= 0 or not self.date:
            return dict(self.held)
        left = 0.5 ** (max(0.0, now - self.date) / half_life)
        models = self.held.keys() | self.usage.keys()
        return {each: self.held[each] + (self.usage.get(each, 0.0) - self.held[each]) * left for each in models}

    def total_used(self, half_life: float, now: float) -> float:
        """Decayed usage of all models at a time."""
        return sum(self.used(half_life, now).values())

    def settle(self, half_life: float, now: float) -> None:
        """Brings the decayed usage up to a time."""
        if now:
            self.usage, self.date = self.used(half_life, now), now if not self.date else max(now, self.date)


class QueueLedger:
    """The accounts of all queues, and the pods that count for each.

    Args:
        queues: the Queue objects by name; the ledger changes it.
    """

    def __init__(self, queues: dict[str, Queue]) -> None:
        self.queues = queues
        #: The spare slices of queues that keep some: :attr:`tessera.api.queues.Queue.spare`, and those reckoned.
        self.spares: dict[str, Mapping[str, int]] = {}
        #: By queue and profile, the reckoned numbers with the words how they came.
        self.reckoned: dict[tuple[str, str], tuple[int, str]] = {}
        #: Accounts; none without any Queue object. Of too many those with the least usage are dropped.
        self._accounts: dict[str, QueueAccount] = {}
        #: Accounts that were left when some were dropped last.
        self._left = 0
        #: What each pod holds, with its queue.
        self._pods: dict[PodUid, tuple[str, Holding]] = {}
        #: Queues of which a pod that waits for the maximum may fit now; see
        #: :mod:`tessera.controller.slicing.state.waiting_pods`.
        self.relieved: set[str] = set()

    # Objects

    def put(self, queue: Queue, now: float) -> None:
        """Takes in an object; recorded usage counts if the queue has no account in memory."""
        known = self.queues.get(queue.name)
        account = self._accounts.setdefault(queue.name, QueueAccount())
        if known is None and queue.usage_time and not account.usage:
            account.usage, account.date = dict(queue.usage), min(queue.usage_time, now or queue.usage_time)
        elif known is not None and known.half_life != queue.half_life:
            account.settle(known.half_life, now)
        self.queues[queue.name] = queue
        self._note_spares(queue.name, queue.spare, queue.auto)
        self.relieved.add(queue.name)

    def reckon(self, name: str, profile: str, number: int, why: str) -> None:
        """Sets the number of spare slices of a profile that a queue leaves to the controller.

        It gets no more than are left of :data:`SPARE_SLICES`, which all profiles of the queue share.
        """
        left = max(0, SPARE_SLICES - sum(count for other, count in self.spares[name].items() if other != profile))
        if number > left:
            number, why = left, f"{why}; {SPARE_SLICES} of all profiles together"
        self.reckoned[name, profile] = number, why
        self.spares[name] = {**self.spares[name], profile: number}

    def _note_spares(self, name: str, spare: Mapping[str, int], auto: AbstractSet[str] = frozenset()) -> None:
        for gone in [each for each in self.reckoned if each[0] == name and each[1] not in auto]:
            del self.reckoned[gone]
        if spare or auto:
            known = {profile: self.reckoned.get((name, profile), (0, ""))[0] for profile in sorted(auto)}
            self.spares[name] = {**spare, **known}
        else:
            self.spares.pop(name, None)

    def drop(self, name: str) -> None:
        """Forgets an object; its pods count on without a limit."""
        self.queues.pop(name, None)
        self._note_spares(name, {})
        self.relieved.add(name)
        if not self.queues:  # nothing is counted until there is a Queue again
            self._accounts.clear()
            self._pods.clear()

    # Pods

    def assign(self, uid: PodUid, queue: str, holding: Holding | None, now: float) -> None:
        """Counts what a pod holds for a queue and no other; None if it holds nothing."""
        before = self._pods.get(uid)
        after = None if holding is None else (queue, holding)
        if before == after:
            return
        if before is not None:
            self._change(*before, -1, now)
            del self._pods[uid]
            self.relieved.add(before[0])
        if after is not None:
            self._pods[uid] = after
            self._change(*after, 1, now)

    def _change(self, name: str, holding: Holding, sign: int, now: float) -> None:
        account = self._accounts.setdefault(name, QueueAccount())
        account.settle(self._half_life(name), now)
        for model, slots in holding.slots.items():
            account.held[model] += sign * slots
            if not account.held[model]:
                del account.held[model]
        account.gib += sign * holding.gib
        if len(self._accounts) > max(QUEUE_ACCOUNTS, self._left + QUEUE_ACCOUNTS // 2):
            self._forget_least(now)

    def _forget_least(self, now: float) -> None:
        """Drops the accounts with the least usage, of namespaces that hold nothing, until half of the limit is left.

        If more must stay, the next time is when half of the limit has been added: all accounts are looked at each time.
        """
        idle = (name for name, each in self._accounts.items() if not each.held and name not in self.queues)
        surplus = len(self._accounts) - QUEUE_ACCOUNTS // 2
        for name in nsmallest(surplus, idle, key=lambda each: self._accounts[each].total_used(HALF_LIFE, now)):
            del self._accounts[name]
        self._left = len(self._accounts)

    def _half_life(self, name: str) -> float:
        queue = self.queues.get(name)
        return HALF_LIFE if queue is None else queue.half_life

    # Answers

    def account(self, name: str) -> QueueAccount:
        """Returns a queue's account; an empty one if nothing is known."""
        return self._accounts.get(name) or QueueAccount()

    def share(self, name: str, totals: Mapping[str, int], now: float, more: Mapping[str, int] | None = None) -> float:
        """Returns a queue's dominant share by its weight.

        Args:
            name: the queue.
            totals: memory slots of all cards, by model.
            now: seconds since 1970.
            more: slots that count as held too.
        """
        account, queue = self.account(name), self.queues.get(name)
        used = account.used(self._half_life(name), now)
        extra = more or {}
        counts = {
            model: max(account.held[model] + extra.get(model, 0), used.get(model, 0.0))
            for model in {*used, *account.held, *extra}
        }
        largest = max((count / max(1, totals.get(model, 0)) for model, count in counts.items()), default=0.0)
        return largest / (queue.weight if queue is not None else 1)

    def is_below(self, name: str, share: Share | None, more: Holding) -> bool:
        """True if a queue, with this added, holds no more than a share; False without a share."""
        if share is None:
            return False
        account = self.account(name)
        held = account.gib + more.gib if share.gib else account.held.total() + more.total
        return held <= share.amount

    def is_above_maximum(self, name: str, more: Holding) -> bool:
        """True if a queue, with this added, would hold more than its maximum."""
        queue = self.queues.get(name)
        return queue is not None and queue.maximum is not None and not self.is_below(name, queue.maximum, more)
