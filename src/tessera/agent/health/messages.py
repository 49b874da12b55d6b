"""What people are told of the health of cards: in the condition of the node and in its events. Pure."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from tessera.agent.health.faults import HealthStateMachine
from tessera.agent.inventory.device_health import DeviceHealth, DeviceScope, Reaction
from tessera.nvml.interface import GpuInfo

#: What a reaction means to people.
_MEANS: Mapping[Reaction, str] = {
    Reaction.DEGRADE: "still given out",
    Reaction.DRAIN: "not given out until it has proven itself",
    Reaction.RESET: "not given out until the card is reset",
    Reaction.REBOOT: "not given out until the node is rebooted",
}


class HealthCondition(NamedTuple):
    """The condition ``GpuHealthy``."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


def health_condition(health: HealthStateMachine, gpus: Mapping[str, GpuInfo]) -> HealthCondition:
    """The condition: false if anything must not be given out, with all that is wrong.

    Args:
        health: what is known.
        gpus: the node's cards, by UUID.
    """
    if not gpus:
        return HealthCondition("Unknown", "NoCards", "no card was found yet")
    marked = sorted({mark.scope for mark in health.faults() if mark.scope.gpu in gpus})
    verdicts = {scope: health.health_of(scope) for scope in marked}
    if not verdicts:
        cards = "card" if len(gpus) == 1 else f"{len(gpus)} cards"
        return HealthCondition("True", "CardsHealthy", f"nothing is wrong with the node's {cards}")
    text = "; ".join(f"{name_scope(scope, gpus)}: {describe_health(verdict)}" for scope, verdict in verdicts.items())
    if all(verdict.healthy for verdict in verdicts.values()):
        return HealthCondition("True", "CardDegraded", text)
    return HealthCondition("False", "CardUnhealthy", text)


def name_scope(scope: DeviceScope, gpus: Mapping[str, GpuInfo]) -> str:
    """A card or an instance as people look for it."""
    gpu = gpus.get(scope.gpu)
    name = scope.gpu if gpu is None else f"GPU {gpu.index} ({scope.gpu})"
    instance = "" if scope.gi_id < 0 else f" GPU instance {scope.gi_id}"
    compute = "" if scope.ci_id < 0 else f" compute instance {scope.ci_id}"
    return f"{name}{instance}{compute}"


def describe_health(verdict: DeviceHealth) -> str:
    """What is wrong and what follows."""
    return f"{verdict.text}; {_MEANS[verdict.reaction]}"
