"""Reports the health of cards on the Node: the condition ``GpuHealthy``, and Events at each change."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tessera.agent.base.node_objects import ObjectEvents
from tessera.agent.health.card_health import describe_error
from tessera.agent.health.fault import PREFLIGHT, Fault
from tessera.agent.health.faults import HealthChange, HealthStateMachine
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.nodes.health import describe_fault
from tessera.api.nodes.preflights import CardTest, describe_test
from tessera.nvml.interface import GpuInfo


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
