"""Describes the health of one card for the page ``/usage``: its state, its faults, and what happens next. Pure.

And reports the health of cards on the Node: the condition ``GpuHealthy``, and Events at each change.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from tessera.agent.base.node_objects import ObjectEvents
from tessera.agent.health.fault import HYSTERESIS, PREFLIGHT, Fault
from tessera.agent.health.faults import HealthChange, HealthStateMachine
from tessera.agent.inventory.device_state import DeviceScope, Reaction
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
    describe_fault,
    next_step,
)
from tessera.api.nodes.preflights import CardTest, describe_test
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.limits import CARD_EVIDENCE, CONDITION_MESSAGE
from tessera.nvml.interface import GpuInfo
from tessera.text import count_noun, one_line


class HealthCondition(NamedTuple):
    """The condition ``GpuHealthy``."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def health_condition(health: HealthStateMachine, gpus: Mapping[str, GpuInfo]) -> HealthCondition:
    """Returns the condition: false if a fault of the hardware withholds any device; the message names every fault.

    Args:
        health: the state machine with the faults.
        gpus: the node's cards, by UUID.
    """
    if not gpus:
        return HealthCondition("Unknown", "NoCards", "no card was found yet")
    found = {fault.scope for fault in health.faults() if fault.scope.gpu in gpus}
    # The worst first: what a reader cuts off is the rest.
    scopes = sorted(found, key=lambda scope: (-health.health_of(scope).reaction, gpus[scope.gpu].index, scope))
    if not scopes:
        cards = "card" if len(gpus) == 1 else f"{len(gpus)} cards"
        return HealthCondition("True", "CardsHealthy", f"nothing is wrong with the node's {cards}")
    text = "; ".join(f"{name_scope(scope, gpus)}: {describe_scope(health, scope)}" for scope in scopes)
    healths = [health.health_of(scope) for scope in scopes]
    if not all(each.healthy or each.by_hand for each in healths):
        return HealthCondition("False", "CardUnhealthy", text)
    cordoned = any(each.by_hand for each in healths)
    return HealthCondition("True", "CardCordoned" if cordoned else "CardDegraded", text)


class HealthEvents:
    """Records Events about the health of cards.

    Args:
        node: the Node object.
        health: the state machine with the faults.

    Attributes:
        gpus: the node's cards by UUID, as last listed; their indexes name them in the texts.
    """

    def __init__(self, node: ObjectEvents, health: HealthStateMachine) -> None:
        self._node = node
        self._health = health
        self.gpus: Mapping[str, GpuInfo] = {}

    def record_change(self, change: HealthChange) -> None:
        """Records that the health of a card or an instance changed."""
        name = name_scope(change.scope, self.gpus)
        if change.after.by_hand:
            self._node.record_on_node("GpuCordoned", f"{name}: {describe_scope(self._health, change.scope)}", "Normal")
        elif change.before.by_hand and change.after.healthy:
            self._node.record_on_node("GpuUncordoned", f"{name}: may be allocated again", "Normal")
        elif change.after.reaction is Reaction.IGNORE:
            self._node.record_on_node("GpuRecovered", f"{name}: nothing is wrong with it any more", "Normal")
        elif change.before.healthy and self._awaits_test(change.scope):
            text = describe_scope(self._health, change.scope)
            self._node.record_on_node("GpuAwaitsPreflight", f"{name}: {text}", "Normal")
        else:
            reason = "GpuDegraded" if change.after.healthy else "GpuUnhealthy"
            self._node.record_on_node(reason, f"{name}: {describe_scope(self._health, change.scope)}", "Warning")

    def _awaits_test(self, scope: DeviceScope) -> bool:
        worst = self._health.worst_fault(scope)
        return worst is not None and worst.source == PREFLIGHT

    def record_reset(self, gpu: str) -> None:
        """Records that a card was reset because of its fault."""
        name = name_scope(DeviceScope(gpu), self.gpus)
        self._node.record_on_node("GpuReset", f"{name}: was reset because of its error", "Normal")

    def record_preflight(self, test: CardTest) -> None:
        """Records the result of the test of a new or repaired card; nothing for a card that could not be tested."""
        if test.skipped:
            return
        text = f"{name_scope(DeviceScope(test.gpu), self.gpus)}: {describe_test(test)}"
        if test.finding:
            self._node.record_on_node("GpuPreflightFailed", text, "Warning")
        else:
            self._node.record_on_node("GpuPreflightPassed", text, "Normal")

    def record_reboot(self, gpu: str) -> None:
        """Records that a reboot of the node was asked for a card."""
        name = name_scope(DeviceScope(gpu), self.gpus)
        self._node.record_on_node("GpuRebootRequested", f"{name}: a reboot of the node was requested for it", "Normal")

    def record_failed_reboot(self, gpu: str, error: Exception) -> None:
        """Records that a reboot could not be asked for."""
        name = name_scope(DeviceScope(gpu), self.gpus)
        text = f"{name}: no reboot of the node could be requested for it: {error}"
        self._node.record_on_node("GpuRebootFailed", text, "Warning")

    def record_failed_reset(self, gpu: str, error: Exception) -> None:
        """Records that a card could not be reset."""
        name = name_scope(DeviceScope(gpu), self.gpus)
        self._node.record_on_node("GpuResetFailed", f"{name}: could not be reset: {error}", "Warning")


def name_scope(scope: DeviceScope, gpus: Mapping[str, GpuInfo]) -> str:
    """The name of a card or an instance in messages: ``GPU 0 (GPU-…) GPU instance 7``."""
    gpu = gpus.get(scope.gpu)
    name = scope.gpu if gpu is None else f"GPU {gpu.index} ({scope.gpu})"
    instance = "" if scope.gi_id < 0 else f" GPU instance {scope.gi_id}"
    compute = "" if scope.ci_id < 0 else f" compute instance {scope.ci_id}"
    return f"{name}{instance}{compute}"


def describe_part(health: HealthStateMachine, gpu: str, gi_id: int) -> str:
    """The sentence about the worst fault of hardware of a GPU instance, -1 for the whole card; empty without one."""
    parts = {fault.scope for fault in health.faults() if fault.scope.gpu == gpu and fault.scope.gi_id in {-1, gi_id}}
    found = [fault for part in parts if (fault := health.worst_fault(part)) and fault.of_hardware]
    worst = min(found, key=lambda each: each.severity(spared=health.spares(each)), default=None)
    return _describe(health, worst)


def describe_scope(health: HealthStateMachine, scope: DeviceScope) -> str:
    """The sentence about the worst fault of a card or an instance; empty without a fault."""
    worst = health.worst_fault(scope)
    return _describe(health, worst)


def _describe(health: HealthStateMachine, fault: Fault | None) -> str:
    if fault is None:
        return ""
    return describe_fault(
        describe_error(fault, spared=health.spares(fault), repairs=health.repairs_of(fault.scope.gpu))
    )


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
    faults: Sequence[Fault], spared: Collection[Fault] = (), repairs: Repairs = _NO_REPAIRS
) -> CardHealth:
    """Returns the health of a card.

    Args:
        faults: the faults of the card and of its instances that are not over.
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
    outlook = _outlook(worst, told)
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


def _outlook(worst: Fault, error: Evidence) -> str:
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
            return _clean_probes(worst)


def _clean_probes(fault: Fault) -> str:
    needed = count_noun(HYSTERESIS.clean_probes, "clean probe")
    at = datetime.fromtimestamp(fault.last + HYSTERESIS.quiet_time(fault.returns), UTC)
    return f"ends after {needed} in a row ({fault.clean} so far), not before {at:%H:%M:%S} UTC"
