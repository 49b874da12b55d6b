"""Which whole or shared cards a request chooses, card by card, as names that planning knows.

Planning places profiles. All whole cards have one, :data:`~tessera.api.names.CLAIMED_CARD`, and all shares of cards
another, :data:`~tessera.mig.names.CLAIMED_SHARE`. A request that chooses only some of them, by a value that alike
cards differ in (``index``, ``uuid``, ``pciBusID``), asks for a further *name* of this profile. Each chosen card has it,
so the search for a place is as exact, and as ordered, as for any profile.

The names are made from the request's own expressions, so requests of the same kind share one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from operator import itemgetter

import msgspec

from tessera.api.names import CLAIMED_CARD, NodeName
from tessera.cel.evaluator import Meter
from tessera.claims.controller.published_devices import OWN_ATTRIBUTES, ROLE, PublishedDevices
from tessera.dra.devices import Device
from tessera.dra.limits import CARD_CHOICES, NAMESPACE_CARD_CHOICES
from tessera.dra.matching import consumed_amounts
from tessera.dra.node_devices import places_needed
from tessera.dra.requests import AttributeRule, ClaimRefused, DeviceDemand
from tessera.dra.selectors import DeviceSelectors, attributes_read
from tessera.mig.names import CLAIMED_SHARE, is_device_profile


class Answer(msgspec.Struct, frozen=True):
    """What is given for a request.

    Attributes:
        demand: the request, or the alternative of it.
        profile: of each device.
        count: devices.
        places: shares of a card that each device takes; they lie on one card.
    """

    demand: DeviceDemand
    profile: str
    count: int
    places: int = 1


class CardChoice(msgspec.Struct, frozen=True):
    """The cards that a demand's selectors choose."""

    demand: DeviceDemand
    profile: str
    places: int = 1

    @property
    def name(self) -> str:
        """The further name of the profile of these cards."""
        return f"{self.profile} that the claim's selectors choose ({_digest(self.demand, str(self.places))})"


#: Profiles with the number of devices of each.
Counts = tuple[tuple[str, int], ...]


class CardChoices:
    """The names that claims use now, and the cards that have them.

    Args:
        published: the devices of all nodes.

    Attributes:
        counted: True once an answer depended on which cards there are; the caller sets it back.
        namespace: that of the claim that is read; the caller sets it.
    """

    def __init__(self, published: PublishedDevices) -> None:
        self._published = published
        self._own = {f"{published.driver}/{name}" for name in OWN_ATTRIBUTES} | OWN_ATTRIBUTES
        self._choices: dict[str, CardChoice] = {}
        #: The nodes on which a request for all devices gets them, by name: the request, and the devices.
        self._all: dict[str, tuple[DeviceDemand, Counts]] = {}
        #: The names of both kinds that a namespace was the first to use.
        self._first_uses = Counter[str]()
        self.counted = False
        self.namespace = ""

    def clear(self) -> None:
        """Forgets all names: all claims are read again."""
        self._choices.clear()
        self._all.clear()
        self._first_uses.clear()

    # What a claim asks for --------------------------------------------------------------------------------------------

    def is_by_card(self, demand: DeviceDemand) -> bool:
        """True if alike cards differ in what the selectors read."""
        read = [attributes_read(text) for _, text in demand.selectors]
        return any(each is None or not self._own.isdisjoint(each) for each in read)

    def own_values(self, expression: str) -> Sequence[str]:
        """Returns the values that an expression names in which alike cards differ."""
        return sorted(each.rpartition("/")[2] for each in self._own & (attributes_read(expression) or frozenset()))

    def is_any(self, demand: DeviceDemand, selectors: DeviceSelectors, meter: Meter) -> bool:
        """True if a demand chooses a whole card of the cluster.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        self.counted = True
        return any(not card.shared for _, card in self._chosen(demand, selectors, meter))

    def places(self, demand: DeviceDemand, selectors: DeviceSelectors, meter: Meter) -> int:
        """Returns the fewest shares of a card that serve a demand, of the cards that it chooses; 0 if it chooses none.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        self.counted = True
        cards = (card for _, card in self._chosen(demand, selectors, meter) if card.shared)
        return min((shares_needed(demand, card) for card in cards), default=0)

    def everything(self, demand: DeviceDemand, selectors: DeviceSelectors, meter: Meter) -> Mapping[Counts, NodeName]:
        """Returns what a request for all devices gets, with a node where it does; what most nodes give comes first.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        self.counted = True
        nodes: dict[Counts, list[NodeName]] = {}
        for node in self._published.nodes:
            counts = self.counts_on(node, demand, selectors, meter)
            if counts:
                nodes.setdefault(counts, []).append(node)
        ranked = sorted(nodes, key=lambda each: (-len(nodes[each]), sum(count for _, count in each), each))
        return {each: nodes[each][0] for each in ranked}

    def counts_on(
        self, node: NodeName, demand: DeviceDemand, selectors: DeviceSelectors, meter: Meter | None
    ) -> Counts:
        """Returns how many devices of each profile a demand chooses on a node."""
        found = Counter[str]()
        for card in self._published.undivided_cards(node).values():
            if meter is not None:
                meter.charge(1)
            if _chooses(demand, card, selectors, meter):
                found[CLAIMED_SHARE if card.shared else CLAIMED_CARD] += 1
        sorts = self._published.sorts
        for sort, count in self._published.nodes[node].counts.items():
            device = None if is_device_profile(sort[0]) else sorts[sort]
            if device is not None and _chooses(demand, device, selectors, meter):
                found[sort[0]] += count
        return tuple(sorted(found.items()))

    def check_values(self, field: str, rule: AttributeRule, wanted: Mapping[str, int], meter: Meter) -> None:
        """Refuses a constraint over values of cards that the empty cards of no node keep.

        Args:
            field: names the constraint.
            rule: the constraint.
            wanted: devices by what their cards are given as (:data:`~.published_devices.ROLE`).
            meter: pays for the comparison.

        Raises:
            ClaimRefused: no node has such cards.
        """
        self.counted = True
        known = False
        for node in self._published.nodes:
            cards = Counter[tuple[str, str]]()
            for each in self._published.card_values(node).values():
                meter.charge(1)
                if rule.attribute in each:
                    cards[each[rule.attribute], each[ROLE]] += 1
            values = {value for value, _ in cards}
            known = known or bool(cards)
            if rule.distinct and len(values) >= sum(wanted.values()):
                return
            if not rule.distinct and any(_has_cards(cards, value, wanted) for value in values):
                return
        why = "leaves too few cards on every node" if known else "compares what no device has"
        raise ClaimRefused(f"{field} {why}: see the attributes in kubectl get resourceslices -o yaml")

    def profiles(self, answers: Iterable[Answer]) -> tuple[str, ...]:
        """Returns the profile, or a name of it, of each device.

        Raises:
            OverflowError: claims use too many names.
        """
        found: list[str] = []
        for each in answers:
            by_card = is_device_profile(each.profile) and self.is_by_card(each.demand)
            name = self._add(CardChoice(each.demand, each.profile, each.places)) if by_card else each.profile
            found += [name] * each.count * each.places
        return tuple(found)

    def all_of(self, demand: DeviceDemand, counts: Counts) -> str:
        """Returns the choice of nodes where a request for all devices gets exactly these.

        Raises:
            OverflowError: claims use too many such choices.
        """
        total = sum(count for _, count in counts)
        name = f"{total} devices for allocationMode All ({_digest(demand, str(counts))})"
        self._count(name, self._all)
        self._all[name] = demand, counts
        return name

    def _add(self, choice: CardChoice) -> str:
        name = choice.name
        self._count(name, self._choices)
        self._choices[name] = choice
        return name

    def _count(self, name: str, known: Mapping[str, object]) -> None:
        if name in known:
            return
        if len(known) >= CARD_CHOICES or self._first_uses[self.namespace] >= NAMESPACE_CARD_CHOICES:
            raise OverflowError
        self._first_uses[self.namespace] += 1

    def _chosen(
        self, demand: DeviceDemand, selectors: DeviceSelectors, meter: Meter
    ) -> Iterator[tuple[NodeName, Device]]:
        for node in self._published.nodes:
            for card in self._published.undivided_cards(node).values():
                meter.charge(1)
                if _chooses(demand, card, selectors, meter):
                    yield node, card

    # What a node has --------------------------------------------------------------------------------------------------

    def names_on(self, node: NodeName, selectors: DeviceSelectors, only: str = "") -> Mapping[str, tuple[str, ...]]:
        """Returns the names of each card of a node, by UUID; cards without one are not among them.

        Args:
            node: the node.
            selectors: evaluates selectors.
            only: the one name that is looked at; empty for all.
        """
        choices = [(only, self._choices[only])] if only else sorted(self._choices.items(), key=itemgetter(0))
        found: dict[str, tuple[str, ...]] = {}
        for uuid, card in self._published.undivided_cards(node).items() if choices else ():
            names = tuple(name for name, each in choices if _has(each, card, selectors))
            if names:
                found[uuid] = names
        return found

    def all_kept_by(self, node: NodeName, selectors: DeviceSelectors, only: str = "") -> AbstractSet[str]:
        """Returns the choices of nodes for ``All`` that a node keeps; only this one if it is named."""
        choices = {only: self._all[only]} if only in self._all else {} if only else self._all
        if node not in self._published.nodes:
            return frozenset()
        return {
            name
            for name, (demand, counts) in choices.items()
            if self.counts_on(node, demand, selectors, None) == counts
        }


def plain_profile(name: str) -> str:
    """Returns the profile that a name is of."""
    return next((each for each in (CLAIMED_CARD, CLAIMED_SHARE) if name.startswith(f"{each} ")), name)


def _has_cards(cards: Mapping[tuple[str, str], int], value: str, wanted: Mapping[str, int]) -> bool:
    """True if enough cards have a value; many slices and shares may be of one card."""
    return all(cards[value, role] >= (count if role == CLAIMED_CARD else 1) for role, count in wanted.items())


def _has(choice: CardChoice, card: Device, selectors: DeviceSelectors) -> bool:
    alike = card.shared == (choice.profile == CLAIMED_SHARE)
    chosen = alike and _chooses(choice.demand, card, selectors, None)
    return chosen and (not card.shared or shares_needed(choice.demand, card) <= choice.places)


def shares_needed(demand: DeviceDemand, card: Device) -> int:
    """Returns how many shares of a card a demand takes that the card can serve."""
    return places_needed(card, consumed_amounts(demand, card) or {})


def _chooses(demand: DeviceDemand, card: Device, selectors: DeviceSelectors, meter: Meter | None) -> bool:
    chosen = all(selectors.matches(text, card, meter).matches for _, text in demand.selectors)
    return chosen and consumed_amounts(demand, card) is not None


def _digest(demand: DeviceDemand, *more: str) -> str:
    expressions = [text for _, text in demand.selectors]
    amounts = {key: str(amount) for key, amount in demand.amounts.items()}
    return sha256(msgspec.json.encode([expressions, amounts, more])).hexdigest()[:10]
