"""Hand-over as a satellite of the controller: its proposers, and the reads and tasks beside them.

The proposers decide; what they need of the API server is read here (:class:`WorkloadReader`), models on nodes are
passed on to the slicer here (:class:`LocalModels`), and lenders whose borrowers have ended are evicted here
(:class:`EndedLoans`).
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from typing import Any

import msgspec

from tessera.api.names import LENDS_ANNOTATION
from tessera.api.slice_requests import lends_to
from tessera.controller.cluster.volumes import LOCAL_MODEL_NODES, read_models
from tessera.controller.informers import ClusterInput
from tessera.controller.objects.pod_info import Owner, Workload
from tessera.controller.satellite import Process, Task, Term
from tessera.controller.slicing.state.events import StorageObserved
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.hand_over import HandOver
from tessera.handover.image_pulls import ImagePulls
from tessera.handover.inheritance import Inheritance
from tessera.handover.reserved_images import ReservedImages
from tessera.handover.spares import Spares
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.eviction import Blocked, Evictor
from tessera.kube.informer import wait_served
from tessera.kube.resources import CLONE_SETS, DEPLOYMENTS, JOBS, REPLICASETS, STATEFULSETS, Deployment, Pod, ReplicaSet

#: Annotation of the pods of a LeaderWorkerSet: the pods of a group, its leader included.
GROUP_SIZE = "leaderworkerset.sigs.k8s.io/size"
#: The revision of a Deployment that a ReplicaSet makes; its Deployment's controller writes it.
_REVISION = "deployment.kubernetes.io/revision"
_NUMBER = re.compile("[0-9]{1,9}")
#: Seconds between two looks for loans that have ended; evictions of one look.
PERIOD, EVICTED = 60.0, 16
#: Refused lenders that are remembered.
_REFUSED = 1_000
_log = logging.getLogger(__name__)


class WorkloadReader:
    """Reads what the owner that a pod names belongs to, and how many pods that wants.

    A LeaderWorkerSet makes a StatefulSet of its own name with the leaders, and each leader owns a StatefulSet of the
    leader's name with the workers of its group (``pkg/controllers/pod_controller.go``). A group that is made anew has
    another leader and another such StatefulSet, so the workers' slots are those of the group. The StatefulSet of
    leaders says which groups there are, and an annotation in its template how many workers each has. So Tessera needs
    no right on LeaderWorkerSets. An author of a pod who only writes such a name into it passes slots on within the
    pod's own namespace.

    A CloneSet of OpenKruise makes its pods itself; it is asked for ``spec.replicas`` where the kind is served.

    Args:
        client: needs ``get`` for Deployments, Jobs, ReplicaSets, StatefulSets and CloneSets.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, owner: Owner) -> Workload | None:
        """Returns what an owner belongs to; None if the object of its name is another.

        Raises:
            ApiError: the server refuses, or has no such object.
            OSError: it does not answer.
        """
        kind, _, name = owner.maker.partition("/")
        if kind == "Job":
            job = await self._client.get(JOBS.metadata_only(), name, owner.namespace)
            return Workload(owner.uid, 0) if str(job.metadata.uid) == owner.uid else None
        if kind == "StatefulSet":
            return await self._read_set(owner, name)
        if kind == "CloneSet":
            found = await self._client.get(CLONE_SETS, name, owner.namespace)
            return Workload(owner.uid, _replicas(found)) if str(found.metadata.uid) == owner.uid else None
        one = await self._client.get(REPLICASETS, name, owner.namespace)
        if str(one.metadata.uid) != owner.uid:
            return None
        return await self._deployment_of(one) or Workload(owner.uid, _replicas(one))

    async def _deployment_of(self, found: ReplicaSet) -> Workload | None:
        """Returns what a ReplicaSet's Deployment wants; None without one."""
        owners = found.metadata.owner_references
        name = next((each for each in owners if each.controller and each.kind == "Deployment"), None)
        if name is None:
            return None
        deployment = await self._client.get(DEPLOYMENTS, name.name, found.metadata.namespace)
        if deployment.metadata.uid != name.uid:
            return None
        revision = found.metadata.annotations.get(_REVISION, "")
        return Workload(
            name.uid,
            _replicas(deployment),
            int(revision) if _NUMBER.fullmatch(revision) else 0,
            name.name,
            deployment.keeps_old_pods,
            max(0, deployment.spec.min_ready_seconds),
            max(0, deployment.spec.progress_deadline_seconds),
        )

    async def _read_set(self, owner: Owner, name: str) -> Workload | None:
        found = await self._find_set(name, owner.namespace)
        is_one = found is not None and str(found.metadata.uid) == owner.uid
        if found is not None and is_one and not _is_of(found, "v1", "Pod"):
            return Workload(owner.uid, _replicas(found))
        group = await self._group_of(name, owner.namespace)
        if group is None and found is not None and is_one:
            return Workload(owner.uid, _replicas(found))
        return group

    async def _find_set(self, name: str, namespace: str) -> Deployment | None:
        try:
            return await self._client.get(STATEFULSETS, name, namespace)
        except NotFound:
            return None

    async def _group_of(self, name: str, namespace: str) -> Workload | None:
        """Returns what a LeaderWorkerSet wants of the workers of the leader of this name; None if there is no such."""
        leaders, _, number = name.rpartition("-")
        found = await self._find_set(leaders, namespace) if leaders and _NUMBER.fullmatch(number) else None
        if found is None or not _is_of(found, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"):
            return None
        size = found.spec.template.metadata.annotations.get(GROUP_SIZE, "")
        workers = int(size) - 1 if _NUMBER.fullmatch(size) else 0
        return Workload(f"{found.metadata.uid}/{number}", workers if int(number) < _replicas(found) else 0)


def _is_of(found: Deployment, version: str, kind: str) -> bool:
    owners = found.metadata.owner_references
    return any(each.controller and (each.api_version, each.kind) == (version, kind) for each in owners)


def _replicas(found: ReplicaSet | Deployment) -> int:
    """Returns the pods that an object wants; Kubernetes reads an absent number as 1. One that is deleted wants none."""
    if found.metadata.deletion_timestamp is not None:
        return 0
    return 1 if found.spec.replicas is None else found.spec.replicas


class EndedLoans:
    """Evicts each pod that lends its slice to one that has ended, as after the eviction of all pods of a node.

    Nobody uses such a slice. Kubernetes deletes the lender with its borrower's object (``ownerReferences``), and keeps
    the object of a pod that has ended, perhaps for ever. A lender is a tenant's own pod, so a forged one ends nothing
    but itself. The cluster is the record: all pods are looked at each :data:`PERIOD` seconds, so a new controller finds
    them as they are. A lender whose eviction is refused, as by a PodDisruptionBudget, is asked again. At most
    :data:`EVICTED` are asked at a time, others in the next round; namespaces take turns, so that one with thousands of
    such pods holds up no other.

    Args:
        term: the term of leadership, with all pods.
    """

    def __init__(self, term: Term) -> None:
        self._evictor, self._clock, self._pods = Evictor(term.runtime.client), term.runtime.clock, term.pods
        #: UIDs of lenders whose eviction was refused last: others go first.
        self._refused: dict[str, None] = {}

    async def run(self) -> None:
        """Evicts until cancelled."""
        while True:
            await self._clock.sleep(PERIOD)
            for lender in choose_lenders(self._find(), self._refused):
                await self._evict(lender)

    def _find(self) -> Iterator[Pod]:
        """Yields the lenders that live though their borrowers have ended."""
        cache = self._pods.cache
        for pod in cache.values():
            meta = pod.metadata
            if LENDS_ANNOTATION in meta.annotations and meta.deletion_timestamp is None and not pod.status.has_ended:
                borrower = cache.get(f"{meta.namespace}/{meta.annotations[LENDS_ANNOTATION]}")
                if borrower is not None and borrower.status.has_ended and lends_to(pod, borrower):
                    yield pod

    async def _evict(self, lender: Pod) -> None:
        meta = lender.metadata
        answer = await self._evictor.evict(meta.namespace, meta.name, meta.uid)
        if isinstance(answer, Blocked):
            self._refused.pop(meta.uid, None)
            self._refused[meta.uid] = None
            if len(self._refused) > _REFUSED:
                del self._refused[next(iter(self._refused))]
            _log.info("pod %s/%s lends to a pod that has ended, and stays: %s", meta.namespace, meta.name, answer.text)
        else:
            _log.info("pod %s/%s is evicted: it lends its slice to a pod that has ended", meta.namespace, meta.name)


def choose_lenders(found: Iterable[Pod], refused: Container[str]) -> list[Pod]:
    """Returns the lenders to evict now: those first whose eviction was not refused, of each namespace in turn."""
    ranks = Counter[tuple[bool, str]]()
    ranked: list[tuple[bool, int, Pod]] = []
    for lender in found:
        place = (lender.metadata.uid in refused, lender.metadata.namespace)
        ranked.append((place[0], ranks[place], lender))
        ranks[place] += 1
    return [each[2] for each in nsmallest(EVICTED, ranked, key=lambda one: one[:2])]


class HandOverMode(Enum):
    """What is done for the pods that replace others of their owner."""

    #: A deleted pod's slots are kept for its owner's next pod.
    INHERIT = "inherit"
    #: Besides, an old pod ends for a new one without room whose annotation says so.
    ON = "on"


class _Kind(msgspec.Struct, frozen=True):
    name: str = ""


class _Kinds(msgspec.Struct, frozen=True):
    """``metav1.APIResourceList``."""

    resources: tuple[_Kind, ...] = ()


class LocalModels(ClusterInput):
    """Passes the models of KServe's LocalModelCaches on nodes to the slicer, for the preferences of pods.

    KServe downloads a model to each node of the cache's groups, one by one, and says in the LocalModelNode of each node
    how far that is. The pods of a service mount a local volume, whose affinity admits the whole group: a pod on a node
    that still downloads finds no model. So of its group a pod prefers the nodes that have the model
    (:func:`~tessera.controller.objects.pod_preferences.model_preferences`). A LocalModelNode speaks for the node of its
    name only.

    Args:
        term: the term of leadership.
    """

    def __init__(self, term: Term) -> None:
        super().__init__(term.runtime, term.slicer, term.wake)
        self._informer = self._watch(LOCAL_MODEL_NODES)
        self._informer.add_handler(self._observe)

    async def run(self) -> None:
        """Watches until cancelled, once the cluster has the kind."""
        await wait_served(self._is_served, self._clock)
        await self._informer.run()

    async def _is_served(self) -> bool:
        """True if the cluster has the kind: KServe serves others of this group's version, also without local models."""
        try:
            answer = await self._client.request("GET", f"/apis/{LOCAL_MODEL_NODES.api_version}")
            kinds = msgspec.json.decode(answer.body, type=_Kinds).resources
        except (ApiError, ConnectionError, TimeoutError, msgspec.DecodeError):
            return False
        return any(each.name == LOCAL_MODEL_NODES.plural for each in kinds)

    def _observe(self, event: WatchEvent[dict[str, Any]]) -> None:
        found = read_models(event.object)
        if found is not None:
            self._pass_on(StorageObserved(found, deleted=event.kind is EventKind.DELETED))


@dataclass(frozen=True, kw_only=True)
class HandOverSatellite:
    """Keeps slots for the next pods of their owners and of services, and hands them over in updates.

    Attributes:
        mode: what is done.
        moves: True if pods are moved, which goes before an old pod ends.
    """

    mode: HandOverMode = HandOverMode.ON
    moves: bool = False

    def make(self, state: SlicerState) -> tuple[Inheritance, Spares, ReservedImages, HandOver]:
        """Makes the proposers of a slicer."""
        inheritance = Inheritance(state)
        acts = self.mode is HandOverMode.ON
        return (
            inheritance,
            Spares(state, inheritance.pods),
            ReservedImages(state),
            HandOver(state, inheritance.pods, acts=acts, moves=self.moves),
        )

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""

        def join(term: Term) -> None:
            term.owner_readers.append(WorkloadReader(term.runtime.client).read)
            term.tasks.append(Task(name="pulls of images", run=ImagePulls(term).run))
            term.tasks.append(Task(name="ends of loans", run=EndedLoans(term).run))
            term.tasks.append(Task(name="models of nodes", run=LocalModels(term).run))

        process.proposers.append(self.make)
        return join
