"""The health of the cluster's cards, from the agents' pages; unknown where an agent does not answer. Pure.

A rule is the source of an error, ``XID 48``. The breaker is open for a rule as long as a card is spared that it would
take away; see docs/decisions/health-breaker.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.health import TAKE_AWAY, TAKEN, CardHealth, CardState, fill_card
from tessera.api.nodes.silence import SilentNode
from tessera.api.nodes.usage import LeaseUsage, NodeUsage
from tessera.limits import CARD_EVIDENCE, CARD_HOLDERS

#: Order of the states, the worst first.
STATES = (
    CardState.LOST,
    CardState.NEEDS_REBOOT,
    CardState.NEEDS_RESET,
    CardState.WITHHELD,
    CardState.CORDONED,
    CardState.REPLACE,
    CardState.DEGRADED,
    CardState.UNKNOWN,
    CardState.HEALTHY,
)


class HealthRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The health of one card.

    Attributes:
        node: its node.
        index: of the driver.
        uuid: of the card.
        model: the product's name.
        taken: Unix time of the agent's sample.
        allocated: True if pods can get it.
        health: what the agent reports; its state is one that is known here.
    """

    node: str
    index: int
    uuid: str
    model: str
    taken: float
    allocated: bool
    health: CardHealth


class RuleState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Cards with an error of one rule: those that it has taken away, and those that the breaker spares."""

    rule: str
    taken: int
    spared: int


class PodFindings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A lease with findings, and its node."""

    node: str
    lease: LeaseUsage


class FleetHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The health of all cards that were asked for.

    Attributes:
        cards: the cards, worst first.
        silent: nodes whose agent does not answer.
        rules: the errors that take cards away, by rule.
        findings: leases with findings.
        simulated: True if cards exist only in a lab.
        nodes_known: False if the user may not read nodes: whether others should have answered is unknown then.
        blocked: sentences about free devices that kube-scheduler gives to no pod.
        unread: what the API server did not answer, in one line; empty if it answered all.
    """

    cards: Sequence[HealthRow]
    silent: Sequence[SilentNode]
    rules: Sequence[RuleState]
    findings: Sequence[PodFindings]
    simulated: bool
    nodes_known: bool = True
    blocked: Sequence[str] = ()
    unread: str = ""

    @property
    def counts(self) -> Mapping[CardState, int]:
        """Number of cards by state, the worst state first; states without a card are missing."""
        found = Counter(CardState(row.health.state) for row in self.cards)
        return {state: found[state] for state in STATES if found[state]}

    @property
    def complete(self) -> bool:
        """True if every card's health is known, and every card is allocated."""
        return all(row.allocated for row in self.cards) and not self.silent and self.nodes_known and not self.unread


def judge_fleet(
    fleet: FleetUsage, *, nodes_known: bool = True, blocked: Sequence[str] = (), unread: str = ""
) -> FleetHealth:
    """Collects the health of these nodes' cards."""
    pages = fleet.nodes
    cards = [
        HealthRow(
            node=usage.node,
            index=card.index,
            uuid=card.uuid,
            model=card.model,
            taken=usage.taken,
            allocated=health.state not in TAKEN,
            health=health,
        )
        for usage in pages
        for card in usage.cards
        for health in [_bound(card.health, usage.node, card.index)]
    ]
    return FleetHealth(
        cards=sorted(cards, key=lambda row: (STATES.index(CardState(row.health.state)), row.node, row.index)),
        silent=fleet.failures,
        rules=list(_rules(cards)),
        findings=[
            PodFindings(node=usage.node, lease=lease) for usage in pages for lease in usage.leases if lease.findings
        ],
        simulated=any(usage.simulated for usage in pages),
        nodes_known=nodes_known,
        blocked=blocked,
        unread=unread,
    )


def of_pods(fleet: FleetUsage, selects: Callable[[str, str], bool]) -> FleetUsage:
    """The pages with the leases of some pods only, and with the cards that these or their processes hold.

    Args:
        fleet: the pages. Silent nodes stay: the pods may be there.
        selects: True for the namespace and name of a pod to keep.
    """

    def select(usage: NodeUsage) -> NodeUsage:
        leases = tuple(each for each in usage.leases if selects(each.namespace, each.pod))
        held = {each.device for each in leases}
        cards = tuple(
            card
            for card in usage.cards
            if held.intersection((card.uuid, *(each.uuid for each in card.devices)))
            or any(each.pod and selects(each.namespace, each.pod) for each in card.health.holders)
        )
        return msgspec.structs.replace(usage, leases=leases, cards=cards)

    return msgspec.structs.replace(fleet, nodes=tuple(map(select, fleet.nodes)))


def _bound(health: CardHealth, node: str, index: int) -> CardHealth:
    """The health with a known state and bounded lists; the next step names the card."""
    known = health.state in set(CardState)
    more = max(0, len(health.evidence) - CARD_EVIDENCE) + max(0, len(health.holders) - CARD_HOLDERS)
    return msgspec.structs.replace(
        health,
        state=health.state if known else CardState.UNKNOWN,
        evidence=health.evidence[:CARD_EVIDENCE],
        holders=health.holders[:CARD_HOLDERS],
        cut=health.cut + more,
        next=fill_card(health.next, node, index),
    )


def _rules(cards: Iterable[HealthRow]) -> Iterable[RuleState]:
    taken: Counter[str] = Counter()
    spared: Counter[str] = Counter()
    for row in cards:
        away = [each for each in row.health.evidence if each.asks in TAKE_AWAY]
        for rule in {each.source for each in away}:
            (spared if all(each.spared for each in away if each.source == rule) else taken)[rule] += 1
    for rule in sorted(taken | spared):
        yield RuleState(rule=rule, taken=taken[rule], spared=spared[rule])
