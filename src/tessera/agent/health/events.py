"""What can happen to the node's cards, as far as their health is concerned. Values only."""

from enum import Enum

import msgspec

from tessera.agent.health.policy import RecoveryAction
from tessera.nvml.interface import Event


class CardsListed(msgspec.Struct, frozen=True):
    """The node's cards, all of them."""

    gpus: frozenset[str]


class ProbeResult(Enum):
    """How a card answered when it was asked."""

    CLEAN = "clean"
    FAILED = "failed"
    LOST = "lost"


class CardProbed(msgspec.Struct, frozen=True, kw_only=True):
    """A card was asked.

    Attributes:
        gpu: which.
        result: how it answered.
        recovery: the driver's verdict, ``None`` where the driver has none.
        instances: ids of its GPU instances, ``None`` if they were not read.
        text: what a refusal said.
    """

    gpu: str
    result: ProbeResult
    recovery: RecoveryAction | None = None
    instances: frozenset[int] | None = None
    text: str = ""


class HardwareEventReported(msgspec.Struct, frozen=True):
    """The driver reported an event."""

    event: Event


class EventWatchFailed(msgspec.Struct, frozen=True):
    """Waiting for events failed (a time without events is no failure)."""

    text: str


class EventWatchRestored(msgspec.Struct, frozen=True):
    """Events can be waited for again."""


class CardReset(msgspec.Struct, frozen=True):
    """The card was reset."""

    gpu: str


class NodeRebooted(msgspec.Struct, frozen=True):
    """The node was booted, all cards with it."""


class InstanceDestroyed(msgspec.Struct, frozen=True):
    """A GPU instance was destroyed; what comes later under its id is another."""

    gpu: str
    gi_id: int


HealthEvent = (
    CardsListed
    | CardProbed
    | HardwareEventReported
    | EventWatchFailed
    | EventWatchRestored
    | CardReset
    | NodeRebooted
    | InstanceDestroyed
)
