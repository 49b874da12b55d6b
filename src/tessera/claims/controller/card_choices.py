"""Which whole or shared cards a request chooses, card by card, as names that planning knows.

Planning places profiles. All whole cards have one, :data:`~tessera.api.names.CLAIMED_CARD`, and all shares of cards
another, :data:`~tessera.api.names.CLAIMED_SHARE`. A request that chooses
only some of them, by a value that alike cards differ in (``index``, ``uuid``, ``pciBusID``), or that must have cards of
one value of an attribute, asks for a further *name* of this profile. Each chosen card has it, so the search for a place
is as exact, and as ordered, as for any profile.

The names are made from the request's own expressions, so requests of the same kind share one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from itertools import cycle, islice
from operator import itemgetter

import msgspec

from tessera.api.names import CLAIMED_CARD, NodeName
from tessera.cel.evaluator import Meter
from tessera.claims.controller.published_devices import OWN_ATTRIBUTES, PublishedDevices
from tessera.dra.devices import Device, Value
from tessera.dra.limits import CARD_CHOICES, NAMESPACE_CARD_CHOICES
from tessera.dra.matching import consumed_amounts
from tessera.dra.node_devices import places_needed
from tessera.dra.requests import AttributeRule, ClaimDemand, ClaimRefused, DeviceDemand
from tessera.dra.selectors import DeviceSelectors, attributes_read
from tessera.mig.names import CLAIMED_SHARE, is_device_profile
from tessera.placement.demand import CardSpread

#: Attributes of which every card of a cluster has another value, or every card of a node.
UNIQUE = frozenset({"uuid", "parentUUID", "index", "minor", "pciBusID"})
#: Attributes of which all cards of a node have one value.
NODE_WIDE = frozenset({"driverVersion", "cudaDriverVersion"})


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


class Comparison(msgspec.Struct, frozen=True):
    """A constraint that compares whole cards.

    Attributes:
        field: of the claim, for messages.
        rule: the constraint.
        answers: the requests that it concerns.
    """

    field: str
    rule: AttributeRule
    answers: Sequence[Answer]


#: For each card that a comparison concerns, the value of its attribute.
Values = tuple[Value, ...]


def find_comparison(name: str, demand: ClaimDemand, answers: Sequence[Answer]) -> tuple[Comparison | None, CardSpread]:
    """Returns the constraint that compares whole cards, and how slices and shares lie on cards by those of them.

    Raises:
        ClaimRefused: a constraint cannot be kept.
    """
    compared, spreads = None, set[CardSpread]()
    for index, rule in enumerate(demand.rules):
        concerned = [each for each in answers if rule.concerns(each.demand)]
        if sum(each.count for each in concerned) < 2:
            continue
        field = f"{name}: spec.devices.constraints[{index}].{'distinct' if rule.distinct else 'match'}Attribute"
        attribute = rule.attribute.rpartition("/")[2]
        whole = [each for each in concerned if each.profile == CLAIMED_CARD]
        parts = sum(each.count for each in concerned) - sum(each.count for each in whole)
        if rule.distinct and attribute in UNIQUE:
            _check_has(field, attribute, concerned)
            spreads |= {CardSpread.APART} if parts > 1 else set()
        elif not rule.distinct and attribute in NODE_WIDE:
            continue
        elif parts:
            if whole or rule.distinct:
                raise ClaimRefused(f"{field} is not served for several slices, or for slices and cards: leave it out")
            spreads.add(CardSpread.ONE_CARD)
        else:
            if compared is not None or any(not each.demand.count for each in concerned):
                raise ClaimRefused(f"{field} compares whole cards beside another constraint or All: leave one out")
            compared = Comparison(field, rule, tuple(concerned))
    if len(spreads) > 1:
        raise ClaimRefused(f"{name}: spec.devices.constraints want devices on one card, and on different ones")
    return compared, next(iter(spreads), CardSpread.ANYHOW)


def _check_has(field: str, attribute: str, concerned: Iterable[Answer]) -> None:
    """Refuses to compare a value that one kind of device does not have."""
    for each in concerned:
        if attribute == ("parentUUID" if is_device_profile(each.profile) else "uuid"):
            raise ClaimRefused(f"{field} compares {attribute}, which {each.profile} does not have: compare index")


def most_common(counts: Mapping[NodeName, int]) -> int:
    """Returns how many cards most nodes have; of several such numbers the least."""
    nodes = Counter(counts.values())
    return min(nodes, key=lambda number: (-nodes[number], number), default=0)


class CardChoice(msgspec.Struct, frozen=True):
    """The cards that a demand's selectors choose, of one value of an attribute if it names one."""

    demand: DeviceDemand
    attribute: str = ""
    value: Value | None = None
    profile: str = CLAIMED_CARD
    places: int = 1

    @property
    def name(self) -> str:
        """The further name of the profile of these cards."""
        of_value = f" of one {self.attribute}" if self.attribute else ""
        digest = _digest(self.demand, self.attribute, f"{type(self.value).__name__} {self.value}", str(self.places))
        return f"{self.profile} that the claim's selectors choose{of_value} ({digest})"


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
        #: The nodes on which a request for all cards gets them, by name: the request, and the number of cards.
        self._all: dict[str, tuple[DeviceDemand, int]] = {}
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

    def count(self, demand: DeviceDemand, selectors: DeviceSelectors, meter: Meter) -> Mapping[NodeName, int]:
        """Returns the number of whole cards that a demand chooses, by node; nodes without one are not among them.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        self.counted = True
        return Counter(node for node, card in self._chosen(demand, selectors, meter) if not card.shared)

    def places(self, demand: DeviceDemand, selectors: DeviceSelectors, meter: Meter) -> int:
        """Returns the fewest shares of a card that serve a demand, of the cards that it chooses; 0 if it chooses none.

        Raises:
            OutOfBudgetError: this costs too much.
        """
        self.counted = True
        cards = (card for _, card in self._chosen(demand, selectors, meter) if card.shared)
        return min((shares_needed(demand, card) for card in cards), default=0)

    def values(self, compared: Comparison, selectors: DeviceSelectors, meter: Meter) -> Sequence[Values]:
        """Returns the ways to give cards of the values that a constraint wants; none if no node has enough."""
        self.counted = True
        wanted = sum(each.count for each in compared.answers)
        nodes: dict[Value, Counter[NodeName]] = {}
        for node, card in self._chosen(compared.answers[0].demand, selectors, meter):
            if not card.shared and (value := card.attributes.get(compared.rule.attribute)) is not None:
                nodes.setdefault(value, Counter())[node] += 1
        if not compared.rule.distinct:
            able = (value for value, counts in nodes.items() if max(counts.values()) >= wanted)
            return [(value,) * wanted for value in sorted(able, key=str)]
        found = sorted(nodes, key=str)
        rotations = (tuple(islice(cycle(found), first, first + wanted)) for first in range(len(found)))
        return [each for each in rotations if _on_one_node(each, nodes)]

    def profiles(self, answers: Iterable[Answer], compared: Comparison | None, values: Values) -> tuple[str, ...]:
        """Returns the profile, or a name of it, of each device.

        Raises:
            OverflowError: claims use too many names.
        """
        found: list[str] = []
        left = iter(values)
        for each in answers:
            if compared is not None and each in compared.answers:
                choices = [CardChoice(each.demand, compared.rule.attribute, next(left)) for _ in range(each.count)]
                found += [self._add(choice) for choice in choices]
            elif is_device_profile(each.profile) and self.is_by_card(each.demand):
                name = self._add(CardChoice(each.demand, profile=each.profile, places=each.places))
                found += [name] * each.count * each.places
            else:
                found += [each.profile] * each.count * each.places
        return tuple(found)

    def all_of(self, answer: Answer) -> str:
        """Returns the choice of nodes where a request for all cards gets as many as the answer has.

        Raises:
            OverflowError: claims use too many such choices.
        """
        name = f"{answer.count} cards for allocationMode All ({_digest(answer.demand, str(answer.count))})"
        self._count(name, self._all)
        self._all[name] = answer.demand, answer.count
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
        cards = [each for each in self._published.undivided_cards(node).values() if not each.shared] if choices else ()
        return {
            name
            for name, (demand, count) in choices.items()
            if sum(_chooses(demand, card, selectors, None) for card in cards) == count
        }


def plain_profile(name: str) -> str:
    """Returns the profile that a name is of."""
    return next((each for each in (CLAIMED_CARD, CLAIMED_SHARE) if name.startswith(f"{each} ")), name)


def _on_one_node(values: Values, nodes: Mapping[Value, Mapping[NodeName, int]]) -> bool:
    """True if the values differ, and a node has a card of each."""
    return len(set(values)) == len(values) and bool(set.intersection(*(set(nodes[each]) for each in values)))


def _has(choice: CardChoice, card: Device, selectors: DeviceSelectors) -> bool:
    value = card.attributes.get(choice.attribute) if choice.attribute else None
    same = (type(value), value) == (type(choice.value), choice.value)
    alike = same and card.shared == (choice.profile == CLAIMED_SHARE)
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
