"""Milestones of a node, from the request for it to its running workload, and those of a pod that requests GPUs.

An unobserved milestone is unknown, and stays unknown. Durations next to it are unknown too, never zero or negative. A
phase is named after the milestone that ends it, so the phases of a complete record sum to its total.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

#: Annotation of a node: its :class:`ProvisioningRecord` as JSON.
PROVISIONING_ANNOTATION = "tessera.dev/provisioning"


class Milestone(Enum):
    """Moments of a node in the expected sequence."""

    REQUESTED = "requested"
    VM = "vm"
    REGISTERED = "registered"
    READY = "ready"
    LABELLED = "labelled"
    PULLED = "pulled"
    DRIVER = "driver"
    TOOLKIT = "toolkit"
    VALIDATED = "validated"
    ALLOCATABLE = "allocatable"
    WORKLOAD = "workload"


class ProvisioningRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The known milestones of one node.

    Attributes:
        node: the node's name.
        uid: UID of the Node object; a new object of the same name has another one.
        at: seconds since 1970 by milestone; unknown milestones are missing.
        group: its node group, as the autoscaler names it; empty if unknown.
        pool: the driver pool as text.
        strategy: the way in which it got its driver.
        image: the driver's image.
        simulated: True for a node of the lab.
        asked: time since which somebody requests its driver, if observed; None without a request, and if the host has
            the driver.
        unseen: its GPUs are usable, but nobody observed since when.
        lost: time at which it was removed before its GPUs were usable, so that its times are lower bounds; else None.
        replaced: time at which Tessera requested its replacement; else None.
        waits: time since which its driver is held back by a cause that would hold back another node's too; else None.
        waited: seconds for which its driver was held back before; they still count in the durations.
    """

    node: str
    uid: str = ""
    at: Mapping[Milestone, float] = {}
    group: str = ""
    pool: str = ""
    strategy: str = ""
    image: str = ""
    simulated: bool = False
    asked: float | None = None
    unseen: bool = False
    lost: float | None = None
    replaced: float | None = None
    waits: float | None = None
    waited: float = 0.0

    @property
    def usable(self) -> bool:
        """True if its GPUs are usable: everything that an autoscaler waits for is over."""
        return self.unseen or Milestone.ALLOCATABLE in self.at

    @property
    def late(self) -> bool:
        """True if the node existed before anybody requested its driver; then it has no request and no registration.

        The time before the driver's request does not count, so no duration begins there.
        """
        return self.asked is not None and Milestone.REGISTERED not in self.at

    @property
    def short_image(self) -> str:
        """The image without registry and folders, with twelve digits of its digest, which identify it."""
        name, _, digest = self.image.rpartition("/")[2].partition("@")
        return f"{name}@{digest.removeprefix('sha256:')[:12]}" if digest else name or "unknown"


class WorkloadStep(Enum):
    """Moments of a pod that requests GPUs, in the expected sequence."""

    CREATED = "created"
    SCALED_UP = "scaled-up"
    BOUND = "bound"
    PULLED = "pulled"
    STARTED = "started"


class WorkloadRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The known steps of one pod up to its first container's start.

    Attributes:
        namespace: the pod's namespace.
        name: the pod's name.
        uid: the pod's UID.
        node: the node that it runs on.
        node_uid: UID of that Node object.
        at: seconds since 1970 by step; unknown steps are missing. Most pods need no scale-up.
        fresh: the node was made while the pod waited, so the node's phases are part of the pod's wait.
        group: the node's group.
        strategy: the way in which the node got its driver.
        simulated: True for a pod of the lab.
    """

    namespace: str
    name: str
    uid: str
    node: str
    node_uid: str = ""
    at: Mapping[WorkloadStep, float] = {}
    fresh: bool = False
    group: str = ""
    strategy: str = ""
    simulated: bool = False
