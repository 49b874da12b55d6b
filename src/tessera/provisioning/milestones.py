"""Milestones of a node, from the request for it to its running workload, and those of a pod that requests GPUs.

An unobserved milestone is unknown, and stays unknown. Durations next to it are unknown too, never zero or negative. A
phase is named after the milestone that ends it, so the phases of a complete record sum to its total.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

#: Annotation of a node: its :class:`UpgradeRecord` as JSON.
PROVISIONING_ANNOTATION = "tessera.dev/provisioning"
#: Condition of a node: it offers what it should, or it should have by now and does not.
PROVISIONED_CONDITION = "GpuProvisioned"


class Milestone(Enum):
    """Moments in the order in which they are expected."""

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
    """What is known of one node's way.

    Attributes:
        node: the node's name.
        uid: the Node object's uid; a node that comes back under its name is another one.
        at: seconds since 1970 by milestone; what is not known is not there.
        group: the node group it belongs to, as the autoscaler names it; empty if unknown.
        pool: the driver pool as text.
        strategy: how it came to its driver.
        image: the driver's image.
        simulated: it happened in the lab.
        asked: since when somebody asks for its driver, as far as it was seen; None while nobody does, and where the
            host has it.
        unseen: its cards can be used, and nobody saw since when.
        lost: when it went away before its cards could be used, so that its times are lower bounds; None if it did not.
        replaced: when Tessera asked for its replacement; None if it did not.
        waits: since when its driver is kept from coming by what would keep another node's, too; None if it is not.
        waited: seconds for which it was before; they are a part of the way all the same.
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
        """Whether its cards could be used by now: all that an autoscaler waits for is over."""
        return self.unseen or Milestone.ALLOCATABLE in self.at

    @property
    def late(self) -> bool:
        """Whether the node stood there before anybody asked for its driver: its way has no request and no registration.

        What was before is no part of the way, so nothing that begins there has a duration.
        """
        return self.asked is not None and Milestone.REGISTERED not in self.at

    @property
    def short_image(self) -> str:
        """The image without registry and folders, with twelve digits of its digest: enough to tell two apart."""
        name, _, digest = self.image.rpartition("/")[2].partition("@")
        return f"{name}@{digest.removeprefix('sha256:')[:12]}" if digest else name or "unknown"


class WorkloadStep(Enum):
    """Moments of a pod that asks for cards, in the order in which they are expected."""

    CREATED = "created"
    SCALED_UP = "scaled-up"
    BOUND = "bound"
    PULLED = "pulled"
    STARTED = "started"


class WorkloadRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one pod's way to its first container's start.

    Attributes:
        namespace: the pod's.
        name: the pod's.
        uid: the pod's.
        node: where it runs.
        node_uid: uid of that Node object.
        at: seconds since 1970 by step; what is not known is not there. Nothing was scaled up for most pods.
        fresh: the node came up while the pod waited, so the node's own way is a part of this one.
        group: the node's group.
        strategy: how the node came to its driver.
        simulated: it happened in the lab.
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
