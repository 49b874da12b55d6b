"""Further ways in which a container gets a slice, beside the device plugin of the pod to which it was promised.

A satellite of the agent may add a way (:class:`SliceGiver`). The slices are promised, made and destroyed by the same
rules; it only hands them out.

A container may also borrow the slice of another pod: its own pod keeps its address and volumes, and its next start has
that slice. What a pod requests never changes in Kubernetes: its device, its part of a quota, and what the scheduler
counts. So a bigger slice comes with a pod of its own, the *lender*: it passes admission, quotas and the queue as any
pod, and holds the slice. It names the pod that gets it by the annotation ``tessera.dev/lends-to`` and by an owner
reference with its UID, so Kubernetes deletes it with that pod. Rules:

1.  A lender's own containers never get its slice: their device is empty. It has no init container with slices. A pod
    whose container has its slice lends nothing, and a pod whose slice is lent starts no container with it. So a slice
    has one user.
2.  Lender and borrower are of one namespace. Whoever may create pods there could run the borrower's image with the
    slice too, so the annotation gives nobody anything.
3.  The borrower states its GPU memory, has one slice, and starts one container with it. The newest lender counts that
    runs and whose one slice is ready.
4.  The agent's journal has the loan as the binding of the borrower's device ID to the lender's slice. It lasts until
    the borrower's next start, which decides anew. If the journal is lost, the CDI files tell it: that of a loan gives
    a device of one size the slice of another, or the slice of a pod that says that it lends it. If they are lost too,
    every container that may have its lender's slice counts as if it had it: it ends with the loan.
5.  When the lender ends, nobody pays for its slice any longer. So the borrower's container ends
    (:mod:`tessera.agent.slices.executor`), and its next start has its own slice. The lent slice is destroyed after
    that: its device files are those of the next slice there, and a container keeps the right to open them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, SlicePosition, parse_device_id
from tessera.agent.slices.events import DevicesBound
from tessera.agent.slices.slice_table import SliceJournalFile, SliceTable
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import LENDS_ANNOTATION, MIG_RESOURCE_PREFIX, PodUid
from tessera.api.pod_annotations import MEMORY
from tessera.api.slice_requests import lends_to
from tessera.kube.resources import Container, Pod


def is_lender(pod: Pod) -> bool:
    """True if a pod holds its slice for another; kubelet does not say which pod an init container is of."""
    return LENDS_ANNOTATION in pod.metadata.annotations and not any(map(_has_slices, pod.spec.init_containers))


def _has_slices(container: Container) -> bool:
    return any(resource.startswith(MIG_RESOURCE_PREFIX) for resource in container.resources.limits)


def running_with_slices(pod: Pod) -> list[str]:
    """The runtime's ids of the containers of a pod that run, as kubelet says, and have slices."""
    names = {each.name for each in (*pod.spec.init_containers, *pod.spec.containers) if _has_slices(each)}
    states = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return [each.container_id.rpartition("/")[2] for each in states if each.name in names and each.running is not None]


def find_lent(slices: SliceTable, pods: Iterable[Pod], borrower: Pod) -> tuple[Pod, SlicePosition] | None:
    """Returns the slice that the next container of a pod gets from another pod, with that pod; None for its own.

    Args:
        slices: the node's slices.
        pods: the pods of the node that have not ended.
        borrower: the pod; its container starts with one device.
    """
    uid = PodUid(borrower.metadata.uid)
    if MEMORY not in borrower.metadata.annotations or len(slices.slices_of(uid)) != 1:
        return None
    found = [
        (each, position)
        for each in pods
        if _runs(each)
        and is_lender(each)
        and lends_to(each, borrower)
        and (position := _loan(slices, PodUid(each.metadata.uid), uid)) is not None
    ]
    return max(found, key=lambda each: _created(each[0]), default=None)


def recall_loans(slices: SliceTable, written: Mapping[str, str], pods: Iterable[Pod]) -> Iterator[DevicesBound]:
    """Finds the loans that a lost journal has forgotten; until its next start a borrower's container has the slice.

    Args:
        slices: the node's slices, with the owners that are known without the journal.
        written: by device ID, the MIG UUIDs that the container which started last with it got.
        pods: the pods of the node that have not ended.
    """
    made = {device: each.position for each, _ in slices.observed_instances() for _, device in each.computes}
    live, known = list(pods), slices.bound_devices()
    given = {made.get(uuid) for uuids in written.values() for uuid in uuids.split(",")}
    told: set[PodUid] = set()
    for device, uuid in written.items():
        position, own = made.get(uuid), _position(device)
        owner = slices.owners.get(position) if position is not None else None
        if position is None or own is None or owner is None or device in known:
            continue
        named = _borrowers_by_pods(owner, live)
        if own.profile == position.profile and not named:
            continue  # the device of its owner
        # The borrower's own slice is one of the device's size that no container got.
        able = {each: pod for each, pod in slices.owners.items() if each.profile == own.profile and each not in given}
        found = [(pod in named, each == own, pod) for each, pod in able.items() if slices.lives(pod)]
        if found:
            told.add(max(found)[-1])
            yield DevicesBound(max(found)[-1], {device: position})
    others = [each for each in live if PodUid(each.metadata.uid) not in told]
    yield from _assume_loans(slices, live, others, {each for each in given if each is not None})


def _assume_loans(
    slices: SliceTable, live: list[Pod], borrowers: list[Pod], given: AbstractSet[SlicePosition]
) -> Iterator[DevicesBound]:
    """Finds the loans of which neither journal nor CDI files tell: of each container that may have its lender's slice.

    That is one of which nothing says that it got its own slice, and that started after its lender, the newest of
    several. Its device is not known; that of its own position stands for it until its next start.
    """
    lenders = sorted((each for each in live if _runs(each) and is_lender(each)), key=_created, reverse=True)
    for borrower in borrowers if lenders else ():
        uid = PodUid(borrower.metadata.uid)
        own = slices.slices_of(uid)
        if len(own) != 1 or own[0] in given or slices.bindings_of(uid):
            continue
        earlier = (each for each in lenders if lends_to(each, borrower) and _started(borrower) >= _started(each) > "")
        lent = (_loan(slices, PodUid(each.metadata.uid), uid) for each in earlier)
        position = next((each for each in lent if each is not None and each not in given), None)
        if position is not None:
            yield DevicesBound(uid, {own[0].device_id: position})


def _created(pod: Pod) -> tuple[str, str]:
    return pod.metadata.creation_timestamp or "", pod.metadata.uid


def _started(pod: Pod) -> str:
    """When the containers of a pod that run started last; empty if none runs."""
    states = (each.running for each in pod.status.container_statuses)
    return max((each.started_at or "" for each in states if each is not None), default="")


def _borrowers_by_pods(owner: PodUid, pods: list[Pod]) -> set[PodUid]:
    """The pods to which the owner of a slice says that it lends it; none if the owner is gone."""
    lenders = [each for each in pods if PodUid(each.metadata.uid) == owner]
    return {PodUid(each.metadata.uid) for each in pods for lender in lenders if lends_to(lender, each)}


def _position(device: str) -> SlicePosition | None:
    try:
        return parse_device_id(device)
    except ValueError:
        return None


def _runs(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


def _loan(slices: SliceTable, lender: PodUid, borrower: PodUid) -> SlicePosition | None:
    """The one slice of a lender, if it is ready and nobody but the borrower has it."""
    positions = slices.slices_of(lender)
    if len(positions) != 1 or slices.bindings_of(lender) or slices.ready_slice(lender, positions[0]) is None:
        return None
    return positions[0] if slices.borrower_of(positions[0]) in {None, borrower} else None


@dataclass(frozen=True, kw_only=True)
class NodeSlices:
    """The slices of a node, for whoever hands them out.

    Attributes:
        machine: the slices and their owners.
        journal: written to disk before a container gets its slices.
        reader: the node's GPUs as last read, and their driver.
        cards: the cards that are cut on demand.
        is_ready: true once all cards were read.
        is_withheld: true for a card, by UUID, of which nothing may be given out because of its health.
        faults_evict: true if a fault of a card ends the pods that have slices of it this way.
    """

    machine: SliceStateMachine
    journal: SliceJournalFile
    reader: InventoryReader
    cards: Callable[[], SliceableGpus]
    is_ready: Callable[[], bool]
    is_withheld: Callable[[str], bool]
    faults_evict: Callable[[], bool]


class SliceGiver:
    """A further way to give slices. This one gives none."""

    @property
    def is_wanted(self) -> bool:
        """True if slices are given this way; false if by the device plugins."""
        return False

    @property
    def has_given(self) -> bool:
        """True if containers may use slices that they got this way; kubelet lists no device of these."""
        return False

    @property
    def is_registered(self) -> bool:
        """True if kubelet calls this agent for what is given this way, or calls nobody."""
        return True

    def users(self) -> Iterator[tuple[PodUid, SlicePosition]]:
        """Yields the pods that use slices that were promised to another pod, each with such a slice."""
        yield from ()

    def adopt(self) -> None:
        """Tells the machine what was given before; called before the machine decides anything."""

    async def run(self) -> None:
        """Gives slices until cancelled."""

    def held(self) -> Collection[str]:
        """Names what kubelet still has to give back this way: it asks nobody else, so its pods could not end."""
        return ()

    async def take_back(self) -> None:
        """Takes back, until cancelled, and gives nothing more: Tessera leaves the node. Not beside :meth:`run`."""


#: Makes the way for one agent.
MakeSliceGiver = Callable[[AgentRuntime, NodeSlices], SliceGiver]
