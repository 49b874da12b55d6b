"""A cluster that runs a trace: the real slicer and forecaster, with an API server that answers at once."""

from dataclasses import replace
from typing import Any

import msgspec
from bench.eta.traces import Job

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import Instaslice, InstasliceSpec, InstasliceStatus, NodeResources
from tessera.api.names import GATE, HOSTNAME_LABEL, MIG_CONFIG_LABEL, NodeName, PodUid, resource_of
from tessera.clock import rfc3339
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import (
    EndsExpected,
    InstasliceObserved,
    NodeObserved,
    PodDeleted,
    PodObserved,
    TimePassed,
    WriteDone,
)
from tessera.controller.slicing.state.instructions import PatchRequests, RecordEvent, Ungate, Write
from tessera.forecast.calibration import Calibration
from tessera.forecast.history_text import History
from tessera.forecast.lives import LifeHistory
from tessera.forecast.past_times import StartTimes
from tessera.forecast.queue.forecaster import Forecaster, Round
from tessera.forecast.queue.satellite import PERIOD
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import ObjectMeta, Uid
from tessera.mig.models import model_by_short_name

#: When a trace begins, seconds since 1970.
BEGIN = 1_700_000_000.0
#: Least seconds between two steps that time alone makes due.
LEAST_PAUSE = 1.0
_MODEL = "A100-40GB"


class ReplayedCluster:
    """Nodes of eight cards.

    Args:
        cards: number of cards.
        reserve_after: seconds after which slots are reserved for a waiting pod; None for never.

    Attributes:
        now: the time, seconds since 1970.
        running: by UID, the jobs that have slices.
        started: jobs that got their slices since this was last emptied.
    """

    def __init__(self, cards: int, reserve_after: float | None) -> None:
        self.now = BEGIN
        self.slicer = Slicer(reserve_after)
        self.forecaster = Forecaster(History(LifeHistory(BEGIN), StartTimes(), Calibration()))
        self.running: dict[PodUid, Job] = {}
        self.started: list[tuple[PodUid, Job]] = []
        self._jobs: dict[PodUid, Job] = {}
        self._pods: dict[PodUid, PodInfo] = {}
        self._objects: dict[str, Instaslice] = {}
        self._version = 0
        #: When the slicer was last told the expected ends.
        self._told = float("-inf")
        for number in range((cards + 7) // 8):
            self._add_node(f"n{number}", min(8, cards - 8 * number))

    def _add_node(self, name: str, cards: int) -> None:
        model = model_by_short_name(_MODEL)
        gpus = [
            {"gpuUuid": f"GPU-{name}-{each}", "gpuName": model.product_name, "gpuMemory": "40960Mi"}
            for each in range(cards)
        ]
        table = msgspec.to_builtins(placements(model.geometry))
        resources = msgspec.convert({"nodeGpus": gpus, "migPlacement": table, "bootId": "b"}, NodeResources)
        amounts = {resource_of(row.name): row.max_count * cards for row in model.geometry.profiles}
        self._objects[name] = Instaslice(
            metadata=ObjectMeta(name=name, namespace="instaslice-system", uid=Uid(f"o-{name}")),
            status=InstasliceStatus(node_resources=resources),
        )
        node = NodeInfo(
            name=NodeName(name),
            hostname=name,
            labels={MIG_CONFIG_LABEL: "dynamic", HOSTNAME_LABEL: name},
            allocatable={"cpu": 10**9, "memory": 2**50, "pods": 10**6, **amounts},
        )
        self.slicer.handle(NodeObserved(node))
        self._observe(name)

    def _observe(self, name: str) -> None:
        self._version += 1
        item = self._objects[name]
        metadata = msgspec.structs.replace(item.metadata, resource_version=str(self._version))
        self._objects[name] = msgspec.structs.replace(item, metadata=metadata)
        self.slicer.handle(InstasliceObserved(self._objects[name]))

    # The trace

    def submit(self, job: Job) -> PodUid:
        """A job's pod is created."""
        uid = PodUid(f"u-{job.name}")
        pod = PodInfo(
            uid=uid,
            namespace=job.namespace,
            name=job.name,
            gates=(GATE,),
            profiles=job.profiles,
            amounts={"pods": 1},
            created=rfc3339(self.now),
            deadline=None if job.deadline is None else float(job.deadline),
        )
        self._jobs[uid] = job
        self._put(pod)
        self._track(uid)
        self.settle()
        return uid

    def end(self, uid: PodUid) -> None:
        """A pod ends and is deleted."""
        self.running.pop(uid, None)
        self.forecaster.tracker.drop(uid, self.now)
        del self._pods[uid]
        self.slicer.handle(PodDeleted(uid))
        self.settle()

    def settle(self) -> None:
        """Decides and writes until nothing is left to do."""
        self.slicer.handle(TimePassed(self.now, self.now))
        while True:
            self.slicer.decide()
            writes = [each for each in self.slicer.pop_writes() if not isinstance(each, RecordEvent)]
            for write in writes:
                self._answer(write)
            if not writes and not self.slicer.has_work:
                return

    def forecast(self) -> None:
        """The forecaster makes a new page."""
        begun = self._tell_ends()
        for _ in self.forecaster.forecast(begun, {}):
            pass

    def advance(self, until: float) -> bool:
        """Time passes: the slicer acts when time alone makes a step due, and is told when leases are expected to end.

        The controller tells it every 15 seconds. Nothing is decided between two events but by its own times, so here
        it is told at these.

        Returns:
            False if pods started before ``until``; :attr:`now` is then the time of their start.
        """
        while (due := self.slicer.next_due) is not None and due < until:
            self.now = max(due, self.now + LEAST_PAUSE)
            if self.now >= until:
                break
            self._expect_ends()
            if self.started:
                return False
        self.now = until
        self._expect_ends()
        return True

    def _expect_ends(self) -> None:
        if self.slicer.state.waiting and self.now - self._told >= PERIOD:
            self._tell_ends()
        self.settle()

    def _tell_ends(self) -> Round:
        self._told = self.now
        begun = self.forecaster.begin(self.slicer.state, self.now)
        for _ in self.forecaster.expect_ends(begun):
            pass
        if ends := self.forecaster.ends.pop():
            self.slicer.handle(EndsExpected(ends))
        self.settle()
        return begun

    def waits(self, uid: PodUid) -> bool:
        """True if a pod has no slices yet."""
        return uid in self._pods and uid not in self.running

    def pod(self, uid: PodUid) -> PodInfo:
        """A pod as it is now."""
        return self._pods[uid]

    # The API server

    def _put(self, pod: PodInfo) -> None:
        self._pods[pod.uid] = pod
        self.slicer.handle(PodObserved(pod))

    def _answer(self, write: Write) -> None:
        match write:
            case PatchRequests():
                item = self._objects[write.node]
                known = item.spec.pod_allocation_requests
                requests = {uid: each for uid, each in known.items() if uid not in write.drop}
                requests |= {str(uid): each for uid, each in write.put.items()}
                spec = InstasliceSpec(pod_allocation_requests=requests)
                notes = {**item.metadata.annotations, **(write.annotations or {})}
                annotations = {name: text for name, text in notes.items() if text is not None}
                metadata = msgspec.structs.replace(item.metadata, annotations=annotations)
                self._objects[write.node] = msgspec.structs.replace(item, spec=spec, metadata=metadata)
                self._observe(write.node)
            case Ungate():
                pod = self._pods.get(write.uid)
                if pod is not None:
                    node = NodeName(write.hostname)
                    self._put(replace(pod, gates=(), hostname=node, node=node, started=self.now))
                    self.running[write.uid] = self._jobs[write.uid]
                    self.started.append((write.uid, self._jobs[write.uid]))
                    self._track(write.uid)
        self.slicer.handle(WriteDone(write))

    def _track(self, uid: PodUid) -> None:
        job, pod = self._jobs[uid], self._pods[uid]
        started = rfc3339(self.now) if uid in self.running else None
        self.forecaster.tracker.observe(_object(job, pod, started), job.profiles, self.now)


def _object(job: Job, pod: PodInfo, started: str | None) -> Pod:
    owners = [{"kind": job.owner, "uid": "o", "name": "o", "apiVersion": "v1", "controller": True}]
    body: dict[str, Any] = {
        "metadata": {
            "name": job.name,
            "namespace": job.namespace,
            "uid": pod.uid,
            "creationTimestamp": pod.created,
            "ownerReferences": owners,
        },
        "spec": {"containers": [{"name": "c"}], "activeDeadlineSeconds": job.deadline},
        "status": {"startTime": started},
    }
    return msgspec.convert(body, Pod)
