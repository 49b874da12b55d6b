"""A cluster of plain values around the slicer: the API server is two dicts, all agents are one function."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from tests.support.slicer_invariants import validate

from tessera.agent.inventory.sliceable_gpus import claimed_geometry, placements
from tessera.api.instaslice import AllocationStatus, Instaslice, make_result
from tessera.api.names import GATE, MIG_CONFIG_LABEL, NodeName, PodUid, resource_of
from tessera.api.queues import read_queue
from tessera.controller.base import NO_MOVES, MoveMode, MoveSettings
from tessera.controller.informers import unknown_owners
from tessera.controller.objects.node_info import NodeDevices, NodeInfo
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo, Workload
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import will_never_run
from tessera.controller.slicing.state.events import (
    ImagesPulled,
    InstasliceDeleted,
    InstasliceObserved,
    NamespaceObserved,
    NodeObserved,
    OwnerLookedUp,
    PodDeleted,
    PodObserved,
    QueueObserved,
    RetryDue,
    SlicerEvent,
    TimePassed,
    WriteDone,
    WriteOutcomeUnknown,
    WriteRefused,
)
from tessera.controller.slicing.state.instructions import (
    DeleteObject,
    Evict,
    Instruction,
    PatchRequests,
    PatchResults,
    RecordEvent,
    ReportNodeCondition,
    ReportPodCondition,
    ReportQueue,
    Ungate,
    Write,
)
from tessera.controller.slicing.state.waiting_pod import competes_for_room
from tessera.handover.inheritance import Inheritance
from tessera.handover.satellite import HandOverMode, HandOverSatellite
from tessera.mig.models import model_by_short_name


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge(out.get(key), value)
    return out


handle = Slicer.handle


def handle_and_validate(slicer: Slicer, event: SlicerEvent) -> Sequence[Instruction]:
    """Handles an event as a slicer does, then checks its state; not a large one, to which each check would add much."""
    found = handle(slicer, event)
    if len(slicer.state.cluster.pods) <= 64:
        validate(slicer.state)
    return found


class CheckedSlicer(Slicer):
    """A slicer whose state is checked after every event."""

    handle = handle_and_validate


class SlicerCluster:
    """A slicer with the objects of its API server and with the agents that answer it."""

    def __init__(
        self,
        reserve_after: float | None = None,
        *,
        preempts: bool = False,
        moves: MoveSettings = NO_MOVES,
        updates: HandOverMode = HandOverMode.ON,
        preference_price: float = 0.0,
    ) -> None:
        self.preference_price = preference_price
        self.reserve_after, self.preempts, self.moves, self.updates = reserve_after, preempts, moves, updates
        self.date = 0.0
        self.pods: dict[str, PodInfo] = {}
        self.nodes: dict[str, NodeInfo] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.queues: dict[str, dict[str, Any]] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        #: Pods whose eviction a PodDisruptionBudget refuses.
        self.protected: set[PodUid] = set()
        #: Pods whose next eviction gets no answer.
        self.unanswered: set[PodUid] = set()
        #: UIDs of owners that do not exist.
        self.made_up: set[str] = set()
        #: What owners belong to, by UID; the others want no pods.
        self.workloads: dict[str, Workload] = {}
        #: False if no image comes to a node.
        self.pulls = True
        #: What kubelet says of each image that it does not get.
        self.no_image = ""
        self.version = 0
        #: Tests read its instructions as they come, whatever their kind.
        self.slicer: Any = self.make_slicer()
        self.told: list[RecordEvent] = []
        self.writes: list[Any] = []

    def make_slicer(self) -> Slicer:
        """A new slicer with the cluster's options."""
        satellite = HandOverSatellite(mode=self.updates, moves=self.moves.mode is MoveMode.EVICT)
        makers = [satellite.make]
        return CheckedSlicer(
            self.reserve_after,
            preempts=self.preempts,
            moves=self.moves,
            preference_price=self.preference_price,
            proposers=makers,
        )

    @property
    def inheritance(self) -> Inheritance:
        """The slicer's proposer that keeps slots."""
        return next(each for each in self.slicer.proposers if isinstance(each, Inheritance))

    @property
    def image_pulls(self) -> dict[PodUid, NodeName]:
        """Where the slicer wants images of which pod; empty if it hands nothing over."""
        return {uid: node for each in self.slicer.proposers for uid, node in each.pulls.items()}

    # What users and the cluster do

    def node(
        self,
        name: str,
        cards: str = "A100-40GB",
        count: int = 1,
        *,
        whole: bool = False,
        shares: int = 0,
        kinds: str = "",
        **facts: Any,
    ) -> NodeInfo:
        """A node that offers on-demand slices, or whole or shared cards to claims, with its agent's object.

        ``kinds`` says it by card: ``w`` for whole, ``s`` for four shares, and ``c`` for cut.
        """
        model = model_by_short_name(cards)
        undivided = whole or shares
        geometry = claimed_geometry(model.product_name, model.memory_mib, shares) if undivided else model.geometry
        table = msgspec.to_builtins(placements(geometry))
        gpus: list[dict[str, Any]] = [
            {"gpuUuid": f"GPU-{name}-{i}", "gpuName": model.product_name, "gpuMemory": "40960Mi"} for i in range(count)
        ]
        for gpu, kind in zip(gpus, kinds, strict=False):
            amount = {"w": 0, "s": 4}.get(kind)
            own = model.geometry if amount is None else claimed_geometry(model.product_name, model.memory_mib, amount)
            gpu["migPlacement"] = msgspec.to_builtins(placements(own))
        self.objects[name] = {
            "metadata": {"name": name, "namespace": "instaslice-system", "uid": f"object-{name}"},
            "status": {"nodeResources": {"nodeGpus": gpus, "migPlacement": table, "bootId": "b"}},
        }
        default: dict[str, Any] = {
            "labels": {MIG_CONFIG_LABEL: "dynamic", "kubernetes.io/hostname": name},
            "allocatable": {
                "cpu": 64000,
                "memory": 2**40,
                "pods": 110,
                **{resource_of(row.name): row.max_count * count for row in geometry.profiles},
            },
        }
        self.nodes[NodeName(name)] = NodeInfo(name=NodeName(name), hostname=name, **{**default, **facts})
        self._touch(name)
        self.slicer.handle(NodeObserved(self.nodes[NodeName(name)]))
        return self.nodes[NodeName(name)]

    def device_node(self, name: str, model: str = "A100", count: int = 4, **facts: Any) -> NodeInfo:
        """A node with whole cards, which Tessera does not cut."""
        default: dict[str, Any] = {
            "labels": {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": model},
            "allocatable": {"cpu": 64000, "memory": 2**40, "pods": 110, "nvidia.com/gpu": count},
            "devices": (NodeDevices("nvidia.com/gpu", model, count, 8, 40),) if count else (),
        }
        self.nodes[NodeName(name)] = NodeInfo(name=NodeName(name), hostname=name, **{**default, **facts})
        self.slicer.handle(NodeObserved(self.nodes[NodeName(name)]))
        return self.nodes[NodeName(name)]

    def whole(self, name: str, count: int = 1, *, gated: bool = True, **facts: Any) -> PodInfo:
        """A pod with whole cards: behind our gate, or one that Tessera does not place."""
        devices = ("nvidia.com/gpu",) * count
        default: dict[str, Any] = {
            "gates": (GATE,) if gated else (),
            "amounts": {"cpu": 1000, "pods": 1, "nvidia.com/gpu": count},
            "constraints": NodeConstraints(devices=frozenset(devices)),
            "devices": devices,
        }
        return self.pod(name, *(devices if gated else ()), **{**default, **facts})

    def namespace(self, name: str, **labels: str) -> None:
        """Sets the labels of a namespace."""
        self.namespaces[name] = labels
        self.slicer.handle(NamespaceObserved(name, labels))

    def pod(self, name: str, *profiles: str, **facts: Any) -> PodInfo:
        """A pod behind our gate."""
        default: dict[str, Any] = {
            "uid": PodUid(f"uid-{name}"),
            "gates": (GATE,),
            "amounts": {"cpu": 1000, "pods": 1},
            "created": f"{len(self.pods)}",
            "namespace": "default",
        }
        pod = PodInfo(name=name, profiles=profiles, **{**default, **facts})
        return self.put(pod)

    def queue(self, name: str, **spec: Any) -> None:
        """Creates or changes a Queue object, which lists the namespace of its name; its status stays."""
        self.queues.setdefault(name, {"metadata": {"name": name}})["spec"] = {"namespaces": [name], **spec}
        self.slicer.handle(QueueObserved(read_queue(self.queues[name])))

    def put(self, pod: PodInfo) -> PodInfo:
        """Creates or changes a pod."""
        self.pods[pod.uid] = pod
        self.slicer.handle(PodObserved(pod))
        return pod

    def remove(self, pod: PodInfo) -> None:
        """Deletes a pod."""
        del self.pods[pod.uid]
        self.slicer.handle(PodDeleted(pod.uid))

    def node_says(self, name: str, text: str) -> None:
        """The node's condition about its Instaslice object."""
        self.nodes[NodeName(name)] = replace(self.nodes[NodeName(name)], object_fault=text)
        self.slicer.handle(NodeObserved(self.nodes[NodeName(name)]))

    def pass_time(self, seconds: float) -> None:
        """Time passes; it begins at 1,000,000 seconds since 1970."""
        self.date = (self.date or 1_000_000.0) + seconds
        self.slicer.handle(TimePassed(self.date, self.date))

    # The API server

    def _touch(self, node: str) -> None:
        self.version += 1
        self.objects[node]["metadata"]["resourceVersion"] = str(self.version)
        self.slicer.handle(InstasliceObserved(self.read(node)))

    def read(self, node: str) -> Instaslice:
        """A node's object as a client sees it."""
        return msgspec.convert(self.objects[node], Instaslice)

    def patch(self, node: str, body: Any) -> None:
        """A merge patch of a node's object."""
        self.objects[node] = merge(self.objects[node], msgspec.json.decode(msgspec.json.encode(body)))
        self._touch(node)

    def apply(self, write: Write) -> None:
        """Does one write; the machine observes the outcome, but is not answered yet."""
        self.writes.append(write)
        match write:
            case PatchRequests() | PatchResults():
                if write.node in self.objects:
                    self.patch(write.node, write.body())
            case Ungate():
                pod = self.pods.get(write.uid)
                if pod is not None:
                    profiles = () if pod.devices else pod.profiles
                    pinned = write.marked
                    self.put(replace(pod, gates=write.gates, hostname=write.hostname, profiles=profiles, pinned=pinned))
            case ReportNodeCondition():
                self.node_says(write.node, write.text)
            case ReportPodCondition():
                pod = self.pods.get(write.uid)
                if pod is not None:
                    self.put(replace(pod, slices_withdrawn=bool(write.text)))
            case Evict():
                self.remove(self.pods[write.uid])
            case ReportQueue():
                self.queues[write.name]["status"] = write.status
                self.slicer.handle(QueueObserved(read_queue(self.queues[write.name])))
            case DeleteObject():
                self.objects.pop(write.node, None)
                self.slicer.handle(InstasliceDeleted(write.node))

    def answer(self, instruction: Instruction) -> None:
        """Does one instruction and answers it."""
        if isinstance(instruction, RecordEvent):
            self.told.append(instruction)
        elif isinstance(instruction, Evict) and instruction.uid in self.protected:
            self.writes.append(instruction)
            self.slicer.handle(WriteRefused(instruction, "it would violate the pod's disruption budget."))
            self.slicer.handle(RetryDue(instruction))
        elif isinstance(instruction, Evict) and instruction.uid in self.unanswered:
            self.unanswered.discard(instruction.uid)
            self.writes.append(instruction)
            self.slicer.handle(WriteOutcomeUnknown(instruction))
            self.slicer.handle(RetryDue(instruction))
        else:
            self.apply(instruction)
            self.slicer.handle(WriteDone(instruction))

    def run(self) -> Sequence[Any]:
        """Decides and writes until nothing is left to do, without the agents."""
        before = len(self.writes)
        for _ in range(100):
            for owner in list(unknown_owners(self.slicer)):
                workload = self.workloads.get(owner.uid, Workload(owner.uid, 0))
                self.slicer.handle(OwnerLookedUp(owner, None if owner.uid in self.made_up else workload))
            for uid, node in list(self.image_pulls.items()) if self.pulls else ():
                self.slicer.handle(ImagesPulled(uid, node, self.no_image))
            self.slicer.decide()
            found = self.slicer.pop_writes()
            for instruction in found:
                self.answer(instruction)
            asks = any(unknown_owners(self.slicer)) or (self.pulls and self.image_pulls and not self.no_image)
            if not found and not asks and not self.slicer.has_work:
                return self.writes[before:]
        raise AssertionError("the controller never comes to rest")

    def restart(self) -> None:
        """The controller dies; a new one sees what is stored, and what pods that wait for room were told."""
        state = self.slicer.state
        for uid, one in state.waiting.items():
            if uid in self.pods and one.reason is not None and competes_for_room(one.reason):
                self.pods[uid] = replace(self.pods[uid], waits_since=state.cluster.pods[uid].created)
        self.slicer = self.make_slicer()
        if self.date:
            self.slicer.handle(TimePassed(self.date, self.date))
        for namespace, labels in self.namespaces.items():
            self.slicer.handle(NamespaceObserved(namespace, labels))
        for node in self.nodes.values():
            self.slicer.handle(NodeObserved(node))
        for pod in self.pods.values():
            self.slicer.handle(PodObserved(pod))
        for name in self.objects:
            self.slicer.handle(InstasliceObserved(self.read(name)))
        for item in self.queues.values():
            self.slicer.handle(QueueObserved(read_queue(item)))

    # Agents

    def agents(self) -> None:
        """Every agent catches up: makes what is promised and says so, destroys what is to go."""
        for name in list(self.objects):
            item = self.read(name)
            results: dict[str, Any] = {}
            for uid, request in item.spec.pod_allocation_requests.items():
                pod = self.pods.get(PodUid(uid))
                if uid not in item.status.pod_allocation_results and request.slices and pod is not None:
                    made = AllocationStatus(
                        allocation_status_controller="creating" if pod.gated else "ungated",
                        allocation_status_daemonset="created",
                    )
                    results[uid] = msgspec.to_builtins(make_result(uid, name, request.slices, made))
            for uid, result in item.status.pod_allocation_results.items():
                pod = self.pods.get(PodUid(uid))
                before = result.allocation_status
                deleting = before.allocation_status_controller == "deleting"
                goal = "deleted" if deleting else "created"
                if uid not in item.spec.pod_allocation_requests and (deleting or will_never_run(pod)):
                    results[uid] = None
                elif before.allocation_status_daemonset != goal:
                    results[uid] = {"allocationStatus": {"allocationStatusDaemonset": goal}}
                elif before.allocation_status_controller == "creating" and pod is not None and not pod.gated:
                    results[uid] = {"allocationStatus": {"allocationStatusController": "ungated"}}
            if results:
                self.patch(name, {"status": {"podAllocationResults": results}})

    def settle(self) -> None:
        """Controller and agents until both rest."""
        for _ in range(100):
            self.agents()
            if not self.run():
                return
        raise AssertionError("controller and agents never come to rest")

    def wait(self, seconds: float) -> None:
        """Time passes, and controller and agents act on it until both rest."""
        self.pass_time(seconds)
        self.settle()

    def settle_and_wait(self, seconds: float) -> None:
        """Both rest, time passes, and both rest again."""
        self.settle()
        self.wait(seconds)

    def resume(self) -> None:
        """The controller dies, and the next one comes to rest."""
        self.restart()
        self.settle()

    # Looking

    def states(self, pod: PodInfo) -> tuple[str, str] | None:
        """The two states of a pod's result, wherever it is."""
        for name in self.objects:
            result = self.read(name).status.pod_allocation_results.get(pod.uid)
            if result is not None:
                state = result.allocation_status
                return (state.allocation_status_controller, state.allocation_status_daemonset)
        return None

    def where(self, pod: PodInfo) -> list[tuple[str, str, int]]:
        """Node, profile and start of a pod's promised slices."""
        return [
            (name, item.profile, item.start)
            for name in self.objects
            if pod.uid in self.read(name).spec.pod_allocation_requests
            for item in self.read(name).spec.pod_allocation_requests[pod.uid].slices
        ]

    def empty(self) -> bool:
        """True if no slice is promised."""
        items = [self.read(name) for name in self.objects]
        return not any(item.spec.pod_allocation_requests or item.status.pod_allocation_results for item in items)

    def overlaps(self) -> list[str]:
        """Slots that two promises claim at a time."""
        found = []
        for name in self.objects:
            item = self.read(name)
            taken: dict[tuple[str, int], str] = {}
            for uid, request in item.spec.pod_allocation_requests.items():
                result = item.status.pod_allocation_results.get(uid)
                if result is not None and result.allocation_status.allocation_status_daemonset == "deleted":
                    continue
                for part in request.slices:
                    for slot in range(part.start, part.start + part.size):
                        other = taken.setdefault((part.gpu_uuid, slot), uid)
                        if other != uid:
                            found.append(f"{part.gpu_uuid} slot {slot}: {other} and {uid}")
        return found
