"""Turns the constraints of a claim into rules about the cards of its devices, which planning keeps.

Whole cards, slices and shares are compared alike: planning places each on a card, and the values of a card are those of
all of its devices. What no placement can keep is refused with the field, and so is ``matchAttribute`` of ``start``:
planning chooses the starts by the room that they leave.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from tessera.api.names import CLAIMED_CARD
from tessera.cel.evaluator import Meter
from tessera.claims.controller.card_choices import Answer, CardChoices
from tessera.claims.controller.published_devices import NODE_WIDE, OF_PROFILE, UNIQUE, PublishedDevices
from tessera.dra.requests import AttributeRule, ClaimDemand, ClaimRefused
from tessera.mig.names import CLAIMED_SHARE, is_device_profile
from tessera.placement.demand import CardRule, CardSpread


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
