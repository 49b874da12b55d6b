"""Describes the health of one card for the page ``/usage``: its state, its faults, and what happens next. Pure."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from tessera.agent.health.faults import ROW_REMAPPING, Fault, Hysteresis
from tessera.agent.inventory.device_health import Reaction
from tessera.api.nodes.health import BOOT_STEP, CardHealth, CardState, Evidence
from tessera.limits.messages import CONDITION_MESSAGE
from tessera.limits.nodes import CARD_EVIDENCE
from tessera.text import count_noun, one_line

_STATES = {
    Reaction.IGNORE: CardState.HEALTHY,
    Reaction.DEGRADE: CardState.DEGRADED,
    Reaction.WITHHOLD: CardState.DRAINING,
    Reaction.RESET: CardState.NEEDS_RESET,
    Reaction.REBOOT: CardState.NEEDS_REBOOT,
}
#: Words of :attr:`tessera.api.nodes.health.Evidence.asks`.
_NEEDS = {
    Reaction.IGNORE: "nothing",
    Reaction.DEGRADE: "attention",
    Reaction.WITHHOLD: "drain",
    Reaction.RESET: "reset",
    Reaction.REBOOT: "reboot",
}


#: Next step of a card whose faults the breaker spares.
_SPARED = (
    "still allocated: so many cards of the cluster report this error that the breaker is open; find out whether the"
    " cards or the reports are wrong"
)


def describe_card(faults: Sequence[Fault], hysteresis: Hysteresis, spared: Collection[Fault] = ()) -> CardHealth:
    """Returns the health of a card.

    Args:
        faults: the faults of the card and of its instances that are not over.
        hysteresis: the numbers that decide when a fault ends.
        spared: those of the faults that the breaker spares.
    """
    if not faults:
        return CardHealth(state=CardState.HEALTHY)
    ordered = sorted(faults, key=lambda fault: (fault in spared, -fault.reaction, fault.since, fault.source))
    worst = ordered[0]
    state = CardState.LOST if any(fault.lost for fault in faults) else _STATES[worst.reaction]
    if worst in spared:
        state = CardState.DEGRADED
    return CardHealth(
        state=state,
        since=min(fault.since for fault in ordered if fault.reaction is worst.reaction),
        evidence=tuple(_evidence(fault, spared=fault in spared) for fault in ordered[:CARD_EVIDENCE]),
        next=_SPARED if spared and state is CardState.DEGRADED else _next_step(state, worst, hysteresis),
        cut=max(0, len(ordered) - CARD_EVIDENCE),
    )


def _evidence(fault: Fault, *, spared: bool) -> Evidence:
    instance = f"GPU instance {fault.scope.gi_id}" if fault.scope.gi_id >= 0 else ""
    return Evidence(
        source=fault.source,
        text=one_line(fault.text, CONDITION_MESSAGE),
        asks=_NEEDS[fault.reaction],
        part=instance,
        since=fault.since,
        last=fault.last,
        count=fault.count,
        spared=spared,
    )


def _next_step(state: CardState, worst: Fault, hysteresis: Hysteresis) -> str:
    match state:
        case CardState.DEGRADED if worst.source == ROW_REMAPPING:
            return "still allocated; ends once the card no longer reports it"
        case CardState.NEEDS_RESET if worst.reset:
            return f"the card was reset; {_clean_probes(worst, hysteresis)}"
        case CardState.NEEDS_RESET:
            return "Tessera resets the card once no pod holds any part of it and no process has it open"
        case CardState.NEEDS_REBOOT | CardState.LOST:
            return BOOT_STEP
        case _:
            return _clean_probes(worst, hysteresis)


def _clean_probes(fault: Fault, hysteresis: Hysteresis) -> str:
    needed = count_noun(hysteresis.clean_probes, "clean probe")
    at = datetime.fromtimestamp(fault.last + hysteresis.quiet_time(fault.returns), UTC)
    return f"ends after {needed} in a row ({fault.clean} so far), not before {at:%H:%M:%S} UTC"
