"""Describes the health of one card for the page ``/usage``: its state, its faults, and what happens next. Pure."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from tessera.agent.health.fault import PREFLIGHT, Fault, Hysteresis
from tessera.agent.inventory.device_state import Reaction
from tessera.api.nodes.card_faults import CardFault
from tessera.api.nodes.health import (
    BOOT_STEP,
    CARD_PLACE,
    MEASURED_ERRORS,
    REBOOTED_STEP,
    UNREADABLE,
    CardHealth,
    CardState,
    Evidence,
    next_step,
)
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.limits.messages import CONDITION_MESSAGE
from tessera.limits.nodes import CARD_EVIDENCE
from tessera.text import count_noun, one_line

#: Nothing is done by itself.
_NO_REPAIRS = Repairs()
_STATES = {
    Reaction.IGNORE: CardState.HEALTHY,
    Reaction.DEGRADE: CardState.DEGRADED,
    Reaction.WITHHOLD: CardState.WITHHELD,
    Reaction.RESET: CardState.NEEDS_RESET,
    Reaction.REBOOT: CardState.NEEDS_REBOOT,
}
#: Words of :attr:`tessera.api.nodes.health.Evidence.asks`.
_NEEDS: Mapping[Reaction, Literal["attention", "withhold", "reset", "reboot"]] = {
    Reaction.DEGRADE: "attention",
    Reaction.WITHHOLD: "withhold",
    Reaction.RESET: "reset",
    Reaction.REBOOT: "reboot",
}


def _need(fault: Fault) -> Literal["attention", "replace", "preflight", "uncordon", "withhold", "reset", "reboot"]:
    if fault.to_replace:
        return "replace"
    if fault.source == PREFLIGHT:
        return "preflight"
    return "uncordon" if fault.by_hand else _NEEDS[fault.reaction]


def describe_card(
    faults: Sequence[Fault], hysteresis: Hysteresis, spared: Collection[Fault] = (), repairs: Repairs = _NO_REPAIRS
) -> CardHealth:
    """Returns the health of a card.

    Args:
        faults: the faults of the card and of its instances that are not over.
        hysteresis: the numbers that decide when a fault ends.
        spared: those of the faults that the breaker spares.
        repairs: what Tessera does about them by itself.
    """
    if not faults:
        return CardHealth(state=CardState.HEALTHY)
    ordered = sorted(faults, key=lambda fault: fault.severity(spared=fault in spared))
    worst = ordered[0]
    state = CardState.LOST if any(fault.lost for fault in faults) else _STATES[worst.reaction]
    if worst in spared:
        state = CardState.DEGRADED
    elif worst.by_hand:
        state = CardState.CORDONED
    elif worst.to_replace:
        state = CardState.REPLACE
    evidence = tuple(
        describe_error(fault, spared=fault in spared, repairs=repairs) for fault in ordered[:CARD_EVIDENCE]
    )
    told = next((each for each in evidence if each.spared), evidence[0]) if state is CardState.DEGRADED else evidence[0]
    outlook = _outlook(worst, told, hysteresis)
    return CardHealth(
        state=state,
        since=min(fault.since for fault in ordered if fault.reaction is worst.reaction),
        evidence=evidence,
        next="; ".join(filter(None, [next_step(told), outlook])),
        cut=max(0, len(ordered) - CARD_EVIDENCE),
    )


def describe_error(fault: Fault, *, spared: bool, repairs: Repairs, toleration: float = 0.0) -> Evidence:
    """The error as pages, conditions and Events tell it.

    Args:
        fault: the error.
        spared: true if the breaker spares it.
        repairs: what Tessera does about it by itself.
        toleration: seconds for which the pod that is told of it wants to stay on its card.
    """
    evicted, reboot = _repairs_of(fault, repairs, toleration)
    return Evidence(
        source=fault.source,
        text=one_line(fault.text, CONDITION_MESSAGE),
        asks=_need(fault),
        part=f"GPU instance {fault.scope.gi_id}" if fault.scope.gi_id >= 0 else "",
        since=fault.since,
        last=0.0 if fault.by_hand else fault.last,  # a cordon lasts, it does not happen again
        count=fault.count,
        spared=spared,
        lost=fault.lost,
        reset=fault.reset,
        evicted=evicted,
        reboot=reboot,
    )


def _repairs_of(fault: Fault, repairs: Repairs, toleration: float) -> tuple[float, str]:
    """When pods are evicted for a fault, and how the node is rebooted for it; 0 and empty for not by Tessera."""
    needs_empty = fault.reaction is Reaction.REBOOT or (fault.reaction is Reaction.RESET and not fault.reset)
    evicted = repairs.eviction_time(fault.since, toleration) if repairs.evict and needs_empty else 0.0
    reboots = fault.reaction is Reaction.REBOOT and repairs.reboot is not RebootWay.NONE
    return evicted, repairs.reboot.value if reboots else ""


def list_fault(fault: Fault, index: int, repairs: Repairs) -> CardFault:
    """The fault as the annotation of the Node has it; ``index`` is the card's."""
    evicted, reboot = _repairs_of(fault, repairs, 0.0)
    return CardFault(
        gpu=fault.scope.gpu,
        rule=fault.source,
        since=int(fault.since),
        index=index,
        part=fault.scope.gi_id,
        asks=_need(fault),
        text=fault.text,
        lost=fault.lost,
        reset=fault.reset,
        evicted=int(evicted),
        reboot=reboot,
    )


def _outlook(worst: Fault, error: Evidence, hysteresis: Hysteresis) -> str:
    """What the administrator of the node wants to know as well; it may change with each probe."""
    match worst.reaction:
        case _ if worst.source == UNREADABLE and not worst.clean:
            return "Tessera lists the cards again every few seconds; if the error stays, drain and reboot the node"
        case _ if error.spared:
            return "find out whether the cards or the reports are wrong"
        case Reaction.REBOOT:
            return BOOT_STEP if not error.reboot else REBOOTED_STEP
        case _ if worst.source == PREFLIGHT:
            return "Tessera tests it once no pod holds any part of it, and again with growing pauses if the test fails"
        case _ if worst.to_replace:
            return f"to take it out of service until then: tessera cordon {CARD_PLACE}"
        case _ if worst.by_hand:
            return f"to give it back: tessera uncordon {CARD_PLACE}"
        case Reaction.RESET if not worst.reset:
            return "Tessera resets it once no pod holds any part of it and no process has it open"
        case Reaction.DEGRADE if worst.source in MEASURED_ERRORS:
            return ""
        case _:
            return _clean_probes(worst, hysteresis)


def _clean_probes(fault: Fault, hysteresis: Hysteresis) -> str:
    needed = count_noun(hysteresis.clean_probes, "clean probe")
    at = datetime.fromtimestamp(fault.last + hysteresis.quiet_time(fault.returns), UTC)
    return f"ends after {needed} in a row ({fault.clean} so far), not before {at:%H:%M:%S} UTC"
