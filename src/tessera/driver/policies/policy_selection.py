"""Which policy governs which node: from the objects that administrators wrote, to one value. Pure.

Rules:

1. The oldest ClusterPolicy counts. One whose status another operator writes is that operator's: nothing is done.
2. An object with mistakes is not followed; what it said before goes on, and where nothing is known of that, everything
   stays as it is. Nobody loses a driver by a typing error.
3. Where there is no such kind of object (the definition was never installed, or was removed), nothing is taken away
   from nodes either. Only an object that was deleted, or says ``enabled: false``, takes drivers away.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.documents import FileRefused, Notice
from tessera.api.driver.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS, Assignment, assign, governing
from tessera.api.driver.cluster_policy import left_to, read_cluster_policy
from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.driver.node_status import DriverStatus
from tessera.api.driver.nvidia_driver import read_nvidia_driver
from tessera.api.driver.policy_status import Verdict, conflicting, disabled, ignored, of_nodes, refused, unmanaged
from tessera.driver.nodes.node_facts import opted_out
from tessera.kube.resources.meta import Resource

Obj = Mapping[str, Any]
Labels = Mapping[str, Mapping[str, str]]


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    """What administrators wrote.

    Attributes:
        cluster_policies: all of them; None while the API server has no such kind.
        nvidia_drivers: likewise.
        followed: what each object said when it last had no mistakes, by ``kind/name``.
    """

    cluster_policies: Sequence[Obj] | None = None
    nvidia_drivers: Sequence[Obj] | None = None
    followed: Mapping[str, DriverPolicy] = {}


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and what is to be told of it apart from its nodes.

    Attributes:
        resource: its kind.
        obj: the object.
        verdict: what is to be told; None if that follows from its nodes.
        notices: fields without effect.
        conflict: goes before what follows from its nodes.
    """

    resource: Resource[dict[str, Any]]
    obj: Obj
    verdict: Verdict | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def name(self) -> str:
        """``ClusterPolicy/cluster-policy``."""
        return f"{self.resource.kind}/{self.obj['metadata']['name']}"


class Governance(msgspec.Struct, frozen=True, kw_only=True):
    """What follows.

    Attributes:
        frozen: why everything stays as it is; empty if it need not.
        cluster: the ClusterPolicy in force; None if none manages drivers.
        nodes: by name of the node: its policy.
        unassigned: by name of the node: why it has none, although drivers are managed.
        left: nodes that people have labelled so that Tessera leaves their driver alone; no policy waits for them.
        told: the objects whose status is ours to write.
        assignment: of NVIDIADriver objects.
        followed: to be remembered, see :class:`Objects`.
    """

    frozen: str = ""
    cluster: DriverPolicy | None = None
    nodes: Mapping[str, DriverPolicy] = {}
    unassigned: Mapping[str, str] = {}
    left: frozenset[str] = frozenset()
    told: tuple[Told, ...] = ()
    assignment: Assignment = Assignment()
    followed: Mapping[str, DriverPolicy] = {}

    @property
    def policies(self) -> Mapping[str, DriverPolicy]:
        """The policies that govern a node, by ``kind/name``."""
        return {f"{each.kind}/{each.name}": each for each in self.nodes.values()}

    def verdicts(self, statuses: Mapping[str, DriverStatus | None]) -> list[tuple[Told, Verdict]]:
        """What is to be told of each object, now that each node's status is known."""
        return [(told, told.verdict or self._of_nodes(told, statuses)) for told in self.told]

    def _of_nodes(self, told: Told, statuses: Mapping[str, DriverStatus | None]) -> Verdict:
        mine: Collection[str] = [name for name, each in self.nodes.items() if f"{each.kind}/{each.name}" == told.name]
        nobody = "it selects no node that has a card"
        if told.resource is CLUSTER_POLICIES:  # also the nodes of the NVIDIADriver objects that it calls for, or lacks
            mine, nobody = {**self.nodes, **self.unassigned}, "no node has a card"
        counted = {node: statuses.get(node) for node in mine if node not in self.left}
        if mine and not counted:
            nobody = "the labels of all its nodes say that their driver is left alone"
        verdict = of_nodes(counted, told.notices, nobody=nobody)
        conflict = self.assignment.conflict_of(told.obj["metadata"]["name"])
        if told.resource is NVIDIA_DRIVERS and conflict is not None:
            return conflicting(conflict, verdict)
        return verdict


def govern(objects: Objects, nodes: Labels) -> Governance:
    """Divides the nodes with cards among policies.

    Args:
        objects: what administrators wrote.
        nodes: labels of the nodes with cards, by name.
    """
    if objects.cluster_policies is None:
        return Governance(frozen="The API server has no ClusterPolicy objects.", followed=objects.followed)
    winner, others = governing(objects.cluster_policies)
    if winner is None:
        return Governance(told=_disabled(objects))
    left = frozenset(name for name, labels in nodes.items() if opted_out(labels))
    name = winner["metadata"]["name"]
    late = tuple(Told(resource=CLUSTER_POLICIES, obj=each, verdict=ignored(name)) for each in others)
    other = left_to(winner)
    if other:
        return Governance(frozen=f"ClusterPolicy {name} is {other}'s: it writes its status.", told=late)
    return msgspec.structs.replace(_under(winner, late, objects, nodes), left=left)


def _under(winner: Obj, late: tuple[Told, ...], objects: Objects, nodes: Labels) -> Governance:
    cluster, told = _read_cluster(winner, objects)
    followed = _followed(cluster)
    if cluster is None:
        return Governance(frozen="The ClusterPolicy has mistakes.", told=(told, *late), followed=objects.followed)
    if not cluster.enabled:
        verdict = told.verdict or unmanaged(told.notices)
        told = msgspec.structs.replace(told, verdict=verdict)
        return Governance(told=(told, *late, *_disabled(objects)), followed=followed)
    if not cluster.use_driver_crd:
        governed = dict.fromkeys(nodes, cluster)
        return Governance(cluster=cluster, nodes=governed, told=(told, *late, *_disabled(objects)), followed=followed)
    return _by_objects(cluster, (told, *late), objects, nodes)


def _by_objects(cluster: DriverPolicy, told: tuple[Told, ...], objects: Objects, nodes: Labels) -> Governance:
    if objects.nvidia_drivers is None:
        frozen = "The ClusterPolicy has useNvidiaDriverCRD, and the API server has no NVIDIADriver objects."
        return Governance(frozen=frozen, cluster=cluster, told=told, followed=objects.followed)
    read = [_read_driver(each, cluster, objects) for each in objects.nvidia_drivers if not _leaves(each)]
    if any(policy is None for policy, _ in read):
        own = tuple(each for _, each in read)
        return Governance(
            frozen="An NVIDIADriver has mistakes, and which nodes it is for is not known.",
            cluster=cluster,
            told=(*told, *own),
            followed=objects.followed,
        )
    drivers = [policy for policy, _ in read if policy is not None]
    found = assign(drivers, nodes)
    contested = {node: each.text for each in found.conflicts for node in each.nodes}
    unassigned = {
        node: contested.get(node, "no NVIDIADriver selects it; add one, or one with default: true")
        for node in nodes
        if node not in found.nodes
    }
    return Governance(
        cluster=cluster,
        nodes=found.nodes,
        unassigned=unassigned,
        told=(*told, *(each for _, each in read)),
        assignment=found,
        followed=_followed(cluster, *drivers),
    )


def _read_cluster(obj: Obj, objects: Objects) -> tuple[DriverPolicy | None, Told]:
    try:
        read = read_cluster_policy(obj)
    except FileRefused as error:
        told = Told(resource=CLUSTER_POLICIES, obj=obj, verdict=refused(error.problems))
        return objects.followed.get(told.name), told
    return read.policy, Told(resource=CLUSTER_POLICIES, obj=obj, notices=read.notices)


def _read_driver(obj: Obj, cluster: DriverPolicy, objects: Objects) -> tuple[DriverPolicy | None, Told]:
    try:
        read = read_nvidia_driver(obj, cluster)
    except FileRefused as error:
        told = Told(resource=NVIDIA_DRIVERS, obj=obj, verdict=refused(error.problems))
        return objects.followed.get(told.name), told
    return read.policy, Told(resource=NVIDIA_DRIVERS, obj=obj, notices=read.notices)


def _disabled(objects: Objects) -> tuple[Told, ...]:
    drivers = objects.nvidia_drivers or ()
    return tuple(Told(resource=NVIDIA_DRIVERS, obj=each, verdict=disabled()) for each in drivers)


def _leaves(obj: Obj) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def _followed(*policies: DriverPolicy | None) -> dict[str, DriverPolicy]:
    return {f"{each.kind}/{each.name}": each for each in policies if each is not None}
