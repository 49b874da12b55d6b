"""The autoscaler of a lab: its process, and the node groups that it scales.

The process scans the cluster, and asks the cloud for more or fewer machines. ``tessera lab up --group`` names the
groups. Their nodes offer whole cards, since the autoscaler counts ``nvidia.com/gpu`` and nothing else.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

from tessera.api.mig_layouts import DISABLED
from tessera.api.names import HOSTNAME_LABEL, MIG_CONFIG_LABEL
from tessera.clock import parse_rfc3339
from tessera.kube.client import Client
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import Informer
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import NODES, PODS, Node, Pod
from tessera.limits import ECHOED
from tessera_lab.cloud.autoscaler.rules import (
    ActionKind,
    AutoscalerMemory,
    AutoscalerSnapshot,
    AutoscalerTimers,
    GroupNode,
    GroupView,
    PendingView,
    ScalingAction,
    awaits_time,
    scan,
)
from tessera_lab.cloud.cloud import Cloud
from tessera_lab.cloud.node_groups import InstanceState, NodeGroup, RandomDelay
from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.kubelet.context import KubeletOptions
from tessera_lab.limits import LAB_NODES
from tessera_lab.simulation.supervision import supervise
from tessera_lab.simulation.virtual_time import CountedClock

#: Label by which the Cluster API provider recognises nodes that will have cards.
GPU_LABEL = "cluster-api/accelerator"
RESOURCE = "nvidia.com/gpu"
#: What a machine has beside cards.
_MACHINE = {
    "cpu": float(parse_quantity(KubeletOptions.cpu)),
    "memory": float(parse_quantity(KubeletOptions.memory)),
    "ephemeral-storage": float(parse_quantity(KubeletOptions.disk)),
}
#: Prefixes of taints of nodes that are still starting.
_STARTUP = ("startup-taint.cluster-autoscaler.kubernetes.io/", "ignore-taint.cluster-autoscaler.kubernetes.io/")
#: Sockets' paths have the node's name in them, which is the group's and six characters more.
LONGEST_NAME = 8
_GROUP = re.compile(r"(?P<name>[a-z]([a-z0-9-]*[a-z0-9])?)=(?P<node>.+?)(:(?P<minimum>\d{1,4})-(?P<maximum>\d{1,4}))?")


class ClusterAutoscaler:
    """The simulated cluster autoscaler.

    Args:
        client: its calls.
        clock: the time; waits are counted while an action is due, so that virtual time jumps from scan to scan.
        cloud: the cloud with the groups.
        timers: its flags.
        on_action: called with each action and its time, seconds since 1970.

    Attributes:
        cloud: whose groups it scales.
        actions: its actions so far, each with its time.
    """

    def __init__(
        self,
        client: Client,
        clock: CountedClock,
        cloud: Cloud,
        timers: AutoscalerTimers,
        *,
        on_action: Callable[[float, ScalingAction], None] = lambda _now, _action: None,
    ) -> None:
        self._clock = clock
        self.cloud = cloud
        self._timers = timers
        self._on_action = on_action
        self._memory = AutoscalerMemory()
        self.actions: list[tuple[float, ScalingAction]] = []
        rng = random.Random(0)
        self._nodes: Informer[Node] = Informer(client, NODES, clock=clock, rng=rng)
        self._pods: Informer[Pod] = Informer(client, PODS, clock=clock, rng=rng)
        self._events = EventRecorder(client, component="cluster-autoscaler", instance="lab", clock=clock, rng=rng)

    async def run(self) -> None:
        """Scans until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (self._nodes, self._pods):
                group.create_task(informer.run())
            group.create_task(self._events.run())
            for informer in (self._nodes, self._pods):
                await informer.wait_synced()
            while True:
                world = self.snapshot()
                for action in scan(world, self._memory, self._timers):
                    await self._execute(action)
                pause = self._clock.sleep if awaits_time(world, self._memory, self._timers) else self._clock.rest
                await pause(self._timers.scan)

    def snapshot(self) -> AutoscalerSnapshot:
        """The input of a scan, as of now."""
        pods = [pod for pod in self._pods.cache.values() if pod.status.phase not in {"Succeeded", "Failed"}]
        return AutoscalerSnapshot(
            now=self._clock.now(),
            groups=[self._group_view(name) for name in self.cloud.groups],
            nodes=[view for node in self._nodes.cache.values() if (view := self._node_view(node, pods)) is not None],
            pending=[_pending_view(pod) for pod in pods if _is_unschedulable(pod) and _fits_machine(pod)],
        )

    def _group_view(self, name: str) -> GroupView:
        waiting = {InstanceState.CREATING, InstanceState.BOOTING}
        return GroupView(
            group=self.cloud.groups[name],
            target=self.cloud.target(name),
            unregistered={each.name: each.requested for each in self.cloud.instances(name) if each.state in waiting},
        )

    def _node_view(self, node: Node, pods: list[Pod]) -> GroupNode | None:
        instance = self.cloud.instance(node.metadata.name)
        if instance is None or instance.state is not InstanceState.JOINED:
            return None
        own = [pod for pod in pods if pod.spec.node_name == node.metadata.name]
        cards = _card_count(node.status.allocatable)
        starting = any(taint.key.startswith(_STARTUP) for taint in node.spec.taints)
        return GroupNode(
            name=node.metadata.name,
            group=instance.group,
            created=parse_rfc3339(node.metadata.creation_timestamp or ""),
            ready=node.status.is_ready and not starting,
            labelled=GPU_LABEL in node.metadata.labels,
            cards=cards,
            free=max(0, cards - sum(map(_requested_cards, own))),
            empty=all(any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references) for pod in own),
        )

    async def _execute(self, action: ScalingAction) -> None:
        now = self._clock.now()
        self.actions.append((now, action))
        self._on_action(now, action)
        match action.kind:
            case ActionKind.INCREASE:
                self.cloud.increase(action.group, action.count)
                for pod in self._pods.cache.values():
                    if _is_unschedulable(pod):
                        reference = make_reference(PODS, pod.metadata.name, pod.metadata.namespace, pod.metadata.uid)
                        text = f"pod triggered scale-up: [{{{action.group} +{action.count}}}]"
                        self._events.record(reference, "TriggeredScaleUp", text)
            case ActionKind.REMOVE:
                instance = self.cloud.instance(action.node)
                if instance is not None and instance.state is not InstanceState.DELETING:
                    await self.cloud.delete(action.node)
            case ActionKind.TIMED_OUT:
                pass  # only the callback gets it; a group has no object for an event


def _is_unschedulable(pod: Pod) -> bool:
    return not pod.spec.node_name and any(
        each.type == "PodScheduled" and each.status == "False" and each.reason == "Unschedulable"
        for each in pod.status.conditions
    )


def _fits_machine(pod: Pod) -> bool:
    """True if an empty machine has what the pod requests: all of them have the same, and the cards are compared later.

    Pods of placeholders and tests have no init containers, so the sum of their containers is what they request.
    """
    requested: dict[str, float] = {}
    for container in pod.spec.containers:
        for name, text in {**container.resources.limits, **container.resources.requests}.items():
            requested[name] = requested.get(name, 0.0) + float(parse_quantity(text))
    return all(
        amount <= _MACHINE.get(name, 0.0) for name, amount in requested.items() if not name.startswith("nvidia.com/")
    )


def _pending_view(pod: Pod) -> PendingView:
    return PendingView(
        created=parse_rfc3339(pod.metadata.creation_timestamp or ""),
        cards=_requested_cards(pod),
        priority=pod.spec.priority or 0,
        own_node=_needs_own_node(pod),
    )


def _needs_own_node(pod: Pod) -> bool:
    """True for a pod that excludes nodes by their hostnames, and repels its own kind from its host."""
    affinity = pod.spec.affinity
    if affinity is None or affinity.node_affinity is None or affinity.pod_anti_affinity is None:
        return False
    required = affinity.node_affinity.required
    terms = required.node_selector_terms if required is not None else ()
    tests = [test for term in terms for test in term.match_expressions]
    excludes = any((test.key, test.operator) == (HOSTNAME_LABEL, "NotIn") for test in tests)
    return excludes and any(term.topology_key == HOSTNAME_LABEL for term in affinity.pod_anti_affinity.required)


def _requested_cards(pod: Pod) -> int:
    return sum(_card_count(each.resources.limits) for each in pod.spec.containers)


def _card_count(quantities: Mapping[str, str]) -> int:
    """Counts whole cards; the API server has refused invalid quantities, but ``1k`` is valid."""
    return int(parse_quantity(quantities.get(RESOURCE, "0")))


def parse_group(text: str) -> NodeGroup:
    """Parses the node group ``NAME=CARDS[:MIN-MAX]``; the default range is 0 to 10 nodes.

    Raises:
        ValueError: the form or a part is not valid; the text says which.
    """
    found = _GROUP.fullmatch(text)
    if found is None or len(found["name"]) > LONGEST_NAME:
        raise ValueError(
            f"group {text[:ECHOED]!r}: write NAME=CARDS or NAME=CARDS:MIN-MAX, for example gpu=4xA100-40GB:0-3;"
            f" the name has at most {LONGEST_NAME} of a-z, 0-9 and -"
        )
    nodes = parse_nodes(found["node"])
    if len(nodes) > 1 or not nodes[0].cards:
        raise ValueError(f"group {text[:ECHOED]!r}: its nodes are alike and have cards; write one node, as 4xA100-40GB")
    minimum, maximum = int(found["minimum"] or 0), int(found["maximum"] or 10)
    if not minimum <= maximum <= LAB_NODES or not maximum:
        raise ValueError(f"group {text[:ECHOED]!r}: {minimum}-{maximum} nodes; from 0 to {LAB_NODES}, the least first")
    return NodeGroup(
        name=found["name"],
        template=nodes[0],
        minimum=minimum,
        maximum=maximum,
        labels={GPU_LABEL: nodes[0].cards[0].lower()},
    )


def parse_groups(texts: Sequence[str]) -> list[NodeGroup]:
    """See :func:`parse_group`.

    Raises:
        ValueError: as there, or two groups have the same name.
    """
    groups = [parse_group(text) for text in texts]
    names = [group.name for group in groups]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"group {twice!r} is there twice; give each a name of its own")
    return groups


@asynccontextmanager
async def run_autoscaler(
    cluster: SimulatedCluster, groups: Sequence[NodeGroup], *, machine_seconds: float, idle_seconds: float
) -> AsyncIterator[None]:
    """Gives a running cluster the groups, and an autoscaler for them inside the block.

    Args:
        cluster: the cluster.
        groups: none for a cluster without an autoscaler.
        machine_seconds: from a request until a node registers.
        idle_seconds: how long an idle node stays, and how long after a scale-up no node is removed.
    """
    if not groups:
        yield
        return
    whole = {MIG_CONFIG_LABEL: DISABLED} if cluster.options.mig_config else {}
    cloud = Cloud(
        cluster,
        [
            msgspec.structs.replace(each, labels={**each.labels, **whole}, join=RandomDelay(mean=machine_seconds))
            for each in groups
        ],
    )
    timers = AutoscalerTimers(unneeded=idle_seconds, delay_after_add=idle_seconds)
    client = cluster.client("cluster-autoscaler")

    async def scale() -> None:
        await ClusterAutoscaler(client, cluster.hardware_clock, cloud, timers).run()

    async with cloud.running(), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(supervise("cluster-autoscaler", scale, cluster.clock))
        try:
            yield
        finally:
            task.cancel()
