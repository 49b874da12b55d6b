"""What an agent knows of its node's slices: who was promised what, who owns which instance, who may use it.

The state of the book of slices and every question that may be asked of it. What changes it, and what is to be done
about it, is :mod:`tessera.agent.slices.state_machine`.
"""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.agent.inventory.positions import SlicePosition, parse_device_id
from tessera.agent.slices.events import (
    DestroyGpuInstance,
    GpuCall,
    ObservedInstance,
    SliceJournal,
    SliceNotice,
    SlicePromise,
    SliceResult,
    SliceState,
)
from tessera.api.names import PodUid


class CardState:
    """One card as last read. ``retry`` is when a lost card is asked again."""

    def __init__(self) -> None:
        self.starts: Mapping[str, tuple[int, ...]] = {}
        self.instances: dict[SlicePosition, ObservedInstance] = {}
        self.retry: float | None = None
        self.blocked = False


class Trouble(msgspec.Struct, frozen=True):
    """A position where calls failed: how often in a row, when to try again.

    ``undo`` after a compute instance failed, until its GPU instance is gone; ``stuck`` while that fails too.
    """

    tries: int
    until: float
    undo: bool = False
    stuck: bool = False

    def lets(self, call: GpuCall, now: float) -> bool:
        """Whether a call may be made now. Undoing a half-made slice waits only if that failed itself."""
        return self.until <= now or (self.undo and not self.stuck and isinstance(call, DestroyGpuInstance))


class Holdings:
    """The slices of one node as they stand.

    Args:
        journal: what a former process left.
    """

    def __init__(self, journal: SliceJournal) -> None:
        self._owners: dict[SlicePosition, PodUid] = {parse_device_id(k): v for k, v in journal.owners.items()}
        self._released: set[PodUid] = set(journal.released)
        #: Released pods that are not seen on this node any more; after a restart also those that are not seen yet.
        self._gone: set[PodUid] = set()
        self._bindings: dict[PodUid, dict[str, SlicePosition]] = {
            pod: {device: parse_device_id(slice_) for device, slice_ in bound.items()}
            for pod, bound in journal.bindings.items()
        }
        self._promises: dict[PodUid, SlicePromise] = {}
        self._records: dict[PodUid, SliceResult] = {}
        self._pods: dict[PodUid, bool] = {}
        self._cards: dict[str, CardState] = {}
        self._troubles: dict[SlicePosition, Trouble] = {}
        self._notices: list[SliceNotice] = []
        self._noticed: dict[PodUid, SliceNotice] = {}
        self._unbound: set[str] = set()
        self._started = False

    @property
    def promises(self) -> Mapping[PodUid, SlicePromise]:
        """What is promised now, oldest first."""
        return self._promises

    @property
    def records(self) -> Mapping[PodUid, SliceResult]:
        """What the object's status says now."""
        return self._records

    def released(self, pod: PodUid) -> bool:
        """Whether a pod has lost its claim on its slices."""
        return pod in self._released

    def bound(self, pod: PodUid) -> bool:
        """Whether a pod is bound to this node."""
        return pod in self._pods

    def positions_of(self, pod: PodUid) -> list[SlicePosition]:
        """The positions that are noted as this pod's, made or about to be."""
        return [position for position, owner in self._owners.items() if owner == pod]

    def owned(self) -> Iterator[tuple[PodUid, SlicePosition]]:
        """Every position that is noted as a pod's, made or about to be."""
        yield from ((pod, position) for position, pod in self._owners.items())

    def busy(self, gpu: str) -> bool:
        """Whether a slice of a card is promised to somebody, or made or about to be."""
        promised = (wanted.position for promise in self._promises.values() for wanted in promise.slices)
        return any(position.gpu == gpu for position in (*self._owners, *promised))

    def slices_of(self, pod: PodUid) -> list[SlicePosition]:
        """The slices that a pod may use: its promise, and what it holds since a promise vanished."""
        if pod in self._released:
            return []
        promise = self._promises.get(pod)
        if promise is None:
            return self.positions_of(pod)
        promised = [wanted.position for wanted in promise.slices]
        return promised + [each for each in self.positions_of(pod) if self.claimed(pod, each) and each not in promised]

    def device(self, pod: PodUid, position: SlicePosition) -> ObservedInstance | None:
        """A pod's slice if it is made and ready to be used."""
        made = self._instance(position)
        return made if made is not None and made.computes and self._owners.get(position) == pod else None

    def made(self, pod: PodUid) -> bool:
        """Whether all slices of a pod are ready."""
        return all(self.device(pod, position) for position in self.slices_of(pod))

    def instances(self) -> Iterator[tuple[ObservedInstance, PodUid | None]]:
        """Every instance of every card with the pod that owns it; ``None`` for foreign ones."""
        for card in self._cards.values():
            yield from ((made, self._owners.get(position)) for position, made in card.instances.items())

    def state(self, position: SlicePosition, pod: PodUid) -> SliceState:
        """Where one slice of a pod is in its life."""
        if pod in self._released:
            return SliceState.RELEASING
        if self.device(pod, position) is not None:
            return SliceState.CLAIMED if self.claimed(pod, position) else SliceState.MADE
        made = self._instance(position)
        return (
            SliceState.GPU_INSTANCE if made is not None and self._owners.get(position) == pod else SliceState.PROMISED
        )

    def lost(self, gpu: str) -> bool:
        """Whether a card does not answer."""
        card = self._cards.get(gpu)
        return card is not None and card.retry is not None

    def bindings(self, pod: PodUid) -> Mapping[str, SlicePosition]:
        """Which slice each device ID means that kubelet gave to a pod."""
        return self._bindings.get(pod, {})

    def bind(self, pod: PodUid, bindings: Mapping[str, SlicePosition]) -> None:
        """Notes what device IDs mean, replacing what was noted for the pod."""
        self._bindings[pod] = dict(bindings)

    def bound_devices(self) -> set[str]:
        """All device IDs that pods hold."""
        return {device for devices in self._bindings.values() for device in devices}

    def take_unbound(self) -> list[str]:
        """Device IDs that no pod holds any more, since the last call."""
        unbound, self._unbound = sorted(self._unbound - self.bound_devices()), set()
        return unbound

    def last_notice(self, pod: PodUid) -> str:
        """The last thing that went wrong with a pod's slices; empty if nothing did."""
        notice = self._noticed.get(pod)
        return notice.text if notice else ""

    def take_notices(self) -> list[SliceNotice]:
        """What users should read since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def journal(self) -> SliceJournal:
        """What must be on disk before the next call to a card."""
        return SliceJournal(
            owners={position.device_id: pod for position, pod in sorted(self._owners.items())},
            released=tuple(sorted(self._released)),
            bindings={
                pod: {device: slice_.device_id for device, slice_ in bound.items()}
                for pod, bound in sorted(self._bindings.items())
            },
        )

    def claimed(self, pod: PodUid, position: SlicePosition) -> bool:
        """Whether a container of the pod was given a slice."""
        return position in self._bindings.get(pod, {}).values()

    def promised(self, pod: PodUid, position: SlicePosition) -> bool:
        """Whether a position is promised to a pod that has not lost its claim."""
        promise = self._promises.get(pod)
        return (
            promise is not None
            and pod not in self._released
            and any(wanted.position == position for wanted in promise.slices)
        )

    def _instance(self, position: SlicePosition) -> ObservedInstance | None:
        card = self._cards.get(position.gpu)
        return None if card is None else card.instances.get(position)
