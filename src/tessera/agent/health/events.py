"""Events that the health state machine takes in. Values only."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.agent.health.policy import RecoveryAction
from tessera.api.nodes.card_faults import CardRule
from tessera.api.nodes.cordons import Cordon
from tessera.api.nodes.repairs import Repairs
from tessera.nvml.interface import GpuEvent


class CardsListed(msgspec.Struct, frozen=True):
    """NVML listed the node's cards: these UUIDs and no others; ``unreadable`` has the error of each it cannot read."""

    gpus: frozenset[str]
    unreadable: Mapping[str, str] = {}


class ProbeResult(Enum):
    """Answer of a card to a probe."""

    CLEAN = "clean"
    FAILED = "failed"
    LOST = "lost"


class CardProbed(msgspec.Struct, frozen=True, kw_only=True):
    """A card was probed.

    Attributes:
        gpu: the card's UUID.
        result: the card's answer.
        recovery: the recovery action that the driver asks for; ``None`` if the driver gives none.
        instances: ids of its GPU instances; ``None`` if they were not read.
        text: NVML's error; empty if there was none.
    """

    gpu: str
    result: ProbeResult
    recovery: RecoveryAction | None = None
    instances: frozenset[int] | None = None
    text: str = ""


class HardwareEventReported(msgspec.Struct, frozen=True):
    """The driver reported a hardware event."""

    event: GpuEvent


class ErrorsMeasured(msgspec.Struct, frozen=True):
    """A card was measured.

    Attributes:
        gpu: the card's UUID.
        errors: what is wrong, in words by source; empty words for a source that shows nothing. A source that is
            missing was not measured.
    """

    gpu: str
    errors: Mapping[str, str]


class CardsUnheard(msgspec.Struct, frozen=True):
    """NVML reports no hardware events of these cards, each with its error, and those of all others."""

    errors: Mapping[str, str]


class CardReset(msgspec.Struct, frozen=True):
    """A card was reset."""

    gpu: str


class NodeRebooted(msgspec.Struct, frozen=True):
    """The node was booted, and all its cards with it."""


class FaultsSpared(msgspec.Struct, frozen=True):
    """The breaker of the cluster spares these faults, and no others: they take no card away."""

    faults: frozenset[CardRule]


class PreflightEnded(msgspec.Struct, frozen=True):
    """A new or repaired card was tested.

    Attributes:
        gpu: the card's UUID.
        since: beginning of its wait for the test.
        text: what is not well; empty if it may take work.
    """

    gpu: str
    since: float
    text: str


class PodPreflightFailed(msgspec.Struct, frozen=True):
    """A card, or a part of it, failed the test before a pod's first container; ``text`` is the finding."""

    gpu: str
    text: str


class CardsCordoned(msgspec.Struct, frozen=True):
    """A person has taken these cards out of service, and no others."""

    cordons: tuple[Cordon, ...]


class RepairsSet(msgspec.Struct, frozen=True):
    """The administrator's settings for cards with faults were read, or have changed."""

    repairs: Repairs


class InstanceDestroyed(msgspec.Struct, frozen=True):
    """A GPU instance was destroyed; a later one of the same id is another instance."""

    gpu: str
    gi_id: int


HealthEvent = (
    CardsListed
    | CardProbed
    | HardwareEventReported
    | CardsUnheard
    | CardReset
    | NodeRebooted
    | InstanceDestroyed
    | ErrorsMeasured
    | FaultsSpared
    | CardsCordoned
    | PreflightEnded
    | RepairsSet
    | PodPreflightFailed
)
