"""Single cards that claims choose, and rules about the cards of a claim's devices, in the words that planning knows.

Planning places profiles. All whole cards have one, :data:`~tessera.api.names.CLAIMED_CARD`, and all shares of cards
another, :data:`~tessera.mig.names.CLAIMED_SHARE`. A request that chooses only some devices of a profile, by a value in
which alike cards or places differ (``index``, ``uuid``, ``pciBusID``, ``start``), asks for a further *name* of this
profile. A card has it at the places of the chosen devices, so the search for a place is as exact, and as ordered, as
for any profile.

The names are made from the request's own expressions, so requests of the same kind share one. Planning compares each
with every card, so there are few. A name that no living pod uses stays until its room is needed. A namespace may have
a quarter of the names that the others leave: so no few of them use up what all have.

Constraints compare whole cards, slices and shares alike: planning places each on a card, and the values of a card are
those of all of its devices. What no placement can keep is refused with the field, and so is ``matchAttribute`` of
``start``: planning chooses the starts by the room that they leave.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter

import msgspec

from tessera.api.names import CLAIMED_CARD, NodeName, PodUid
from tessera.cel.evaluator import Meter
from tessera.claims.controller.chosen_devices import ChosenDevices, Counts, digest_of, shares_needed
from tessera.claims.controller.published_devices import NODE_WIDE, OF_PROFILE, ROLE, UNIQUE, PublishedDevices
from tessera.controller.slicing.state.allocation import CardNames
from tessera.dra.limits import CARD_CHOICES, NAMESPACE_CARD_CHOICES
from tessera.dra.requests import AttributeRule, ClaimDemand, ClaimRefused, DeviceDemand
from tessera.mig.names import CLAIMED_SHARE, is_device_profile
from tessera.placement.demand import CardRule, CardSpread


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
        return f"{self.profile} that the claim's selectors choose ({digest_of(self.demand, str(self.places))})"


class CardChoices:
    """The names that claims use now, and the cards that have them.

    Args:
        published: the devices of all nodes.
        chosen: what requests choose of them.

    Attributes:
        namespace: that of the claim that is read; the caller sets it.
    """

    def __init__(self, published: PublishedDevices, chosen: ChosenDevices) -> None:
        self._published = published
        self._chosen = chosen
        self._choices: dict[str, CardChoice] = {}
        #: The nodes on which a request for all devices gets them, by name: the request, and the devices.
        self._all: dict[str, tuple[DeviceDemand, Counts]] = {}
        #: The names of both kinds, with the namespace that was the first to use each.
        self._first_users: dict[str, str] = {}
        #: By living pod the names that it uses, none is empty; and by name the number of its pods.
        self._names_of: dict[PodUid, frozenset[str]] = {}
        self._uses = Counter[str]()
        #: Names of the pod that is being read; they stay.
        self._in_hand: set[str] = set()
        self._freed: set[str] = set()
        self.namespace = ""

    def clear(self) -> None:
        """Forgets all names: all claims are read again."""
        self._choices.clear()
        self._all.clear()
        self._first_users.clear()
        self._names_of.clear()
        self._uses.clear()
        self._in_hand.clear()
        self._freed.clear()

    # Who uses them ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins to read the claims of a pod: names that are given from here on stay until the next one begins."""
        self._in_hand.clear()

    def hold(self, names: Iterable[str]) -> None:
        """Keeps names that were remembered for the pod that is being read."""
        self._in_hand.update(self._first_users.keys() & names)

    def use(self, uid: PodUid, names: Iterable[str]) -> bool:
        """Takes in which names a living pod uses now; True if one has lost its last pod."""
        before, now = self._names_of.pop(uid, frozenset()), frozenset(self._first_users.keys() & names)
        if now:
            self._names_of[uid] = now
        self._uses.update(now)
        self._uses.subtract(before)
        gone = [name for name in before if not self._uses[name]]
        for name in gone:
            del self._uses[name]
        return bool(gone)

    def take_freed(self) -> AbstractSet[str]:
        """Returns, once, the names that are forgotten."""
        freed, self._freed = self._freed, set()
        return freed

    def is_known(self, name: str) -> bool:
        """True for a name of either kind."""
        return name in self._first_users

    # What a claim asks for --------------------------------------------------------------------------------------------

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
        self._chosen.counted = True
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
            by_card = self._chosen.is_by_card(each.demand)
            name = self._add(CardChoice(each.demand, each.profile, each.places)) if by_card else each.profile
            found += [name] * each.count * each.places
        return tuple(found)

    def all_of(self, demand: DeviceDemand, counts: Counts) -> str:
        """Returns the choice of nodes where a request for all devices gets exactly these.

        Raises:
            OverflowError: claims use too many such choices.
        """
        total = sum(count for _, count in counts)
        name = f"{total} devices for allocationMode All ({digest_of(demand, str(counts))})"
        self._count(name)
        self._all[name] = demand, counts
        return name

    def _add(self, choice: CardChoice) -> str:
        name = choice.name
        self._count(name)
        self._choices[name] = choice
        return name

    def _count(self, name: str) -> None:
        if name not in self._first_users:
            if not self._has_room():
                self._free_unused()
            if not self._has_room():
                raise OverflowError
            self._first_users[name] = self.namespace
        self._in_hand.add(name)

    def _has_room(self) -> bool:
        own = sum(namespace == self.namespace for namespace in self._first_users.values())
        left = CARD_CHOICES - (len(self._first_users) - own)
        return own < left * NAMESPACE_CARD_CHOICES // CARD_CHOICES

    def _free_unused(self) -> None:
        for name in [each for each in self._first_users if each not in self._uses and each not in self._in_hand]:
            del self._first_users[name]
            self._choices.pop(name, None)
            self._all.pop(name, None)
            self._freed.add(name)

    # What a node has --------------------------------------------------------------------------------------------------

    def nodes_of(self, name: str) -> AbstractSet[NodeName]:
        """Returns the nodes that have a device of a name."""
        return self._chosen.counts(self._choices[name].demand, None).keys()

    def names_on(self, node: NodeName, only: str = "") -> CardNames:
        """Returns the names of each card of a node; cards without one are not among them.

        Args:
            node: the node.
            only: the one name that is looked at; empty for all.
        """
        choices = [(only, self._choices[only])] if only else sorted(self._choices.items(), key=itemgetter(0))
        found: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
        for name, choice in choices:
            for uuid, starts in self._starts_on(node, choice).items():
                found.setdefault(uuid, []).append((name, tuple(sorted(starts))))
        return {uuid: tuple(names) for uuid, names in found.items()}

    def _starts_on(self, node: NodeName, choice: CardChoice) -> Mapping[str, Sequence[int]]:
        """Returns by card of a node the starts of slices that a choice has; none of a whole or shared card, for all."""
        found: dict[str, list[int]] = {}
        if not is_device_profile(choice.profile):
            for uuid, _, start in self._chosen.on(node, choice.demand, None, choice.profile):
                found.setdefault(uuid, []).append(start)
            return found
        shared = choice.profile != CLAIMED_CARD
        cards = self._chosen.undivided(node, choice.demand, None).items()
        alike = {uuid: card for uuid, card in cards if card.shared == shared}
        return {
            uuid: ()
            for uuid, card in alike.items()
            if not shared or shares_needed(choice.demand, card) <= choice.places
        }

    def all_kept_by(self, node: NodeName, only: str = "") -> AbstractSet[str]:
        """Returns the choices of nodes for ``All`` that a node keeps; only this one if it is named."""
        choices = {only: self._all[only]} if only in self._all else {} if only else self._all
        if node not in self._published.nodes:
            return frozenset()
        return {
            name
            for name, (demand, counts) in choices.items()
            if self._chosen.counts(demand, None).get(node, ()) == counts
        }


def _has_cards(cards: Mapping[tuple[str, str], int], value: str, wanted: Mapping[str, int]) -> bool:
    """True if enough cards have a value; many slices and shares may be of one card."""
    return all(cards[value, role] >= (count if role == CLAIMED_CARD else 1) for role, count in wanted.items())


def _contradict(rules: Sequence[CardRule], attribute: str) -> bool:
    """True if some slices are to have the same value of an attribute, and two of them different ones."""
    own = [each for each in rules if each.attribute == attribute]
    pairs = ((one, other) for one in own for other in own if one.distinct and not other.distinct)
    return any(len({*one.slices} & {*other.slices}) > 1 for one, other in pairs)


class ConstraintReader:
    """Reads the constraints of claims.

    Args:
        published: the devices of all nodes.
        cards: tells whether the cards of a node could keep a constraint.
    """

    def __init__(self, published: PublishedDevices, cards: CardChoices) -> None:
        self._published = published
        self._cards = cards
        own = {f"{published.driver}/{name}": name for name in UNIQUE | NODE_WIDE | OF_PROFILE}
        self._names = {**own, "resource.kubernetes.io/pciBusID": "pciBusID"}

    def read(self, name: str, demand: ClaimDemand, answers: Sequence[Answer], meter: Meter) -> CardSpread:
        """Returns how the devices of a claim lie on cards: each answer has as many as its count, of so many places.

        Raises:
            ClaimRefused: a constraint cannot be kept.
            OutOfBudgetError: this costs too much.
        """
        places: list[list[tuple[int, ...]]] = []
        end = 0
        for each in answers:
            starts = range(end, end + each.count * each.places, each.places)
            places.append([tuple(range(start, start + each.places)) for start in starts])
            end += each.count * each.places
        rules = [CardRule(each) for several in places for each in several if len(each) > 1]
        for answer, several in zip(answers, places, strict=True):
            if answer.profile == CLAIMED_SHARE and not answer.demand.count and len(several) > 1:
                rules.append(CardRule(tuple(each[0] for each in several), distinct=True))
        for index, rule in enumerate(demand.rules):
            concerned = [n for n, each in enumerate(answers) if rule.concerns(each.demand)]
            devices = [each[0] for n in concerned for each in places[n]]
            if len(devices) > 1:
                kind = "distinct" if rule.distinct else "match"
                field = f"{name}: spec.devices.constraints[{index}].{kind}Attribute"
                rules += self._rules(field, rule, [answers[n] for n in concerned], tuple(devices), meter)
        compared = {"" if self._names.get(each.attribute) in UNIQUE else each.attribute: each for each in demand.rules}
        for key, rule in compared.items():  # once for an attribute, which 32 constraints may compare
            if _contradict(rules, key):
                attribute = rule.attribute.rpartition("/")[2]
                text = f"two of them compare {attribute}, and exclude one another: leave one out"
                raise ClaimRefused(f"{name}: spec.devices.constraints: {text}")
        return tuple(dict.fromkeys(rules))

    def _rules(
        self, field: str, rule: AttributeRule, answers: Sequence[Answer], devices: tuple[int, ...], meter: Meter
    ) -> Iterator[CardRule]:
        attribute = self._names.get(rule.attribute, "")
        roles = Counter[str]()
        for each in answers:
            roles[each.profile if is_device_profile(each.profile) else ""] += each.count
        if attribute in UNIQUE:
            lacking = "parentUUID" if roles.keys() - {""} else "uuid"
            if attribute == lacking or (attribute in {"uuid", "parentUUID"} and len(roles) > 1):
                has = "slices" if attribute == "parentUUID" else "whole cards and shares"
                raise ClaimRefused(f"{field} compares {attribute}, which only {has} have: compare index")
            if not rule.distinct and (len(roles) > 1 or CLAIMED_CARD in roles):
                raise ClaimRefused(
                    f"{field} wants several devices of one card, but a card is given whole, in shares or in slices:"
                    " leave it out"
                )
            yield CardRule(devices, rule.distinct)
        elif attribute in NODE_WIDE:
            if rule.distinct:
                raise ClaimRefused(f"{field} compares {attribute}, of which all cards of a node have the same value")
        elif attribute == "start":
            if not rule.distinct:
                raise ClaimRefused(f"{field} compares start, which is chosen by the room that it leaves: leave it out")
            yield CardRule(devices)  # the slices of a card start at different places
        elif attribute:
            self._compare_profiles(field, rule, answers)
        else:
            self._cards.check_values(field, rule, roles, meter)
            yield CardRule(devices, rule.distinct, rule.attribute)

    def _compare_profiles(self, field: str, rule: AttributeRule, answers: Sequence[Answer]) -> None:
        values = [str(self._value_of(each.profile, rule.attribute)) for each in answers for _ in range(each.count)]
        if len(set(values)) != (len(values) if rule.distinct else 1) or "None" in values:
            found = ", ".join(dict.fromkeys(values)).replace("None", "no value")
            raise ClaimRefused(f"{field} compares devices that have {found}: ask for other profiles, or leave it out")

    def _value_of(self, profile: str, attribute: str) -> object:
        every = (each for sort, each in self._published.sorts.items() if sort[0] == profile and each is not None)
        return next((each.attributes.get(attribute) for each in every), None)
