"""Reads the facts about a cluster's autoscaler: present timers, accelerator labels, priorities, Tessera's records.

The sources are OpenShift's ClusterAutoscaler, the flags of a Deployment that runs the cluster autoscaler, annotations
of MachineSets and MachineDeployments, Karpenter's NodePools, nodes, and pods that request cards. A fact is unknown if
its object does not exist or the user may not read it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tessera.api.names import MIG_CONFIG_LABEL, SYSTEM_NAMESPACE, is_on_demand
from tessera.api.nodes.node_cards import ACCELERATOR_LABELS, CAPI_ACCELERATOR, PROVIDER_ACCELERATORS
from tessera.api.nodes.node_groups import NO_HELP_REASON, Pause, read_pause
from tessera.cli.autoscaler.settings import (
    CLUSTER_AUTOSCALERS,
    NODE_POOLS,
    SETS,
    SetFacts,
    Settings,
    facts_of_sets,
    from_deployment,
    from_openshift,
)
from tessera.cli.base.durations import parse_duration
from tessera.clock import parse_time_or_zero
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.quantity import integer_value
from tessera.kube.resources import CONFIGMAPS, DEPLOYMENTS, EVENTS, NODES, PODS, Node, Pod
from tessera.kube.resources.meta import Resource
from tessera.provisioning.history import RECORDS_NAME, ProvisioningHistory
from tessera.provisioning.milestones import ProvisioningRecord
from tessera.provisioning.start_times import SAMPLE_ROWS, GroupTimes, from_records
from tessera.provisioning.timer_advice import CAPI_GROUP, Labels
from tessera.provisioning.timers import Timers
from tessera.provisioning.timestamps import KARPENTER_LABEL, has_gpu_limits, node_group


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a cluster's autoscaler and node groups.

    Attributes:
        settings: the autoscaler's settings for all node groups.
        labels: by node group, name and value of the accelerator label that all present nodes have, or None.
        sets: settings of MachineSets and MachineDeployments, by node group.
        karpenter: by node group of Karpenter, the seconds for which it keeps an empty node; None for ever.
        expendable: pods that request cards and for which the autoscaler makes no node.
        sliced: node groups whose nodes offer slices or renamed shares, and no ``nvidia.com/gpu``.
        unmanaged: nodes without an autoscaled group that have an accelerator label and offer no ``nvidia.com/gpu``;
            with the label.
        paused: waiting pods that new nodes did not help, with the group and the pause in which none is asked for.
    """

    settings: Settings = Settings()
    labels: Mapping[str, tuple[str, str] | None] = {}
    sets: Mapping[str, SetFacts] = {}
    karpenter: Mapping[str, float | None] = {}
    expendable: tuple[str, ...] = ()
    sliced: frozenset[str] = frozenset()
    unmanaged: tuple[tuple[str, str], ...] = ()
    paused: tuple[tuple[str, str, Pause], ...] = ()

    def label_facts(self, group: str) -> Labels:
        """The accelerator label of a group. A template is preferred to nodes, which may have got the label later."""
        own, sliced = self.sets.get(group), group in self.sliced
        if own is not None and own.labels is not None:
            found = accelerator(own.labels, (CAPI_ACCELERATOR,))
            sliced = sliced or is_on_demand(own.labels.get(MIG_CONFIG_LABEL, ""))
        elif group in self.labels:
            found = self.labels[group]
        else:
            return Labels(sliced=sliced)
        name, value = found or ("", "")
        return Labels(present=found is not None, name=name, value=value, types=self.settings.gpu_types, sliced=sliced)

    def never_ready(self) -> tuple[str, ...]:
        """Groups whose nodes never become ready for the autoscaler; Karpenter does not use the label."""
        found = {name: self.label_facts(name) for name in (*self.sliced, *self.sets) if name not in self.karpenter}
        return tuple(sorted(name for name, each in found.items() if each.present and each.sliced))

    def timers(self, group: str) -> Timers:
        """The present timers of a group: its own if it sets some, else the autoscaler's."""
        if group in self.karpenter:
            return Timers(unneeded=self.karpenter[group])
        own = self.sets.get(group)
        if own is None or own.timers == Timers():
            return self.settings.timers
        known = {name: value for name, value in msgspec.structs.asdict(own.timers).items() if value is not None}
        return msgspec.structs.replace(self.settings.timers, **known)

    def annotation_group(self, group: str) -> str:
        """The API group with which annotations of the group's MachineSet begin."""
        return self.sets[group].api_group if group in self.sets else CAPI_GROUP


NOTHING = ClusterFacts()


async def read_cluster(client: Client) -> tuple[tuple[GroupTimes, ...], ClusterFacts]:
    """A cluster's measured times, and the facts about its autoscaler."""
    times = from_records(await _records(client))
    nodes = (await client.list(NODES)).items
    settings = await _settings(client)
    sets: dict[str, SetFacts] = {}
    for resource in SETS:  # owners come after their sets, so their settings win
        sets |= facts_of_sets(await _list_optional(client, resource), resource.group, sets)
    pools = {
        str(each["metadata"]["name"]): _consolidate_after(each) for each in await _list_optional(client, NODE_POOLS)
    }
    used = {each.metadata.labels[KARPENTER_LABEL] for each in nodes if each.metadata.labels.get(KARPENTER_LABEL)}
    pods = (await client.list(PODS)).items
    return times, ClusterFacts(
        settings=settings,
        labels=labels_of_groups(nodes),
        sliced=sliced_groups(nodes),
        unmanaged=find_unmanaged_nodes(nodes, sets),
        sets=sets,
        karpenter=dict.fromkeys(used) | pools,
        expendable=_expendable_pods(pods, settings.cutoff),
        paused=await _paused_pods(client, pods),
    )


async def _records(client: Client) -> tuple[ProvisioningRecord, ...]:
    try:
        found = await client.get(CONFIGMAPS, RECORDS_NAME, SYSTEM_NAMESPACE)
    except NotFound:
        return ()
    history = ProvisioningHistory(SAMPLE_ROWS)
    history.load(found.data)
    return history.nodes.values()


async def _settings(client: Client) -> Settings:
    """Settings of OpenShift's object, or of a Deployment with cluster-autoscaler in its name."""
    try:
        found = await client.get(CLUSTER_AUTOSCALERS, "default")
        return from_openshift(found)
    except ApiError:
        pass
    for deployment in await _list_optional(client, DEPLOYMENTS.as_dicts()):
        if "cluster-autoscaler" in str(deployment["metadata"]["name"]):
            return from_deployment(deployment)
    return Settings()


async def _list_optional(client: Client, resource: Resource[Any]) -> list[dict[str, Any]]:
    """All objects of a kind; none if the cluster does not serve it or the user may not read it."""
    try:
        return list((await client.list(resource)).items)
    except ApiError:
        return []


def _consolidate_after(pool: Mapping[str, Any]) -> float | None:
    """A NodePool's ``consolidateAfter``, seconds; None for Never, or for what cannot be read."""
    disruption = (pool.get("spec") or {}).get("disruption") or {}
    try:
        return parse_duration(str(disruption.get("consolidateAfter")))
    except ValueError:
        return None


def _expendable_pods(pods: Iterable[Pod], cutoff: int) -> tuple[str, ...]:
    return tuple(
        sorted(
            f"{pod.metadata.namespace}/{pod.metadata.name}"
            for pod in pods
            if not pod.spec.node_name and (pod.spec.priority or 0) < cutoff and has_gpu_limits(pod)
        )
    )


async def _paused_pods(client: Client, pods: Iterable[Pod]) -> tuple[tuple[str, str, Pause], ...]:
    """The last pause of each pod that is on no node; none if the user may not read events."""
    waiting = {pod.metadata.uid: pod for pod in pods if not pod.spec.node_name}
    try:
        events = (await client.list(EVENTS, field_selector=f"reason={NO_HELP_REASON}")).items
    except ApiError:
        return ()
    found: dict[tuple[str, str], Pause] = {}
    for event in sorted(events, key=lambda each: each.last_timestamp or ""):
        told = read_pause(event.message, parse_time_or_zero(event.last_timestamp))
        pod = waiting.get(event.involved_object.uid)
        if told is not None and pod is not None:
            found[f"{pod.metadata.namespace}/{pod.metadata.name}", told[0]] = told[1]
    return tuple((pod, group, pause) for (pod, group), pause in found.items())


#: Annotations of nodes that Cluster API or OpenShift made; their autoscaler is Cluster API's.
_MACHINE_ANNOTATIONS = ("cluster.x-k8s.io/machine", "machine.openshift.io/machine")
_DOMAIN, _WHOLE = "nvidia.com/", "nvidia.com/gpu"


def accelerator(labels: Mapping[str, str], names: Iterable[str]) -> tuple[str, str] | None:
    """Name and value of the first of these labels that exists; None without any."""
    return next(((name, labels[name]) for name in names if name in labels), None)


def labels_of_groups(nodes: Iterable[Node]) -> dict[str, tuple[str, str] | None]:
    """By node group: name and value of the accelerator label that all of its nodes have, or None."""
    found: dict[str, tuple[str, str] | None] = {}
    for node in nodes:
        group = _group(node)
        if group:
            label = _accelerator(node)
            found[group] = label if found.get(group, label) is not None else None
    return found


def sliced_groups(nodes: Iterable[Node]) -> frozenset[str]:
    """Node groups with a node that offers slices or renamed shares, now or soon, and no ``nvidia.com/gpu``."""
    return frozenset(_group(node) for node in nodes if _group(node) and _has_slices(node))


def find_unmanaged_nodes(nodes: Iterable[Node], sets: Mapping[str, SetFacts]) -> tuple[tuple[str, str], ...]:
    """Nodes without an autoscaled group that have an accelerator label and offer no ``nvidia.com/gpu``; with the label.

    The cluster does not record if a cloud's own node group is autoscaled, so its nodes are left out.
    """
    return tuple(sorted(_iterate_unmanaged_nodes(nodes, sets)))


def _iterate_unmanaged_nodes(nodes: Iterable[Node], sets: Mapping[str, SetFacts]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        group, label = _group(node), _accelerator(node)
        managed = sets[group].autoscaled if group in sets else bool(group)
        if label is not None and not managed and not _amount(node, _WHOLE):
            yield node.metadata.name, label[0]


def _group(node: Node) -> str:
    return node_group(node.metadata.labels, node.metadata.annotations)


def _accelerator(node: Node) -> tuple[str, str] | None:
    """The accelerator label that the autoscaler uses on this node; labels of other providers have no effect."""
    if any(name in node.metadata.annotations for name in _MACHINE_ANNOTATIONS):
        return accelerator(node.metadata.labels, (CAPI_ACCELERATOR,))
    scheme = node.spec.provider_id.partition(":")[0]
    return accelerator(node.metadata.labels, PROVIDER_ACCELERATORS.get(scheme, ACCELERATOR_LABELS))


def _has_slices(node: Node) -> bool:
    if _amount(node, _WHOLE):
        return False
    others = [name for name in node.status.allocatable if name.startswith(_DOMAIN)]
    return is_on_demand(node.metadata.labels.get(MIG_CONFIG_LABEL, "")) or any(_amount(node, name) for name in others)


def _amount(node: Node, resource: str) -> int:
    try:
        return integer_value(node.status.allocatable.get(resource, "0"))
    except ValueError:
        return 0
