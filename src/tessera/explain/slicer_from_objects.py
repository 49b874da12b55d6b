"""The controller's state, made anew from objects that were read once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tessera.api.instaslice import Instaslice
from tessera.api.queues import Queue
from tessera.controller.cluster.volumes import NodeModels
from tessera.controller.objects.node_info import read_node
from tessera.controller.objects.pod_info import CLAIMS, read_pod
from tessera.controller.slicing.slicer import KINDS, Slicer
from tessera.controller.slicing.state.events import (
    InstasliceObserved,
    LastGatesObserved,
    NamespaceObserved,
    NodeObserved,
    PodGroupObserved,
    PodGroupsListed,
    PodObserved,
    QueueObserved,
    RecordObserved,
    RecordsListed,
    StorageObserved,
    TimePassed,
)
from tessera.kube.resources import Namespace, Node, Pod

if TYPE_CHECKING:
    from tessera.controller.slicing.kinds import RequestKind
    from tessera.controller.slicing.state.slicer_state import SlicerState
    from tessera.explain.claim_objects import ClaimObjects


def slicer_from_objects(
    pods: Iterable[Pod],
    nodes: Iterable[Node],
    instaslices: Iterable[Instaslice],
    now: float = 0.0,
    *,
    pod_groups: Mapping[str, int] | None = None,
    namespaces: Iterable[Namespace] = (),
    queues: Iterable[Queue] = (),
    last_gates: frozenset[str] = frozenset(),
    claims: "ClaimObjects | None" = None,
    models: Iterable[NodeModels] = (),
) -> Slicer:
    """Returns the slicer that follows from stored objects, after all waiting pods were planned once.

    Args:
        pods: all pods.
        nodes: all nodes.
        instaslices: the nodes' objects.
        now: when they were read, seconds since 1970.
        pod_groups: sizes of gangs by key, as PodGroups state them; None in a cluster without the kind.
        namespaces: all namespaces, whose labels decide on queues, on who places whole cards, and on rules about pods.
        queues: the Queue objects, with the use that their status records.
        last_gates: gates whose owners exist in the cluster and go after Tessera.
        claims: what decides on ResourceClaims; None to plan for no pods with claims.
        models: the models that KServe has brought to nodes.
    """
    slicer = Slicer(reads=True, kinds=(*KINDS, *_kinds_of(claims)))
    slicer.handle(TimePassed(now, now))
    slicer.handle(LastGatesObserved(last_gates))
    for key, size in (pod_groups or {}).items():
        slicer.handle(PodGroupObserved(key, size))
    slicer.handle(PodGroupsListed(served=pod_groups is not None))
    for namespace in namespaces:
        slicer.handle(NamespaceObserved(namespace.metadata.name, namespace.metadata.labels))
    for queue in queues:
        slicer.handle(QueueObserved(queue))
    for node in nodes:
        slicer.handle(NodeObserved(read_node(node)))
    for found in models:
        slicer.handle(StorageObserved(found, deleted=False))
    if claims is not None:
        for each in (*claims.classes, *claims.slices, *claims.claims):
            slicer.handle(RecordObserved(CLAIMS.name, each))
        slicer.handle(RecordsListed(CLAIMS.name))
    for pod in pods:
        slicer.handle(PodObserved(read_pod(pod)))
    for item in instaslices:
        slicer.handle(InstasliceObserved(item))
    slicer.decide()
    while slicer.has_work:
        slicer.decide()
    return slicer


def _kinds_of(claims: "ClaimObjects | None") -> "Sequence[Callable[[SlicerState], RequestKind]]":
    """The kind of pods with ResourceClaims, imported only where there are any."""
    if claims is None:
        return ()
    from tessera.claims.controller.claims import Claims

    return (partial(Claims, driver=claims.driver),)
