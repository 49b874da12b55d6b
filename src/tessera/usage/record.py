"""The record of GPU-hours: amounts by period, in GPU-seconds. Pure values.

A period is an hour, or an older day. It has the seconds of the cards by model, and the seconds that leases held, by
namespace, user, label and model. So for each model

    capacity = allocated + free + unavailable + unknown

where allocated is the sum of the rows, and free is what remains.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

#: Most rows of an hour or a day in the record of GPU-hours; the smallest of the namespace with the most rows are added
#: up. 79 periods of 250 rows have 500 KiB.
USAGE_ROWS = 250


#: Most models of cards in an hour or a day of the record of GPU-hours; others count as `(other)`. A cluster has a few;
#: a node that lies cannot add thousands.
USAGE_MODELS = 64
#: Most characters: a namespace, a user, a label's value or a model in the record of GPU-hours; the rest is cut. A
#: label's value has no more.
USAGE_NAME = 63
#: Most namespaces whose teams the record of GPU-hours names, those that held cards first; the others are teams of
#: their own.
USAGE_TEAMS = 1_000

HOUR, DAY = 3600, 86_400
#: Name of what is added up for a limit, and of what the controller does not know, as of a lease whose pod it never saw.
OTHER, UNKNOWN = "(other)", "(unknown)"


class UsageKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Owner and model of GPU-seconds; user and label are empty if the pod does not state them."""

    namespace: str
    user: str
    label: str
    model: str


class LeaseSeconds(msgspec.Struct):
    """GPU-seconds that leases held; what is neither active nor idle could not be measured.

    Attributes:
        held: all of them.
        active: in the state busy.
        idle: in the states never_used, idle and resident.
        metered: those whose energy is known.
        energy: joules of the metered ones.
    """

    held: float = 0.0
    active: float = 0.0
    idle: float = 0.0
    metered: float = 0.0
    energy: float = 0.0

    @property
    def unknown(self) -> float:
        """GPU-seconds whose use could not be measured."""
        return max(0.0, self.held - self.active - self.idle)

    def add(self, other: "LeaseSeconds", part: float = 1.0) -> None:
        """Adds a part of another amount."""
        self.held += other.held * part
        self.active += other.active * part
        self.idle += other.idle * part
        self.metered += other.metered * part
        self.energy += other.energy * part


class CardSeconds(msgspec.Struct):
    """Card-seconds of a model.

    Attributes:
        capacity: all of them.
        unavailable: not held, and no pod could have got them: the card is not well, or its node is cordoned.
        unknown: nobody watched: the agent or the controller did not run.
    """

    capacity: float = 0.0
    unavailable: float = 0.0
    unknown: float = 0.0

    def add(self, other: "CardSeconds", part: float = 1.0) -> None:
        """Adds a part of another amount."""
        self.capacity += other.capacity * part
        self.unavailable += other.unavailable * part
        self.unknown += other.unknown * part


class Period(msgspec.Struct):
    """An hour or a day.

    Attributes:
        start: Unix time.
        seconds: its length.
        cards: by model.
        rows: by owner and model.
    """

    start: int
    seconds: int
    cards: dict[str, CardSeconds] = {}
    rows: dict[UsageKey, LeaseSeconds] = {}

    @property
    def end(self) -> int:
        """Unix time."""
        return self.start + self.seconds

    def add_cards(self, model: str, amount: CardSeconds, part: float = 1.0) -> None:
        """Adds card-seconds of a model."""
        self.cards.setdefault(self._model(model), CardSeconds()).add(amount, part)

    def add_lease(self, key: UsageKey, amount: LeaseSeconds, part: float = 1.0) -> None:
        """Adds GPU-seconds of an owner; card-seconds of the model must be there."""
        key = msgspec.structs.replace(key, model=self._model(key.model))
        if key not in self.rows and len(self.rows) >= 2 * USAGE_ROWS:
            self.rows = fold(self.rows, USAGE_ROWS)
        self.rows.setdefault(key, LeaseSeconds()).add(amount, part)

    def add(self, other: "Period") -> None:
        """Adds another period."""
        for model, cards in other.cards.items():
            self.add_cards(model, cards)
        for key, lease in other.rows.items():
            self.add_lease(key, lease)

    def _model(self, model: str) -> str:
        return model if model in self.cards or len(self.cards) < USAGE_MODELS else OTHER


class NodeMark(msgspec.Struct, frozen=True):
    """The time up to which a node is counted.

    Attributes:
        until: Unix time of the controller.
        taken: time of the last sample that was counted, on the node's clock.
        cards: number of its cards, by model.
    """

    until: float
    taken: float
    cards: Mapping[str, int] = {}


class UsageRecord(msgspec.Struct):
    """Everything that was counted.

    Attributes:
        began: Unix time of the first count; 0 before it.
        label: key of the pods' label whose values the rows have.
        simulated: True if some of the cards exist only in a lab.
        periods: the oldest first.
        nodes: by name, the time up to which each is counted.
        team_label: key of the namespaces' label that names their teams; empty if each namespace is a team.
        teams: by namespace, its team; a namespace that is missing is a team of its own.
    """

    began: float = 0.0
    label: str = ""
    simulated: bool = False
    periods: list[Period] = []
    nodes: dict[str, NodeMark] = {}
    team_label: str = ""
    teams: dict[str, str] = {}

    @property
    def until(self) -> float:
        """The latest time that is counted; 0 if none is."""
        return max((mark.until for mark in self.nodes.values()), default=self.began)


def short_name(text: str) -> str:
    """A name as the record has it: printable, and at most ``USAGE_NAME`` characters."""
    start = text[:USAGE_NAME]
    return start if start.isprintable() else "".join(each if each.isprintable() else "?" for each in start)


def with_label(record: UsageRecord, label: str) -> UsageRecord:
    """The record for another label; what was counted has no value of it."""
    for period in record.periods:
        rows, period.rows = period.rows, {}
        for key, amount in rows.items():
            period.add_lease(msgspec.structs.replace(key, label=""), amount)
    record.label = label
    return record


def of_namespaces(record: UsageRecord, shows: Callable[[str], bool]) -> UsageRecord:
    """The leases of some namespaces: the cards and the nodes are everybody's, so they are left out.

    Args:
        record: the whole record.
        shows: True for a namespace that is shown.
    """
    return UsageRecord(
        began=record.began,
        label=record.label,
        simulated=record.simulated,
        periods=[
            Period(each.start, each.seconds, rows={key: row for key, row in each.rows.items() if shows(key.namespace)})
            for each in record.periods
        ],
        nodes={"": NodeMark(record.until, record.until, {})},
        team_label=record.team_label,
        teams={namespace: team for namespace, team in record.teams.items() if shows(namespace)},
    )


def fold(rows: Mapping[UsageKey, LeaseSeconds], most: int) -> dict[UsageKey, LeaseSeconds]:
    """Adds rows up until at most ``most`` remain; the sum stays the same.

    The smallest rows of the namespace that has the most rows go first, so a tenant who invents users makes only its own
    rows coarse.
    """
    found = dict(rows)
    while len(found) > most:
        counts = Counter(key.namespace for key in found if (key.user, key.label) != (OTHER, OTHER))
        namespace = min(counts, key=lambda each: (-counts[each], each), default="")
        excess = len(found) - most
        victims = _smallest(found, namespace, 1 + excess) if counts[namespace] > 1 else []
        if len(victims) > len({key.model for key in victims}):
            found = _merge(found, victims, namespace)
        else:  # each namespace has one row of a model
            everyone = sorted(found, key=lambda key: (found[key].held, key))
            models = len({key.model for key in found})
            return _merge(found, everyone[: min(len(everyone), excess + models)], OTHER)
    return found


def _smallest(rows: Mapping[UsageKey, LeaseSeconds], namespace: str, number: int) -> list[UsageKey]:
    own = [key for key in rows if key.namespace == namespace and (key.user, key.label) != (OTHER, OTHER)]
    return sorted(own, key=lambda key: (rows[key].held, key))[: max(number, len(own) // 2)]


def _merge(
    rows: Mapping[UsageKey, LeaseSeconds], victims: Iterable[UsageKey], namespace: str
) -> dict[UsageKey, LeaseSeconds]:
    gone = set(victims)
    found = {key: amount for key, amount in rows.items() if key not in gone}
    for key in sorted(gone):
        target = UsageKey(namespace, OTHER, OTHER, key.model)
        amount = msgspec.structs.replace(found.get(target, LeaseSeconds()))
        amount.add(rows[key])
        found[target] = amount
    return found
