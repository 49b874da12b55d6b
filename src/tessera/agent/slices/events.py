"""The words of a slice's life: facts that go into the book of slices, instructions that come out. Values only."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.agent.inventory.positions import SlicePosition
from tessera.api.names import PodUid


class PromisedSlice(msgspec.Struct, frozen=True):
    """One slice of a promise."""

    position: SlicePosition
    size: int


class SlicePromise(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller promised to one pod."""

    pod: PodUid
    namespace: str
    name: str
    slices: tuple[PromisedSlice, ...]


class SliceResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result in the object's status.

    Attributes:
        controller: the controller's state.
        daemonset: the agent's state.
        places: card, first memory slot and memory slots of each slice; a result does not always name profiles.
    """

    controller: str
    daemonset: str
    places: tuple[tuple[str, int, int], ...] = ()


class ObservedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance as read from the card; ``computes`` are (id, MIG UUID), none while it is half made."""

    gi_id: int
    position: SlicePosition
    size: int
    computes: tuple[tuple[int, str], ...] = ()

    def overlaps(self, start: int, size: int) -> bool:
        """Whether it takes one of the memory slots ``start .. start + size - 1``."""
        return self.position.start < start + size and start < self.position.start + self.size


class InstasliceChanged(msgspec.Struct, frozen=True):
    """The node's Instaslice object changed (empty maps: there is none)."""

    promises: Mapping[PodUid, SlicePromise]
    results: Mapping[PodUid, SliceResult]


class PodChanged(msgspec.Struct, frozen=True):
    """A pod is bound to this node; ``over`` when all its containers have ended for good."""

    pod: PodUid
    ended: bool


class PodDeleted(msgspec.Struct, frozen=True):
    """A pod that was bound to this node no longer exists."""

    pod: PodUid


class GpuRead(msgspec.Struct, frozen=True):
    """A card was read. ``starts`` has the legal first slots of every profile that it can be cut into."""

    gpu: str
    starts: Mapping[str, tuple[int, ...]]
    instances: tuple[ObservedInstance, ...]


class GpuUnreachable(msgspec.Struct, frozen=True):
    """A card does not answer; try it again at ``retry``."""

    gpu: str
    retry: float


class GpuReleased(msgspec.Struct, frozen=True):
    """A card is no longer ours to cut, and no slice of ours is on it."""

    gpu: str


class SliceIdle(msgspec.Struct, frozen=True):
    """No process uses the slice at a position any more."""

    position: SlicePosition


class InitialSyncDone(msgspec.Struct, frozen=True):
    """Object, pods and cards have all been seen once: decisions may begin."""


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
    """Nothing to do on the card before ``until`` (monotonic seconds; ``None``: before the next fact)."""

    until: float | None = None


GpuCall = CreateGpuInstance | CreateComputeInstance | DestroyComputeInstance | DestroyGpuInstance
SliceInstruction = GpuCall | WaitUntil


class CallFailureKind(Enum):
    """Why a call failed, as far as it matters for what comes next."""

    BUSY = "busy"
    REFUSED = "refused"


class CallFailed(msgspec.Struct, frozen=True):
    """A call failed at ``now`` (monotonic seconds); ``text`` is for the user."""

    call: GpuCall
    failure: CallFailureKind
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
    | CallFailed
)


class SliceState(Enum):
    """Where a slice is in its life."""

    PROMISED = "promised"
    GPU_INSTANCE = "gpu-instance"
    MADE = "made"
    CLAIMED = "claimed"
    RELEASING = "releasing"


class SliceNotice(msgspec.Struct, frozen=True):
    """Something that the pod's owner should read, once."""

    pod: PodUid
    reason: str
    text: str


class SliceJournal(msgspec.Struct, frozen=True, kw_only=True):
    """What must outlive the process: who owns which instance, who is released, which device ID means which slice."""

    owners: dict[str, PodUid] = {}
    released: tuple[PodUid, ...] = ()
    bindings: dict[PodUid, dict[str, str]] = {}
