"""Finds the node's driver and decides if it may be used. Pure.

Rules:

1. A replacement of the driver goes first: while the node's label asks for a pause, nothing uses a card.
2. A driver container reports by its marker that it is ready, and only then is its library used. Where such a container
   is expected (by the node's label, or by files below the driver root), a library of the host does not count: it would
   be left from the earlier container.
3. A validation concerns one driver. A marker that names another driver container, or that names none and is older than
   the container's own, concerns the earlier driver.
"""

from enum import Enum
from typing import Literal

import msgspec

from tessera.agent.base.marker_files import MarkerFile, MarkerId
from tessera.agent.base.options import ValidationMode


class DriverHome(Enum):
    """The source of the driver: the host, or a driver container."""

    HOST = "host"
    CONTAINER = "container"


Reason = Literal[
    "WaitingForDriver",
    "WaitingForToolkit",
    "WaitingForValidation",
    "PausedForDriver",
    "NvmlFailed",
    "StateOfNewerVersion",
]


class WaitReason(msgspec.Struct, frozen=True):
    """Reason that the cards cannot be used yet: ``reason`` for machines, ``message`` for people."""

    reason: Reason
    message: str


class DriverFound(msgspec.Struct, frozen=True):
    """A driver that may be opened.

    Attributes:
        home: the source of the driver.
        container: the marker of the container that brought it; ``None`` for the host's.
    """

    home: DriverHome
    container: MarkerId | None = None


class DriverFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that the agent can see without the driver.

    Attributes:
        paused: true if the node's label asks every process to release the cards.
        managed: true if the node's driver comes in a container.
        container: the marker of a driver container that is ready.
        library: true if the driver's library is below the driver root.
        toolkit: the marker of the container runtime that knows the cards.
        validated: the marker of the validation.
        driver_root: the driver root, for messages.
    """

    paused: bool = False
    managed: bool = False
    container: MarkerId | None = None
    library: bool = False
    toolkit: MarkerFile | None = None
    validated: MarkerFile | None = None
    driver_root: str = ""


def find_driver(facts: DriverFacts) -> DriverFound | WaitReason:
    """The driver that may be opened now, or the reason that there is none."""
    if facts.paused:
        return WaitReason("PausedForDriver", "the driver is being replaced: no card is advertised and NVML is closed")
    if facts.container is not None:
        if facts.library:
            return DriverFound(DriverHome.CONTAINER, facts.container)
        text = (
            f"the driver container is ready, but {facts.driver_root} has no libnvidia-ml.so.1: its files do not reach"
            " this container; the host's /run must be a shared mount (mount --make-rshared /run)"
        )
        return WaitReason("WaitingForDriver", text)
    if facts.managed or facts.library:
        return WaitReason("WaitingForDriver", "the driver container is not ready yet")
    return DriverFound(DriverHome.HOST)


def is_still_usable(found: DriverFound, facts: DriverFacts) -> bool:
    """True if an open driver may still be used."""
    return not facts.paused and facts.container == found.container


def check_validation(found: DriverFound, facts: DriverFacts, mode: ValidationMode) -> WaitReason | None:
    """Reason that the cards of an open driver may not be advertised yet; ``None`` if they may."""
    if mode is ValidationMode.NEVER or (mode is ValidationMode.AUTO and found.home is DriverHome.HOST):
        return None
    if _about(found, facts.validated):
        return None
    if facts.validated is not None:
        return WaitReason("WaitingForValidation", "the last validation was of another driver; waiting for a new one")
    if _about(found, facts.toolkit):
        return WaitReason("WaitingForValidation", "no program has been run on the cards yet; tessera validate does it")
    return WaitReason("WaitingForToolkit", "the driver works; the container runtime does not know the cards yet")


def _about(found: DriverFound, mark: MarkerFile | None) -> bool:
    """True if a marker concerns this driver."""
    return mark is not None and (found.container is None or mark.is_about(found.container))
