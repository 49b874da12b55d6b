"""Rows of cards, of leases and of teams, over all nodes, as ``tessera top`` and ``tessera idle`` show them. Pure.

A value without a measurement is ``None``, never 0, and sorts last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from tessera.api.nodes.usage import CardUsage, LeaseUsage, NodeUsage

Row = TypeVar("Row")

#: States in which a lease could serve somebody else.
WASTED_STATES = ("never_used", "idle", "resident")


class CardRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One card.

    Attributes:
        node: its node.
        index: of the driver.
        uuid: of the card.
        model: the product's name.
        mig: True if MIG mode is on.
        state: of its health, a value of :class:`tessera.api.nodes.health.CardState`.
        busy: share of time in which it computed, 0 to 1; of a card in MIG mode the mean over its devices by size.
        memory: bytes in use.
        memory_total: bytes of the card.
        power: watts.
        power_limit: watts.
        temperature: degrees Celsius.
        sm_clock: hertz.
        throttled: the reasons for which it is slowed down; ``None`` if it reports none.
        held: part of the card that containers hold, 0 to 1.
        pods: number of pods on it.
    """

    node: str
    index: int
    uuid: str
    model: str
    mig: bool
    state: str
    busy: float | None
    memory: float | None
    memory_total: float | None
    power: float | None
    power_limit: float | None
    temperature: float | None
    sm_clock: float | None
    throttled: tuple[str, ...] | None
    held: float
    pods: int


class LeaseRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Hold of one container on one card or MIG device.

    Attributes:
        node: the node.
        card: index of the card; ``None`` if the page does not list the device.
        model: product name of the card.
        profile: of a MIG device; empty for a card.
        owner: ``Kind/name`` of the workload that made the pod; empty if it has none.
        device_memory: bytes of the device.
        lease: what the agent reports.
    """

    node: str
    card: int | None
    model: str
    profile: str
    owner: str
    device_memory: float | None
    lease: LeaseUsage

    @property
    def key(self) -> str:
        """``namespace/pod``."""
        return f"{self.lease.namespace}/{self.lease.pod}"

    @property
    def memory_limit(self) -> float | None:
        """Bytes that the pod may hold: its part of a shared device, else the whole device."""
        return self.device_memory if self.lease.limit is None else self.lease.limit


def card_rows(nodes: Iterable[NodeUsage]) -> list[CardRow]:
    """The cards of these nodes, in the order of nodes and indexes."""
    return [_card_row(usage, card) for usage in nodes for card in usage.cards]


def _card_row(usage: NodeUsage, card: CardUsage) -> CardRow:
    values = card.values
    return CardRow(
        node=usage.node,
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        mig=card.mig,
        state=card.health.state,
        busy=card_activity(card),
        memory=values.get("memory_used"),
        memory_total=values.get("memory_total"),
        power=values.get("power"),
        power_limit=values.get("power_limit"),
        temperature=values.get("temperature"),
        sm_clock=values.get("sm_clock"),
        throttled=throttle_reasons(card),
        held=held_part(usage, card),
        pods=len({each.uid for each in _leases_of(usage, card)}),
    )


def _leases_of(usage: NodeUsage, card: CardUsage) -> list[LeaseUsage]:
    devices = {card.uuid, *(each.uuid for each in card.devices)}
    return [each for each in usage.leases if each.device in devices]


def held_part(usage: NodeUsage, card: CardUsage) -> float:
    """The part of a card that containers hold, 0 to 1."""
    return min(1.0, sum(each.share for each in _leases_of(usage, card)))


def throttle_reasons(card: CardUsage) -> tuple[str, ...] | None:
    """The reasons for which a card is slowed down; ``None`` if it reports none."""
    if "throttle_reasons" in card.absent:
        return None
    return tuple(each for each in card.throttled if each != "gpu_idle")


def card_activity(card: CardUsage) -> float | None:
    """The share of time in which a card computed; of a card in MIG mode the mean over its devices by size."""
    own = activity(card.values)
    if own is not None or not card.devices:
        return own
    parts = [(each.share, activity(each.values)) for each in card.devices]
    known = [share * value for share, value in parts if value is not None]
    return sum(known) if len(known) == len(parts) else None


def activity(values: Mapping[str, float]) -> float | None:
    """The share of time in which a device computed: GPM's engine activity, else NVML's utilization."""
    return values.get("engine_active", values.get("gpu_utilization"))


def lease_rows(nodes: Iterable[NodeUsage]) -> list[LeaseRow]:
    """The leases of these nodes."""
    return [row for usage in nodes for row in _lease_rows(usage)]


def _lease_rows(usage: NodeUsage) -> Iterator[LeaseRow]:
    places = {card.uuid: (card, "", card.values) for card in usage.cards}
    for card in usage.cards:
        places |= {each.uuid: (card, each.profile, each.values) for each in card.devices}
    for lease in usage.leases:
        place = places.get(lease.device)
        yield LeaseRow(
            node=usage.node,
            card=place[0].index if place else None,
            model=place[0].model if place else "",
            profile=place[1] if place else "",
            owner=lease.owner,
            device_memory=place[2].get("memory_total") if place else None,
            lease=lease,
        )


def largest_first(value: Callable[[Row], float | None]) -> Callable[[Row], float]:
    """The order of rows by a value; those of which it is not known are last."""

    def order(row: Row) -> float:
        found = value(row)
        return float("-inf") if found is None else found

    return order


#: Orders of leases by name, each with the largest first.
LEASE_ORDERS: Mapping[str, Callable[[LeaseRow], float]] = {
    "busy": largest_first(lambda row: row.lease.busy),
    "memory": largest_first(lambda row: row.lease.memory),
    "held": largest_first(lambda row: row.lease.held),
    "wasted": largest_first(lambda row: row.lease.wasted),
}

#: Orders of cards by name, each with the largest first.
CARD_ORDERS: Mapping[str, Callable[[CardRow], float]] = {
    "busy": largest_first(lambda card: card.busy),
    "memory": largest_first(lambda card: card.memory),
    "power": largest_first(lambda card: card.power),
    "temperature": largest_first(lambda card: card.temperature),
}


class TeamRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A team.

    Attributes:
        team: its name, of the namespaces' label; or a namespace, which is a team of its own without the label.
        namespaces: those of its pods that hold cards.
        pods: number of its pods that hold cards.
        held: cards that they hold, parts added.
        busy: share of time in which the parts that are measured computed; None if none is.
        wasted: GPU-seconds that they held and did not use.
        unused: cards that they hold in the states never_used, idle and resident, parts added.
        power: watts; None if nothing measures them.
    """

    team: str
    namespaces: tuple[str, ...]
    pods: int
    held: float
    busy: float | None
    wasted: float
    unused: float
    power: float | None


def team_rows(leases: Iterable[LeaseRow], teams: Mapping[str, str]) -> list[TeamRow]:
    """The teams of these leases, by name.

    Args:
        leases: what pods hold.
        teams: team by namespace, where it is not the namespace itself.
    """
    found: dict[str, list[LeaseRow]] = {}
    for row in leases:
        found.setdefault(teams.get(row.lease.namespace, row.lease.namespace), []).append(row)
    return [_team_row(team, rows) for team, rows in sorted(found.items())]


def _team_row(team: str, rows: list[LeaseRow]) -> TeamRow:
    leases = [row.lease for row in rows]
    measured = [(each.share, each.busy) for each in leases if each.busy is not None]
    size = sum(share for share, _ in measured)
    power = [each.power for each in leases if each.power is not None]
    return TeamRow(
        team=team,
        namespaces=tuple(sorted({each.namespace for each in leases})),
        pods=len({row.key for row in rows}),
        held=sum(each.share for each in leases),
        busy=sum(share * busy for share, busy in measured) / size if size else None,
        wasted=sum(each.wasted for each in leases),
        unused=sum(each.share for each in leases if each.state in WASTED_STATES),
        power=sum(power) if power else None,
    )


#: Orders of the table, the largest first.
TEAM_ORDERS: Mapping[str, Callable[[TeamRow], float]] = {
    "held": lambda row: row.held,
    "busy": largest_first(lambda row: row.busy),
    "wasted": lambda row: row.wasted,
    "power": largest_first(lambda row: row.power),
}
