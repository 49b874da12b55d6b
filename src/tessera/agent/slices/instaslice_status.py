"""Reads the node's Instaslice object as events, and keeps its status up to date.

One writer per node with one write in flight. Changes during a write go into the next write, so a burst of pods costs
few writes; after a slow write the writer rests (:mod:`tessera.kube.retries`). Every write is a merge patch of the
status that names only the differences:

* the result of a promise, once all slices of the pod exist; removed once the last one is destroyed and the controller
  has removed the promise. It is written when the pod is bound to the node, so that one write says both; a pod that is
  not bound a second later gets its result all the same. ``deleted`` is written only if the controller asks for it
  by ``deleting``;
* ``nodeResources``: cards, tables, boot id, and the positions that others occupy;
* ``summary``: the columns of kubectl. They follow from the rest, so they cost no write of their own, but one by a new
  agent. A definition of an earlier version drops the key: then it is not written again.

A node whose cards are cut on demand has two API objects: its Instaslice object and its memory quota. The agent creates
both when the slice manager gets its first card, and removes them when it has released its last one.
Released cards stay in MIG mode: their next owner turns it off.
"""

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, SlicePosition, node_gpus
from tessera.agent.slices.events import InstasliceChanged, PromisedSlice, SlicePromise, SliceResult
from tessera.agent.slices.executor import SliceFollowUps
from tessera.agent.slices.slice_table import SliceTable
from tessera.api.instaslice import (
    INSTASLICE_FORMAT,
    INSTASLICES,
    AllocationRequest,
    AllocationResult,
    AllocationStatus,
    ForeignSlice,
    Instaslice,
    NodeGpu,
    NodeResources,
    make_result,
    recorded_slices,
    summarize,
)
from tessera.api.names import QUOTA_RESOURCE, PodUid
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import NODES, Node
from tessera.kube.resources.meta import FORMAT_ANNOTATION, version_number
from tessera.kube.retries import Backoff, pause_after_write
from tessera.limits import NODE_CARDS
from tessera.mig.names import resource_spelling

_log = logging.getLogger(__name__)


def quota_patch(node: Node, gib: int | None) -> dict[str, Any]:
    """Returns the status patch that makes a node offer this much memory quota; empty if the node does so.

    The patch sets allocatable beside capacity: kubelet derives it only at its next status update, up to 10 s later.

    Args:
        node: the Node as last seen.
        gib: GiB; ``None`` for no quota at all.
    """
    fields: dict[str, Mapping[str, str]] = {"capacity": node.status.capacity, "allocatable": node.status.allocatable}
    wrong = {name for name, listed in fields.items() if not _equal(listed.get(QUOTA_RESOURCE), gib)}
    value = None if gib is None else f"{gib}Gi"
    return {"status": {name: {QUOTA_RESOURCE: value} for name in sorted(wrong)}} if wrong else {}


def _equal(text: str | None, gib: int | None) -> bool:
    if text is None or gib is None:
        return text is None and gib is None
    return parse_quantity(text) == gib * 2**30


class NodeCapacity:
    """Creates, patches and removes the API objects of this node.

    Args:
        client: the API server.
        node_name: name of the node and of its Instaslice object.
        namespace: namespace of the Instaslice object.
    """

    def __init__(self, client: Client, *, node_name: str, namespace: str) -> None:
        self._client = client
        self._name = node_name
        self._namespace = namespace
        #: The Node's version and the GiB of the last write of the quota; ``None`` before the first.
        self._quota: tuple[str, int | None] | None = None
        #: True from the creation of the object until the watch shows its deletion.
        self._created = False

    async def ensure_object(self, item: Instaslice | None) -> None:
        """Creates the Instaslice object, unless it exists or was created and the watch has not shown it yet."""
        if item is None and not self._created:
            with contextlib.suppress(AlreadyExists):
                metadata = {"name": self._name, "annotations": {FORMAT_ANNOTATION: str(INSTASLICE_FORMAT)}}
                await self._client.create(INSTASLICES, {"metadata": metadata, "spec": {}}, self._namespace)
                _log.info("node %s joined on-demand slicing", self._name)
            self._created = True

    def forget_object(self) -> None:
        """Takes in that the watch showed the deletion of the object."""
        self._created = False

    async def remove_object(self, item: Instaslice | None) -> None:
        """Removes the Instaslice object unless the controller promised something after ``item`` was read."""
        if item is not None and not item.spec.pod_allocation_requests:
            try:
                await self._client.delete(
                    INSTASLICES, self._name, self._namespace, resource_version=item.metadata.resource_version
                )
                _log.info("node %s left on-demand slicing", self._name)
            except (NotFound, Conflict):
                return

    async def ensure_quota(self, node: Node, gib: int | None) -> None:
        """Sets the memory quota once per change; the watch shows later if another writer undid it."""
        patch = quota_patch(node, gib)
        written = (node.metadata.resource_version, gib)
        if patch and self._quota != written:
            await self._client.merge_patch(NODES, self._name, patch, subresource="status")
            self._quota = written


#: Seconds from the creation of a slice until its result is written, though its pod is not bound.
_UNBOUND = 1.0


def instaslice_event(item: Instaslice | None) -> InstasliceChanged:
    """Promises and results of an object; empty maps if there is no object."""
    if item is None:
        return InstasliceChanged({}, {})
    requests, results = item.spec.pod_allocation_requests, item.status.pod_allocation_results
    return InstasliceChanged(
        {PodUid(uid): _promise(PodUid(uid), request, results.get(uid)) for uid, request in requests.items()},
        {
            PodUid(uid): SliceResult(
                controller=result.allocation_status.allocation_status_controller,
                daemonset=result.allocation_status.allocation_status_daemonset,
                places=tuple((each.gpu_uuid, each.start, each.size) for each in recorded_slices(None, result)),
            )
            for uid, result in results.items()
        },
    )


def _promise(pod: PodUid, request: AllocationRequest, result: AllocationResult | None) -> SlicePromise:
    """The promise to a pod; the positions of a promise of InstaSlice are in its result only."""
    return SlicePromise(
        pod=pod,
        namespace=request.pod_ref.namespace,
        name=request.pod_ref.name,
        slices=tuple(
            PromisedSlice(SlicePosition(each.gpu_uuid, resource_spelling(each.profile), each.start), each.size)
            for each in recorded_slices(request, result)
        ),
    )


class NodeDescription:
    """Describes the node for the object. The part that depends only on the inventory is built once.

    Args:
        inventory: the node's cards.
    """

    def __init__(self, inventory: SliceableGpus) -> None:
        self._inventory = inventory
        gpus, shared = node_gpus(inventory.gpus)
        self._fixed = NodeResources(node_gpus=gpus, mig_placement=shared)

    @property
    def cards(self) -> int:
        """The number of cards that are sliced on demand."""
        return len(self._fixed.node_gpus)

    def resources(self, slices: SliceTable, boot_id: str, withheld: Collection[str] = ()) -> NodeResources:
        """Returns the node's part of the object's status at this moment.

        Args:
            slices: the slices on the cards.
            boot_id: boot id of the node.
            withheld: cards to leave out, like lost ones, so that the controller promises nothing more there.
        """
        gone = {gpu.gpu_uuid for gpu in self._fixed.node_gpus if slices.is_unreachable(gpu.gpu_uuid)}.union(withheld)
        gpus = self._with_indexes([gpu for gpu in self._fixed.node_gpus if gpu.gpu_uuid not in gone])
        return msgspec.structs.replace(
            self._fixed, node_gpus=gpus, boot_id=boot_id, foreign=foreign_slices(self._inventory, slices)
        )

    def _with_indexes(self, gpus: Sequence[NodeGpu]) -> tuple[NodeGpu, ...]:
        """The cards with their indexes, where another card that is left out makes the place in the list wrong."""
        indexes = {card.uuid: card.info.index for card in self._inventory.gpus}
        return tuple(
            gpu
            if indexes[gpu.gpu_uuid] == place or indexes[gpu.gpu_uuid] >= int(NODE_CARDS)
            else msgspec.structs.replace(gpu, index=indexes[gpu.gpu_uuid])
            for place, gpu in enumerate(gpus)
        )


def foreign_slices(inventory: SliceableGpus, slices: SliceTable) -> tuple[ForeignSlice, ...]:
    """Positions that no record explains: instances made by others, or kept for a living pod whose record vanished.

    A position kept for a pod names that pod, so that the controller can promise it anew.
    """
    found = []
    for instance, pod in slices.observed_instances():
        if pod is None or not _has_record(slices, pod, instance.position):
            gpu, profile, start = instance.position.gpu, instance.position.profile, instance.position.start
            card = inventory.gpu(gpu)
            row = card.geometry.find(profile) if card is not None else None
            name = profile if row is None else row.name
            owner = "" if pod is None or slices.is_released(pod) else pod
            found.append(ForeignSlice(gpu_uuid=gpu, start=start, size=instance.size, profile=name, pod_uid=owner))
    return tuple(sorted(found, key=lambda each: (each.gpu_uuid, each.start)))


def _has_record(slices: SliceTable, pod: PodUid, position: SlicePosition) -> bool:
    """True if the object has an entry of the pod for a position; a result alone counts for all slices of the pod."""
    if pod not in slices.promises:
        return pod in slices.results
    return slices.is_released(pod) or slices.is_promised(pod, position)


def status_patch(
    item: Instaslice, slices: SliceTable, resources: NodeResources, *, unbound: bool = True, cards: int | None = None
) -> dict[str, Any]:
    """Returns the merge patch that brings an object's status up to date; empty if it is up to date.

    Args:
        item: the object.
        slices: the slices on the cards.
        resources: the node's part of the status.
        unbound: if true, slices of pods that are not yet bound to the node count too.
        cards: the number of cards that are sliced on demand; None for no summary.
    """
    status: dict[str, Any] = {}
    results = _new_results(item, slices, unbound=unbound) | _changed_results(item, slices)
    if results:
        status["podAllocationResults"] = results
    if item.status.node_resources != resources:
        status["nodeResources"] = _difference(item.status.node_resources, resources)
    if cards is not None:
        summary = summarize(_cards_of_results(item, results), resources, cards)
        if summary != item.status.summary:
            status["summary"] = msgspec.to_builtins(summary)
    return {"status": status} if status else {}


def _cards_of_results(item: Instaslice, changes: dict[str, Any]) -> dict[str, list[str]]:
    """By pod with slices, for each of its memory slots the card; as after these changes of the results."""
    kept = {uid: each for uid, each in item.status.pod_allocation_results.items() if changes.get(uid, {}) is not None}
    new = {uid: msgspec.convert(each, AllocationResult) for uid, each in changes.items() if each and "nodename" in each}
    found = {}
    for uid, result in (kept | new).items():
        state = (changes.get(uid) or {}).get("allocationStatus", {}).get("allocationStatusDaemonset")
        if (state or result.allocation_status.allocation_status_daemonset) != "deleted":
            found[uid] = [each.gpu_uuid for each in recorded_slices(None, result) for _ in range(each.size)]
    return found


def _new_results(item: Instaslice, slices: SliceTable, *, unbound: bool) -> dict[str, Any]:
    """New entries for promises whose slices all exist."""
    found: dict[str, Any] = {}
    for pod, request in _find_unrecorded(item, slices):
        if unbound or slices.is_bound(pod):
            state = "ungated" if slices.is_bound(pod) else "creating"
            status = AllocationStatus(allocation_status_controller=state, allocation_status_daemonset="created")
            found[pod] = msgspec.to_builtins(make_result(pod, item.metadata.name, request.slices, status))
    return found


def _find_unrecorded(item: Instaslice, slices: SliceTable) -> Iterator[tuple[PodUid, AllocationRequest]]:
    """The promises without a result whose slices all exist."""
    for uid, request in item.spec.pod_allocation_requests.items():
        pod = PodUid(uid)
        recorded = uid in item.status.pod_allocation_results
        if (
            request.slices
            and not recorded
            and pod in slices.promises
            and not slices.is_released(pod)
            and slices.is_ready(pod)
        ):
            yield pod, request


def _changed_results(item: Instaslice, slices: SliceTable) -> dict[str, Any]:
    """Changes to existing entries of the object: new states, and ``None`` for an entry to remove."""
    found: dict[str, Any] = {}
    for uid, result in item.status.pod_allocation_results.items():
        pod, now = PodUid(uid), result.allocation_status
        if uid not in item.spec.pod_allocation_requests and not slices.positions_of(pod):
            found[uid] = None
            continue
        after = msgspec.structs.replace(
            now,
            allocation_status_controller=_controller_state(slices, pod, now.allocation_status_controller),
            allocation_status_daemonset=_daemonset_state(slices, pod, now),
        )
        if after != now:
            before = msgspec.to_builtins(now)
            changes = {key: value for key, value in msgspec.to_builtins(after).items() if value != before[key]}
            found[uid] = {"allocationStatus": changes}
    return found


def _controller_state(slices: SliceTable, pod: PodUid, now: str) -> str:
    """``ungated`` for a pod that is bound, since its gate is open by then; otherwise the state as it is."""
    return "ungated" if now in {"", "creating"} and slices.is_bound(pod) else now


def _daemonset_state(slices: SliceTable, pod: PodUid, now: AllocationStatus) -> str:
    if slices.is_released(pod):
        gone = now.allocation_status_controller == "deleting" and not slices.positions_of(pod)
        return "deleted" if gone else now.allocation_status_daemonset
    is_created = now.allocation_status_daemonset == "" and pod in slices.promises and slices.is_ready(pod)
    return "created" if is_created else now.allocation_status_daemonset


def _difference(old: NodeResources, new: NodeResources) -> dict[str, Any]:
    difference: dict[str, Any] = {}
    if old.node_gpus != new.node_gpus:
        difference["nodeGpus"] = msgspec.to_builtins(new.node_gpus)
    if old.mig_placement != new.mig_placement:
        gone: dict[str, Any] = dict.fromkeys(old.mig_placement.keys() - new.mig_placement.keys())
        difference["migPlacement"] = gone | msgspec.to_builtins(new.mig_placement)
    if old.boot_id != new.boot_id:
        difference["bootId"] = new.boot_id
    if old.foreign != new.foreign:
        difference["foreign"] = msgspec.to_builtins(new.foreign)
    return difference


class InstasliceStatusWriter:
    """Keeps the object's status equal to the agent's state.

    Args:
        runtime: options, API server and clock of this agent; the node's Instaslice object.
        node_resources: the node's part of the object's status; ``None`` while unknown.
        cards: the number of cards that are sliced on demand.
        follow_ups: carries out the effects that must come before ``deleted`` is written.
        slices: the slices of the node.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        node_resources: Callable[[], NodeResources | None],
        cards: Callable[[], int],
        follow_ups: SliceFollowUps,
        slices: SliceTable,
    ) -> None:
        self._client = runtime.client
        self._clock = runtime.clock
        self._name = runtime.options.node_name
        self._namespace = runtime.options.namespace
        self._changes = runtime.changes.about(Fact.SLICES | Fact.OWNERS | Fact.HEALTH | Fact.NODE_STATUS)
        self._instaslice = runtime.mirror.instaslice
        self._node_resources = node_resources
        self._cards = cards
        #: False once the server dropped the summary: its definition of the object is of an earlier version.
        self._keeps_summary = True
        self._follow_ups = follow_ups
        self._slices = slices
        self._backoff = Backoff(runtime.rng)
        #: The API server's answer to the last write; ``None`` before the first, and after versions went back.
        self._written: Instaslice | None = None
        #: Time since which a result waits for its pod to be bound, monotonic seconds; ``None`` if none waits.
        self._unbound_since: float | None = None

    def forget_written(self) -> None:
        """Forgets our last write, since versions of the object went back: from now on the watch counts."""
        self._written = None

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            count = self._changes.count
            try:
                self._follow_ups.carry_out()
                patch, waits = self._patch()
                if patch:
                    waits = pause_after_write(await self._write(patch))
                self._backoff.reset()
            except (ApiError, OSError) as error:  # OSError: no connection, no answer, or a disk that takes no journal
                pause = self._backoff.next()
                _log.warning("status of instaslice %s not written, again in %.1f s: %s", self._name, pause, error)
                await self._changes.wait_differs(lambda: self._patch()[0], self._patch()[0], pause)
            else:
                if not patch:
                    await self._changes.wait(count, waits)
                elif waits:
                    await self._clock.sleep(waits)

    async def _write(self, patch: dict[str, Any]) -> float:
        """Writes a patch; returns the seconds that the write took."""
        began = self._clock.monotonic()
        self._written = await self._client.merge_patch(
            INSTASLICES, self._name, patch, self._namespace, subresource="status"
        )
        self._keeps_summary &= "summary" not in patch["status"] or self._written.status.summary is not None
        return self._clock.monotonic() - began

    def _patch(self) -> tuple[dict[str, Any], float | None]:
        """The patch to write now, and the seconds until a write is due that no change announces."""
        item, resources = self._latest(), self._node_resources()
        if item is None or resources is None:
            return {}, None
        left = self._wait_for_bindings(item)
        cards = self._cards() if self._keeps_summary else None
        return status_patch(item, self._slices, resources, unbound=left is None, cards=cards), left

    def _wait_for_bindings(self, item: Instaslice) -> float | None:
        """Seconds for which results of unbound pods can wait; ``None`` if no result has to wait."""
        if all(self._slices.is_bound(pod) for pod, _ in _find_unrecorded(item, self._slices)):
            self._unbound_since = None
            return None
        now = self._clock.monotonic()
        if self._unbound_since is None:
            self._unbound_since = now
        left = self._unbound_since + _UNBOUND - now
        if left > 0:
            return left
        self._unbound_since = None
        return None

    def _latest(self) -> Instaslice | None:
        """The newer version of the object: from the watch, or from the answer to our last write."""
        watched, written = self._instaslice(), self._written
        if watched is None or written is None or watched.metadata.uid != written.metadata.uid:
            return watched
        newer = version_number(written.metadata.resource_version) > version_number(watched.metadata.resource_version)
        return written if newer else watched
