"""The slices of one node as the agent knows them: promises, owners, bindings, and the instances on the GPUs.

:class:`SliceTable` holds the values and answers questions about them. Only
:class:`~tessera.agent.slices.state_machine.SliceStateMachine` changes them; all others read.

The journal keeps on disk which instances this node's agent made, and the pods that own them. The agent writes it before
every call that changes a card, by atomic rename. It does not flush it to the disk: the page cache survives a killed
process, and a crashed machine loses the MIG instances themselves (NVIDIA MIG user guide: instances are not kept over a
reset or reboot). So a file that cannot be read counts as an empty one; the Instaslice object then gives the instances
that were ours (rule 1 of :mod:`tessera.agent.slices.state_machine`).
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.wake_ups import CallRetries, RetryDelays
from tessera.agent.inventory.sliceable_gpus import SliceLease, SlicePosition, parse_device_id
from tessera.agent.slices.events import (
    ObservedInstance,
    PromisedSlice,
    ReportProblem,
    SliceJournal,
    SlicePromise,
    SliceResult,
    SliceState,
)
from tessera.api.names import PodUid


class ObservedGpu:
    """One GPU as it was read last."""

    def __init__(self) -> None:
        #: Legal first slots of every profile that the GPU can be cut into.
        self.starts: Mapping[str, tuple[int, ...]] = {}
        #: Every GPU instance on it, ours and foreign ones.
        self.instances: dict[SlicePosition, ObservedInstance] = {}
        #: When a GPU that did not answer is read again, monotonic seconds; ``None`` if the last reading succeeded.
        self.retry: float | None = None
        #: True if a foreign instance is in the way of a promised slice. Every decision computes it anew.
        self.blocked = False


#: Delays before a failed call is tried again.
REFUSED_DELAYS = RetryDelays(first=0.2, most=30.0)
#: The same while a process still uses a slice: the pod has ended, so the process will end within moments.
BUSY_DELAYS = RetryDelays(first=0.1, most=5.0)


class SliceTable:
    """The slices of one node.

    Args:
        journal: the journal that the former process of this agent left.
    """

    def __init__(self, journal: SliceJournal) -> None:
        #: The pod that owns the instance at a position. An entry exists before the GPU instance is created (rule 2),
        #: and goes when the instance is gone and the position is promised to no pod.
        self.owners: dict[SlicePosition, PodUid] = {parse_device_id(k): v for k, v in journal.owners.items()}
        #: Pods that lost the right to their slices. Their instances are destroyed, whatever is promised later (rule 3).
        self.released: set[PodUid] = set(journal.released)
        #: The released pods that the node no longer has; after a restart also those that no watch has shown yet.
        #: A subset of :attr:`released`.
        self.departed: set[PodUid] = set()
        #: By pod: the slice of each device ID that kubelet gave to it. No slice is bound to two pods. A
        #: slice of another pod is lent (:mod:`tessera.agent.slices.further_ways`).
        self.bindings: dict[PodUid, dict[str, SlicePosition]] = {
            pod: {device: parse_device_id(slice_) for device, slice_ in bound.items()}
            for pod, bound in journal.bindings.items()
        }
        #: The present promises of the Instaslice object, oldest promise first.
        self.promises: dict[PodUid, SlicePromise] = {}
        #: The results in the object's status now.
        self.results: dict[PodUid, SliceResult] = {}
        #: The pods that are bound to this node, and whether all containers of each have ended for good.
        self.pods: dict[PodUid, bool] = {}
        #: The pods whose promise serves ResourceClaims; true while one of these is prepared. Other pods may share a
        #: claim, so the slices outlive the pod: they are released with the promise.
        self.served: dict[PodUid, bool] = {}
        #: Pods that ask by ResourceClaims, until both the pod and its promise are gone: their slices too are released
        #: with the promise, since the next pod that shares a claim may be the first one to prepare it.
        self.claiming: set[PodUid] = set()
        #: The GPUs that are cut on demand, by UUID. One that was never read has no entry.
        self.gpus: dict[str, ObservedGpu] = {}
        #: Failed calls by position, since the position last was in the state that its owner needs.
        self.retries: CallRetries[SlicePosition] = CallRetries(refused=REFUSED_DELAYS, busy=BUSY_DELAYS)
        #: By pod, the last problem that was reported; gone when the pod is released.
        self.last_problems: dict[PodUid, ReportProblem] = {}

    def is_released(self, pod: PodUid) -> bool:
        """True if a pod has lost the right to its slices."""
        return pod in self.released

    def lives(self, pod: PodUid) -> bool:
        """True if a pod runs on this node, or a claim that its promise serves is prepared."""
        return self.pods.get(pod) is False or self.served.get(pod, False)

    def has_ended(self, pod: PodUid) -> bool:
        """True if a promised pod needs its slices no longer: it ended, and no other pod can share them."""
        return self.pods.get(pod, False) and not self.is_shared(pod)

    def is_shared(self, pod: PodUid) -> bool:
        """True if a pod's slices outlive it, since its promise serves ResourceClaims."""
        return pod in self.served or pod in self.claiming

    def is_bound(self, pod: PodUid) -> bool:
        """True if a pod is bound to this node."""
        return pod in self.pods

    def positions_of(self, pod: PodUid) -> list[SlicePosition]:
        """The positions that a pod owns: its instances exist there or are about to be created."""
        return [position for position, owner in self.owners.items() if owner == pod]

    def owned_positions(self) -> Iterator[tuple[PodUid, SlicePosition]]:
        """Every owned position with the pod that owns it."""
        yield from ((pod, position) for position, pod in self.owners.items())

    def is_busy(self, gpu: str) -> bool:
        """True if a position on a GPU is promised or owned."""
        promised = (each.position for promise in self.promises.values() for each in promise.slices)
        return any(position.gpu == gpu for position in (*self.owners, *promised))

    def slices_of(self, pod: PodUid) -> list[SlicePosition]:
        """The slices that a pod may use: those of its promise, and those it claimed before a promise vanished."""
        if pod in self.released:
            return []
        promise = self.promises.get(pod)
        if promise is None:
            return self.positions_of(pod)
        promised = [each.position for each in promise.slices]
        return promised + [
            each for each in self.positions_of(pod) if self.is_claimed(pod, each) and each not in promised
        ]

    def ready_slice(self, pod: PodUid, position: SlicePosition) -> ObservedInstance | None:
        """A pod's slice at a position if its container can use it now; else ``None``. A lent slice counts too."""
        instance, owner = self.instance_at(position), self.owners.get(position)
        lent = owner is not None and owner not in self.released and self.borrower_of(position) == pod
        usable = instance is not None and instance.computes and (owner == pod or lent)
        return instance if usable else None

    def borrower_of(self, position: SlicePosition) -> PodUid | None:
        """The pod to which the owner of a slice has lent it; ``None`` if it is not lent. Claims borrow nothing."""
        owner, all_bound = self.owners.get(position), self.bindings.items()
        found = [
            pod
            for pod, bound in all_bound
            if any(each == position and not claim_of(key) for key, each in bound.items())
        ]
        return None if owner is None or not found or owner in found else found[0]

    def is_ready(self, pod: PodUid) -> bool:
        """True if all slices of a pod are ready."""
        return all(self.ready_slice(pod, position) for position in self.slices_of(pod))

    def observed_instances(self) -> Iterator[tuple[ObservedInstance, PodUid | None]]:
        """Every instance on the GPUs with the pod that owns it; ``None`` for a foreign instance."""
        for card in self.gpus.values():
            yield from ((each, self.owners.get(position)) for position, each in card.instances.items())

    def leases(self) -> Iterator[SliceLease]:
        """The instances that pods own or have borrowed, with the MIG device of each and kubelet's id of it."""
        device_ids = {(pod, each): device for pod, bound in self.bindings.items() for device, each in bound.items()}
        for instance, pod in self.observed_instances():
            if pod is not None:
                user = self.borrower_of(instance.position) or pod
                own = user == pod and (user, instance.position) not in device_ids
                exchanged = own and any(self.borrower_of(each) == pod for each in self.bindings_of(pod).values())
                for _, device in instance.computes:
                    yield SliceLease(user, device, device_ids.get((user, instance.position), ""), exchanged)

    def slice_state(self, position: SlicePosition, pod: PodUid) -> SliceState:
        """The phase of one slice of a pod."""
        if pod in self.released:
            return SliceState.RELEASING
        if self.ready_slice(pod, position) is not None:
            return SliceState.CLAIMED if self.is_claimed(pod, position) else SliceState.READY
        is_ours = self.instance_at(position) is not None and self.owners.get(position) == pod
        return SliceState.GPU_INSTANCE if is_ours else SliceState.PROMISED

    def is_unreachable(self, gpu: str) -> bool:
        """True if the last reading of a GPU failed."""
        card = self.gpus.get(gpu)
        return card is not None and card.retry is not None

    def bindings_of(self, pod: PodUid) -> Mapping[str, SlicePosition]:
        """The slice of each device ID that kubelet gave to a pod."""
        return self.bindings.get(pod, {})

    def bound_devices(self) -> set[str]:
        """All device IDs that pods hold."""
        return {device for devices in self.bindings.values() for device in devices}

    def last_problem_text(self, pod: PodUid) -> str:
        """Text of the last problem with a pod's slices; empty if there was none."""
        problem = self.last_problems.get(pod)
        return problem.text if problem else ""

    def journal(self) -> SliceJournal:
        """The values that must be on disk before the next call to a GPU."""
        return SliceJournal(
            owners={position.device_id: pod for position, pod in sorted(self.owners.items())},
            released=tuple(sorted(self.released)),
            bindings={
                pod: {device: slice_.device_id for device, slice_ in bound.items()}
                for pod, bound in sorted(self.bindings.items())
            },
        )

    def is_claimed(self, pod: PodUid, position: SlicePosition) -> bool:
        """True if a container of the pod got a slice of it, or one that has borrowed it."""
        lent = self.owners.get(position) == pod and self.borrower_of(position) is not None
        return lent or position in self.bindings.get(pod, {}).values()

    def is_promised(self, pod: PodUid, position: SlicePosition) -> bool:
        """True if a position is promised to a pod that has not lost the right to it."""
        promise = self.promises.get(pod)
        return (
            promise is not None
            and pod not in self.released
            and any(each.position == position for each in promise.slices)
        )

    def promised_slices(self, gpu: str) -> Iterator[tuple[PodUid, PromisedSlice]]:
        """The promised slices on a GPU with their pods, oldest promise first, without those of released pods."""
        for pod, promise in self.promises.items():
            if pod not in self.released:
                yield from ((pod, each) for each in promise.slices if each.position.gpu == gpu)

    def keeps(self, pod: PodUid, position: SlicePosition) -> bool:
        """True if a slice of ours stays: promised, or its promise vanished under a living pod (rule 4)."""
        if pod in self.released:
            return False
        if self.lives(pod) and (pod not in self.promises or self.is_claimed(pod, position)):
            return True
        return self.is_promised(pod, position)

    def instance_at(self, position: SlicePosition) -> ObservedInstance | None:
        """The instance at a position; ``None`` if there is none."""
        gpu = self.gpus.get(position.gpu)
        return None if gpu is None else gpu.instances.get(position)


def claim_of(device: str) -> str:
    """UID of the claim that a binding is for; empty if its device is one of the device plugin."""
    return device.partition("@")[2]


class SliceJournalFile(StateFile[SliceJournal]):
    """The journal's file. An agent that cannot save it must not touch the cards.

    Args:
        path: the file. One agent at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, SliceJournal)

    def load(self) -> SliceJournal:
        """The journal as last saved; empty if the file is missing, unreadable, or has an invalid position."""
        return super().load() or SliceJournal()

    def check(self, value: SliceJournal) -> None:
        """Checks that every position can be parsed.

        Raises:
            ValueError: a position cannot be parsed.
        """
        bound = (each for positions in value.bindings.values() for each in positions.values())
        for position in (*value.owners, *bound):
            parse_device_id(position)


class SlicesCollector(Collector):
    """The metric ``tessera_slices``. Counts the slices at every scrape, so no counter has to follow their changes."""

    def __init__(self, slices: SliceTable) -> None:
        self._slices = slices

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The slices by state; ``foreign`` for instances that Tessera did not make."""
        tally = Tally(dict.fromkeys(SliceState, 0))
        foreign = 0
        for instance, pod in self._slices.observed_instances():
            if pod is None:
                foreign += 1
            else:
                tally[self._slices.slice_state(instance.position, pod)] += 1
        for pod, promise in self._slices.promises.items():
            states = [self._slices.slice_state(each.position, pod) for each in promise.slices]
            tally[SliceState.PROMISED] += states.count(SliceState.PROMISED)
        family = GaugeMetricFamily("tessera_slices", "Slices of this node by state.", labels=["state"])
        for state, count in tally.items():
            family.add_metric([state.value], count)
        family.add_metric(["foreign"], foreign)
        yield family
