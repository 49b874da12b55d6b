"""Which devices of the cluster a request chooses, asked of each node and remembered until its devices change.

Devices of one sort differ in few values, those of their card and place (:data:`~.published_devices.OWN_ATTRIBUTES`).
A request that reads none of them is answered by one device of the sort. Any other is asked of single devices: of a
card's slices only if no comparison with a constant excludes the card, since a large cluster has hundreds of thousands.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from itertools import islice
from typing import Any, ClassVar, TypeVar

import msgspec

from tessera.api.names import CLAIMED_CARD, NodeName
from tessera.cel.evaluator import Meter
from tessera.claims.controller.published_devices import OWN_ATTRIBUTES, Place, PublishedDevices
from tessera.dra.devices import Device
from tessera.dra.limits import EXPRESSIONS
from tessera.dra.matching import consumed_amounts
from tessera.dra.node_devices import places_needed
from tessera.dra.requests import DeviceDemand
from tessera.dra.selectors import DeviceSelectors, attributes_read, is_other, values_wanted
from tessera.mig.names import CLAIMED_SHARE, is_device_profile

#: Profiles with the number of devices of each.
Counts = tuple[tuple[str, int], ...]

T = TypeVar("T")


class ChosenDevices:
    """What requests choose.

    Args:
        published: the devices of all nodes.

    Attributes:
        counted: True once an answer depended on which cards there are; the caller sets it back.
    """

    #: A record of the state does not have them, and a state that was read makes them anew.
    TRANSIENT: ClassVar[tuple[str, ...]] = ("_selectors", "_scans")
    _selectors: DeviceSelectors | None = None
    #: By what is asked: the changes of nodes that are covered, and the answers of nodes; see :meth:`_scan`.
    _scans: dict[str, tuple[int, dict[NodeName, Any]]] | None = None

    def __init__(self, published: PublishedDevices) -> None:
        self._published = published
        self._own = {f"{published.driver}/{name}" for name in OWN_ATTRIBUTES} | OWN_ATTRIBUTES
        self.counted = False

    def clear(self) -> None:
        """Forgets all answers: classes or sorts of devices have changed."""
        self._scans = None

    @property
    def selectors(self) -> DeviceSelectors:
        """Evaluates and remembers selectors."""
        if self._selectors is None:
            self._selectors = DeviceSelectors()
        return self._selectors

    def is_by_card(self, demand: DeviceDemand) -> bool:
        """True if alike devices differ in what the selectors read."""
        read = [attributes_read(text) for _, text in demand.selectors]
        return any(each is None or not self._own.isdisjoint(each) for each in read)

    def reads_own(self, expression: str) -> bool:
        """True if an expression names a value in which alike devices differ."""
        return not self._own.isdisjoint(attributes_read(expression) or ())

    # Of the cluster ---------------------------------------------------------------------------------------------------

    def profiles(self, demand: DeviceDemand, meter: Meter) -> AbstractSet[str]:
        """Returns the profiles of the devices that a demand chooses.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        return {profile for counts in self.counts(demand, meter).values() for profile, _ in counts}

    def places(self, demand: DeviceDemand, meter: Meter) -> int:
        """Returns the fewest shares of a card that serve a demand, of the cards that it chooses; 0 if it chooses none.

        Raises:
            OutOfBudgetError: this costs too much.
        """

        def fewest(node: NodeName) -> int:
            if not any(card.shared for card in self._published.undivided_cards(node).values()):
                return 0
            cards = (card for card in self.undivided(node, demand, meter).values() if card.shared)
            return min((shares_needed(demand, card) for card in cards), default=0)

        return min(self._scan(digest_of(demand, "places"), fewest).values(), default=0)

    def everything(self, demand: DeviceDemand, meter: Meter) -> Mapping[Counts, NodeName]:
        """Returns what a request for all devices gets, with a node where it does; what most nodes give comes first.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        nodes: dict[Counts, list[NodeName]] = {}
        for node, counts in self.counts(demand, meter).items():
            nodes.setdefault(counts, []).append(node)
        ranked = sorted(nodes, key=lambda each: (-len(nodes[each]), sum(count for _, count in each), each))
        return {each: nodes[each][0] for each in ranked}

    def counts(self, demand: DeviceDemand, meter: Meter | None) -> Mapping[NodeName, Counts]:
        """Returns by node how many devices of each profile a demand chooses; nodes without any are left out.

        Raises:
            OutOfBudgetError: this costs too much.
        """

        def count(node: NodeName) -> Counts:
            found = Counter(profile for _, profile, _ in self.on(node, demand, meter))
            return tuple(sorted(found.items()))

        return self._scan(digest_of(demand), count)

    def _scan(self, key: str, read: Callable[[NodeName], T]) -> Mapping[NodeName, T]:
        """Returns the answers of nodes that are not empty, or 0; only nodes that have changed since are asked."""
        self.counted = True
        if self._scans is None or len(self._scans) >= EXPRESSIONS:
            self._scans = {}
        since, found = self._scans.get(key, (0, {}))
        for node in found.keys() - self._published.nodes.keys():
            del found[node]
        for node in self._published.changed_since(since):
            answer = read(node)
            found.pop(node, None)
            if answer:
                found[node] = answer
        self._scans[key] = self._published.version, found
        return found

    # Of a node --------------------------------------------------------------------------------------------------------

    def on(self, node: NodeName, demand: DeviceDemand, meter: Meter | None, profile: str = "") -> Iterator[Place]:
        """Yields the places of the devices that a demand chooses, or only those of a profile.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        if not profile or is_device_profile(profile):
            for uuid, card in self.undivided(node, demand, meter).items():
                yield uuid, CLAIMED_SHARE if card.shared else CLAIMED_CARD, 0
        devices, sorts, by_card = self._published.nodes.get(node), self._published.sorts, self.is_by_card(demand)
        wanted = [each for _, text in demand.selectors for each in values_wanted(text)]
        for sort, places in devices.places.items() if devices is not None else ():
            common = None if is_device_profile(sort[0]) or profile not in ("", sort[0]) else sorts[sort]
            if common is None or any(is_other(common.attributes.get(name), value) for name, value in wanted):
                continue
            if by_card:
                yield from self._of_sort(node, demand, meter, (common, places, wanted))
            elif self._chooses(demand, common, meter):
                yield from places

    def _of_sort(
        self,
        node: NodeName,
        demand: DeviceDemand,
        meter: Meter | None,
        sort: tuple[Device, Sequence[Place], Sequence[tuple[str, str | int]]],
    ) -> Iterator[Place]:
        common, places, wanted = sort
        start = f"{self._published.driver}/start"
        of_card = [each for each in wanted if each[0] in self._own and each[0] != start]
        starts = {value for name, value in wanted if name == start}
        read = [attributes_read(text) for _, text in demand.selectors]
        by_place = any(each is None or start in each for each in read)
        card, is_excluded, is_chosen = "", False, None
        for place in places:
            if place[0] != card:
                card, is_excluded, is_chosen = place[0], self._published.has_other(node, place, of_card), None
                if meter is not None:
                    meter.charge(1)
            if is_excluded or (starts and place[2] not in starts):
                continue
            if by_place or is_chosen is None:
                device = self._published.partition(node, place, common)
                is_chosen = device is not None and self._chooses(demand, device, meter)
            if is_chosen:
                yield place

    def error(self, demand: DeviceDemand, meter: Meter) -> str:
        """Returns why a selector of a demand fails on a device of the first node; empty if none does there.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        for node in islice(self._published.nodes, 1):
            sorts = self._published.sorts
            firsts = [(places[0], sorts[sort]) for sort, places in self._published.nodes[node].places.items()]
            parts = (self._published.partition(node, place, one) for place, one in firsts if one is not None)
            for device in (each for each in parts if each is not None):
                for where, text in demand.selectors:
                    found = self.selectors.matches(text, device, meter)
                    if found.problem:
                        return f"{where}: {found.problem}"
                    if not found.matches:
                        break
        return ""

    def undivided(self, node: NodeName, demand: DeviceDemand, meter: Meter | None) -> Mapping[str, Device]:
        """Returns the whole and shared cards of a node that a demand chooses, by UUID.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        cards = self._published.undivided_cards(node)
        if meter is not None:
            meter.charge(len(cards))
        return {uuid: card for uuid, card in cards.items() if self._chooses(demand, card, meter)}

    def _chooses(self, demand: DeviceDemand, device: Device, meter: Meter | None) -> bool:
        chosen = all(self.selectors.matches(text, device, meter).matches for _, text in demand.selectors)
        return chosen and consumed_amounts(demand, device) is not None


def shares_needed(demand: DeviceDemand, card: Device) -> int:
    """Returns how many shares of a card a demand takes that the card can serve."""
    return places_needed(card, consumed_amounts(demand, card) or {})


def digest_of(demand: DeviceDemand, *more: str) -> str:
    """Returns what demands have in common that choose the same devices, in ten characters."""
    expressions = [text for _, text in demand.selectors]
    amounts = {key: str(amount) for key, amount in demand.amounts.items()}
    return sha256(msgspec.json.encode([expressions, amounts, more])).hexdigest()[:10]
