"""The mix of requests for whole cards and shares, learnt from the pods that exist.

The caller adds a pod when it counts, and removes it when it has ended, so the mix follows the cluster, and a process
that starts anew and adds the same pods has the same mix. What is computed from the mix is computed anew only when it
changed enough: it never stands still.

Pods that wait count for the shares and the prices only. The CPU and memory beside a card are means over the pods that
hold cards: a pod that no node admits may request any amount.

A card model has a price (:func:`scarcity`): a pod that any model suits should not take what others will need. Requests
are bound to a group of models if only these suit them: by what they select, or since only nodes with these models are
large enough. The share of the requests that is bound to a group says how much of the coming demand is. What is bound to
the group, over what is free of it, is compared with all demand over all that is free: where every request suits every
model nothing has a price, and a price of 1 means that the group is asked for about twice as much as the rest.
``bench/openb.py`` measures the rule on traces.

A card has :data:`CARD` thousandths; a share of a card that is divided beforehand is a small card of its own. The free
cards of a node are counted by what is free of them, since cards with equally much are alike.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tessera.placement.topology import Joined

#: Thousandths of a whole card.
CARD = 1000
#: The cards with something free: free thousandths of a card, and the number of such cards; least free first.
FreeCards = tuple[tuple[int, int], ...]
#: Cards of one model and one resource, by name.
Kind = str

#: Units in which nodes and requests are compared: thousandths of a CPU, and MiB of memory.
CPU_STEP, MEMORY_STEP = 1_000, 4_096


class CardRequest(NamedTuple):
    """What a pod requests.

    Attributes:
        cpu: thousandths of a CPU.
        memory: MiB.
        cards: number of cards; 0 for a pod without.
        part: thousandths of each card.
        kinds: the kinds of cards that suit the pod, each once.
        pinned: True if the cluster has cards of the same resource that do not suit.
    """

    cpu: int
    memory: int
    cards: int
    part: int
    kinds: tuple[Kind, ...]
    pinned: bool

    @property
    def asked(self) -> int:
        """Thousandths of cards that the pod requests."""
        return self.cards * self.part

    @property
    def rounded(self) -> "CardRequest":
        """The request in whole steps of CPU and memory, rounded up."""
        return self._replace(
            cpu=-(-self.cpu // CPU_STEP) * CPU_STEP, memory=-(-self.memory // MEMORY_STEP) * MEMORY_STEP
        )


class NodeRoom(NamedTuple):
    """What is free on a node, of cards of one kind.

    Attributes:
        kind: the kind of its cards.
        cards: the free cards.
        cpu: thousandths of a CPU.
        memory: MiB.
        unused: True if no card is in use.
        joined: how the node's whole cards are joined; None if not known.
    """

    kind: Kind
    cards: FreeCards
    cpu: int
    memory: int
    unused: bool
    joined: Joined | None = None

    @property
    def rounded(self) -> "NodeRoom":
        """The room in whole steps of CPU and memory, rounded down."""
        return self._replace(cpu=self.cpu // CPU_STEP * CPU_STEP, memory=self.memory // MEMORY_STEP * MEMORY_STEP)


def free_cards(cards: FreeCards) -> int:
    """Returns the number of cards with something free."""
    return sum(count for _, count in cards)


def free_parts(cards: FreeCards) -> int:
    """Returns the free thousandths of all cards together."""
    return sum(free * count for free, count in cards)


def usable_parts(cards: FreeCards, request: CardRequest) -> int:
    """Returns the free thousandths of the cards that a request could use; 0 if it finds too few cards."""
    found = parts = 0
    for free, count in cards:
        if free >= request.part:
            found += count
            parts += free * count
    return parts if found >= request.cards else 0


def list_uses(cards: FreeCards, request: CardRequest) -> list[tuple[int, FreeCards]]:
    """Returns the ways to take the cards of a request: what is free of the first card, and the cards afterwards.

    A pod of several cards takes the least free ones that suit it.
    """
    if not request.cards:
        return [(0, cards)]
    if request.cards == 1:
        return [(free, _take(cards, {free: 1}, request.part)) for free, _ in cards if free >= request.part]
    taken: dict[int, int] = {}
    left = request.cards
    for free, count in cards:
        if free >= request.part and left:
            taken[free] = min(left, count)
            left -= taken[free]
    return [] if left else [(next(iter(taken)), _take(cards, taken, request.part))]


def _take(cards: FreeCards, taken: dict[int, int], part: int) -> FreeCards:
    counts = dict(cards)
    for free, count in taken.items():
        counts[free] -= count
        if free > part:
            counts[free - part] = counts.get(free - part, 0) + count
    return tuple(sorted((free, count) for free, count in counts.items() if count))


def scarcity(bound: float, asked: float, free: float, free_of_group: float) -> float:
    """Returns the price of one group; amounts are in any one unit of cards.

    Args:
        bound: what was asked for that only this group suits.
        asked: all that was asked for.
        free: what is free of all models.
        free_of_group: what is free of this group; less than one unit counts as one.
    """
    return bound / asked * max(0.0, free / max(1.0, free_of_group) - 1) if asked else 0.0


#: Most requests: different requests, the most frequent, of the mix by which nodes are rated for whole cards and shares.
#: 19 in 20 pods of Alibaba's traces ask for one of 20 to 120; each new state of a node is compared with all of them.
TYPICAL_REQUESTS = 128

#: Share of the pods that the typical ones cover, most frequent first (FGD, USENIX ATC '23).
TYPICAL = 0.95
#: Part of all pods that must come or go before the shares are computed anew.
FOLD = 1 / 8
#: Sum of the squared changes of the roots of all shares (Hellinger distance) from which on they are other shares.
CHANGED = 0.01
#: Change of the CPU or memory beside a card, in parts of what it was, from which on it is another one.
DRIFT = 1 / 8


class TypicalRequests(NamedTuple):
    """The most frequent requests.

    Attributes:
        shares: each of them, with its share of the requests.
        cpu_a_part: the CPU that pods with cards request beside a thousandth of a card on average.
        memory_a_part: the same of memory.
    """

    shares: tuple[tuple[CardRequest, float], ...] = ()
    cpu_a_part: float = 0.0
    memory_a_part: float = 0.0


class CardDemand:
    """Counts requests.

    Attributes:
        typical: the typical requests; the same object until they change.
    """

    def __init__(self) -> None:
        self.typical = TypicalRequests()
        #: Pods by rounded request; no count is 0.
        self._counts: Counter[CardRequest] = Counter()
        self._total = 0
        #: Pods that came or went since the typical requests were looked at.
        self._changes = 0
        #: Thousandths of cards that were asked for, and of these the ones that only some kinds suit, by these kinds; no
        #: value is 0.
        self._asked = 0
        self._pinned: Counter[tuple[Kind, ...]] = Counter()
        #: Thousandths of cards that pods hold, and the CPU and memory that these pods request.
        self._held = self._cpu = self._memory = 0

    def add(self, request: CardRequest, pods: int = 1, *, hold: bool = True) -> None:
        """Counts pods with a request for cards; fewer of them with a negative number.

        Args:
            request: what each of them requests.
            pods: their number.
            hold: True if they have their cards; False if they wait.
        """
        rounded = request.rounded
        self._counts[rounded] += pods
        if not self._counts[rounded]:
            del self._counts[rounded]
        self._total += pods
        self._changes += abs(pods)
        self._asked += pods * request.asked
        if hold:
            self._held += pods * request.asked
            self._cpu += pods * rounded.cpu
            self._memory += pods * rounded.memory
        if request.pinned and request.asked:
            self._pinned[request.kinds] += pods * request.asked
            if not self._pinned[request.kinds]:
                del self._pinned[request.kinds]

    def replace(self, counts: Mapping[tuple[CardRequest, bool], int]) -> None:
        """Counts these pods, by request and True if they have their cards, and no others."""
        self._counts.clear()
        self._pinned.clear()
        self._total = self._asked = self._held = self._cpu = self._memory = 0
        for (request, hold), pods in counts.items():
            self.add(request, pods, hold=hold)
        self._changes = max(1, self._total)

    def prices(self, free: Mapping[Kind, int]) -> Mapping[Kind, float]:
        """Returns the prices of kinds of cards, where they are not 0; see :mod:`tessera.placement.card_demand`.

        Args:
            free: by kind, free thousandths of all its cards.
        """
        found: dict[Kind, float] = {}
        of_all = sum(free.values())
        for kinds, pinned in self._pinned.items():
            price = scarcity(pinned, self._asked, of_all, sum(free.get(kind, 0) for kind in kinds))
            for kind in kinds if price else ():
                found[kind] = found.get(kind, 0.0) + price
        return found

    def fold(self) -> bool:
        """Looks at the counts; True if the typical requests are others now."""
        drifted = self._drifted()
        if not drifted and (not self._changes or self._changes < FOLD * self._total):
            return False
        self._changes = 0
        found = self._most_frequent()
        if not drifted and _difference(dict(found.shares), dict(self.typical.shares)) < CHANGED:
            return False
        self.typical = found
        return True

    def _drifted(self) -> bool:
        """True if the CPU or the memory beside a card are others now."""
        known = (self.typical.cpu_a_part, self.typical.memory_a_part)
        return any(abs(now - then) > DRIFT * then for now, then in zip(self._beside_cards(), known, strict=True))

    def _beside_cards(self) -> tuple[float, float]:
        held = self._held or 1  # without cards there is neither CPU nor memory
        return self._cpu / held, self._memory / held

    def _most_frequent(self) -> TypicalRequests:
        if not self._asked:
            return TypicalRequests()
        without_memory: Counter[CardRequest] = Counter()
        for request, count in self._counts.items():
            without_memory[request._replace(memory=0)] += count
        found, covered = [], 0
        ranked = sorted(without_memory.items(), key=lambda one: (-one[1], str(one[0])))
        for request, count in ranked[:TYPICAL_REQUESTS]:
            found.append((request, count))
            covered += count
            if covered >= TYPICAL * self._total:
                break
        shares = tuple((request, count / covered) for request, count in found)
        return TypicalRequests(shares, *self._beside_cards())


def _difference(one: dict[CardRequest, float], other: dict[CardRequest, float]) -> float:
    requests = one.keys() | other.keys()
    return math.fsum((math.sqrt(one.get(each, 0.0)) - math.sqrt(other.get(each, 0.0))) ** 2 for each in requests)
