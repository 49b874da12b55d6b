"""Events that the slice state machine takes in, and instructions that it returns. Values only.

Nothing here knows the API server, NVML or a clock, so a recorded sequence of events can be handled again later.
"""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.inventory.sliceable_gpus import SlicePosition
from tessera.api.names import PodUid


class PromisedSlice(msgspec.Struct, frozen=True):
    """One slice of a promise; ``size`` in memory slots."""

    position: SlicePosition
    size: int


class SlicePromise(msgspec.Struct, frozen=True, kw_only=True):
    """The slices that the controller promised to one pod."""

    pod: PodUid
    namespace: str
    name: str
    slices: tuple[PromisedSlice, ...]


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one pod in the status of the Instaslice object.

    Attributes:
        controller: the controller's state.
        daemonset: the agent's state.
        places: card, first memory slot and memory slots of each slice; not every result names profiles.
    """

    controller: str
    daemonset: str
    places: tuple[tuple[str, int, int], ...] = ()


class ObservedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance as the GPU shows it.

    ``computes`` has (id, MIG UUID) of its compute instances; it is empty while the instance is only half made.
    """

    gi_id: int
    position: SlicePosition
    size: int
    computes: tuple[tuple[int, str], ...] = ()

    def overlaps(self, start: int, size: int) -> bool:
        """True if it occupies one of the memory slots ``start .. start + size - 1``."""
        return self.position.start < start + size and start < self.position.start + self.size


class InstasliceChanged(msgspec.Struct, frozen=True):
    """The node's Instaslice object changed; the maps are empty if there is no object."""

    promises: Mapping[PodUid, SlicePromise]
    results: Mapping[PodUid, SliceResult]


class PodChanged(msgspec.Struct, frozen=True):
    """A pod is bound to this node.

    Attributes:
        pod: the pod.
        ended: all its containers have ended for good.
        claims: it asks for its slices by ResourceClaims, which other pods may share with it.
    """

    pod: PodUid
    ended: bool
    claims: bool = False


class PodDeleted(msgspec.Struct, frozen=True):
    """A pod that was bound to this node no longer exists."""

    pod: PodUid


class GpuRead(msgspec.Struct, frozen=True):
    """A GPU was read. ``starts`` has the legal first slots of every profile that it can be cut into."""

    gpu: str
    starts: Mapping[str, tuple[int, ...]]
    instances: tuple[ObservedInstance, ...]


class GpuUnreachable(msgspec.Struct, frozen=True):
    """A GPU does not answer; read it again at ``retry`` (monotonic seconds)."""

    gpu: str
    retry: float


class GpuReleased(msgspec.Struct, frozen=True):
    """A GPU is no longer cut on demand, and no slice of ours is on it."""

    gpu: str


class SliceIdle(msgspec.Struct, frozen=True):
    """No process uses the slice at a position any longer."""

    position: SlicePosition


class InitialSyncDone(msgspec.Struct, frozen=True):
    """Object, pods and GPUs have all been read once, so the machine may decide.

    Attributes:
        kept: the part of the journal that stayed on the node when Tessera left it.
    """

    kept: "SliceJournal | None" = None


class DevicesBound(msgspec.Struct, frozen=True):
    """A container of a pod starts: ``bindings`` gives the slice of each of its device IDs from now on."""

    pod: PodUid
    bindings: Mapping[str, SlicePosition]


class PromiseServes(msgspec.Struct, frozen=True):
    """A pod's promise gives slices to ResourceClaims, which other pods may share with it.

    Attributes:
        pod: the pod.
        prepared: true while one of the claims is prepared, or about to be; ``None`` if the promise serves none of them.
    """

    pod: PodUid
    prepared: bool | None


class ExecutorReady(msgspec.Struct, frozen=True):
    """The executor of a GPU asks at ``now`` (monotonic seconds) for its next instruction."""

    gpu: str
    now: float


class FollowUpsDue(msgspec.Struct, frozen=True):
    """The object's status is about to be written: the effects outside the GPUs come first."""


class CreateGpuInstance(msgspec.Struct, frozen=True):
    """Create the GPU instance of a promised slice."""

    position: SlicePosition
    pod: PodUid


class CreateComputeInstance(msgspec.Struct, frozen=True):
    """Create the compute instance that spans a GPU instance of ours."""

    position: SlicePosition
    gi_id: int


class DestroyComputeInstance(msgspec.Struct, frozen=True):
    """Destroy a compute instance of ours unless a process uses it."""

    position: SlicePosition
    gi_id: int
    ci_id: int
    mig_uuid: str


class DestroyGpuInstance(msgspec.Struct, frozen=True):
    """Destroy an empty GPU instance of ours."""

    position: SlicePosition
    gi_id: int


class WaitUntil(msgspec.Struct, frozen=True):
    """Do nothing on the GPU before ``until`` (monotonic seconds; ``None``: until the next event)."""

    until: float | None = None


class ReportProblem(msgspec.Struct, frozen=True):
    """Tell the owner of a pod about a problem with its slices, once."""

    pod: PodUid
    reason: str
    text: str


class RemoveCdiFiles(msgspec.Struct, frozen=True):
    """Remove the CDI files of device IDs that no pod holds any longer."""

    devices: tuple[str, ...]


class SaveJournal(msgspec.Struct, frozen=True):
    """Write the journal to disk."""

    journal: "SliceJournal"


GpuCall = CreateGpuInstance | CreateComputeInstance | DestroyComputeInstance | DestroyGpuInstance
SliceInstruction = GpuCall | WaitUntil | ReportProblem | RemoveCdiFiles | SaveJournal


class GpuCallFailed(msgspec.Struct, frozen=True):
    """A call failed at ``now`` (monotonic seconds); ``text`` is for the user."""

    call: GpuCall
    failure: CallFailure
    text: str
    now: float


SliceEvent = (
    InstasliceChanged
    | PodChanged
    | PodDeleted
    | GpuRead
    | GpuUnreachable
    | GpuReleased
    | SliceIdle
    | InitialSyncDone
    | GpuCallFailed
    | DevicesBound
    | PromiseServes
    | ExecutorReady
    | FollowUpsDue
)


class SliceState(Enum):
    """The phase of a slice, from promise to release."""

    PROMISED = "promised"
    GPU_INSTANCE = "gpu-instance"
    READY = "ready"
    CLAIMED = "claimed"
    RELEASING = "releasing"


class SliceJournal(msgspec.Struct, frozen=True, kw_only=True):
    """Values that outlive the process: owners of instances, released pods, and the slice of each device ID."""

    owners: dict[str, PodUid] = {}
    released: tuple[PodUid, ...] = ()
    bindings: dict[PodUid, dict[str, str]] = {}
