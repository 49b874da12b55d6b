"""The Instaslice object: one per node, where controller and agent tell each other about slices.

Keys and states are those of the dynamic accelerator slicer, ``inference.redhat.com/v1alpha1`` (v0.0.2), so that what
users read and script stays true. The extra keys are ours: ``slices`` for pods of several slices, ``foreign`` for
positions that somebody else occupies, ``migPlacement`` beside a card whose model differs from the node's first one.

Who writes what:

===========================================  ==========
``spec.podAllocationRequests``               controller
``status.podAllocationResults``              controller makes and removes entries; the agent writes only
                                             ``allocationStatusDaemonset`` of existing ones
``status.nodeResources``                     agent
===========================================  ==========

Both maps are keyed by pod UID. All writes are JSON merge patches of one's own keys, so that neither side can undo the
other's. These structs are partial: a key that is not declared here is kept by the server and not read by us.
"""

from typing import Literal

import msgspec

from tessera.kube.resources import ObjectMeta, Resource, Wire
from tessera.mig.names import resource_spelling

#: ``allocationStatusController``: promised, then handed to the scheduler, then to be destroyed.
ControllerState = Literal["creating", "ungated", "deleting"]
#: ``allocationStatusDaemonset``: nothing yet, slices exist, slices are gone.
DaemonsetState = Literal["", "created", "deleted"]


class Position(Wire, frozen=True, kw_only=True):
    """Where a slice lies on its card, in memory slots."""

    size: int
    start: int


class Slice(Wire, frozen=True, kw_only=True):
    """One physical slice of a pod.

    Attributes:
        id: unique within the pod and constant for its life; names the slice, not the device that kubelet picks.
        profile: NVIDIA's name, e.g. ``3g.20gb`` or ``1g.5gb+me``.
        gpu_uuid: the card.
        start: first memory slot.
        size: memory slots.
    """

    id: str
    profile: str
    gpu_uuid: str = msgspec.field(name="gpuUUID")
    start: int
    size: int


class PodRef(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The pod that a slice was promised to."""

    kind: str = "Pod"
    namespace: str
    name: str
    uid: str


class RequestedResources(Wire, frozen=True, kw_only=True):
    """The pod's CPU and memory requests at the time of the promise."""

    requests: dict[str, str] = msgspec.field(default_factory=dict)


class AllocationRequest(Wire, frozen=True, kw_only=True):
    """The promise to one pod; ``profile`` is that of its first slice."""

    profile: str
    resources: RequestedResources = RequestedResources()
    pod_ref: PodRef
    slices: tuple[Slice, ...] = ()


class AllocationStatus(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """The two halves of an allocation's state."""

    allocation_status_controller: str = ""
    allocation_status_daemonset: str = ""


class AllocationResult(Wire, frozen=True, kw_only=True):
    """What became of a promise. The five required keys describe the first slice; ``slices`` lists all if several."""

    allocation_status: AllocationStatus
    config_map_resource_identifier: str
    gpu_uuid: str = msgspec.field(name="gpuUUID")
    mig_placement: Position
    nodename: str
    slices: tuple[Slice, ...] = ()


class ProfilePlacements(Wire, frozen=True, kw_only=True):
    """Where one profile may lie on a card, and NVML's ids for it."""

    placements: tuple[Position, ...]
    gi_profile_id: int
    ci_profile_id: int
    max_count: int | None = None


class NodeGpu(Wire, frozen=True, kw_only=True):
    """One card of the node that on-demand slicing may cut."""

    gpu_uuid: str
    gpu_name: str
    gpu_memory: str
    mig_placement: dict[str, ProfilePlacements] | None = None


class ForeignSlice(Wire, frozen=True, kw_only=True):
    """A position taken by an instance that no promise of ours explains; never destroyed, never promised."""

    gpu_uuid: str = msgspec.field(name="gpuUUID")
    start: int
    size: int
    profile: str = ""


class NodeResources(Wire, frozen=True, kw_only=True):
    """The node's cards as the agent reads them from NVML."""

    node_gpus: tuple[NodeGpu, ...] = ()
    mig_placement: dict[str, ProfilePlacements] = msgspec.field(default_factory=dict)
    boot_id: str = ""
    foreign: tuple[ForeignSlice, ...] = ()

    def placements_of(self, gpu: NodeGpu) -> dict[str, ProfilePlacements]:
        """The placements of a card: its own table, or the node's where it has none."""
        return self.mig_placement if gpu.mig_placement is None else gpu.mig_placement

    @property
    def profiles(self) -> frozenset[str]:
        """What the cards can be cut into, in the resource's spelling; the node's model counts if no card answers."""
        tables = [*(self.placements_of(gpu) for gpu in self.node_gpus), self.mig_placement]
        return frozenset(resource_spelling(profile) for table in tables for profile in table)


class InstasliceSpec(Wire, frozen=True, kw_only=True):
    """What the controller wants of the node's agent, by pod UID."""

    pod_allocation_requests: dict[str, AllocationRequest] = msgspec.field(default_factory=dict)


class InstasliceStatus(Wire, frozen=True, kw_only=True):
    """What the node has, and the state of each promise, by pod UID."""

    pod_allocation_results: dict[str, AllocationResult] = msgspec.field(default_factory=dict)
    node_resources: NodeResources = NodeResources()


class Instaslice(Wire, frozen=True, kw_only=True):
    """One node's object; its name is the node's."""

    metadata: ObjectMeta = ObjectMeta()
    spec: InstasliceSpec = InstasliceSpec()
    status: InstasliceStatus = InstasliceStatus()


INSTASLICES = Resource("inference.redhat.com", "v1alpha1", "instaslices", "Instaslice", True, Instaslice)
