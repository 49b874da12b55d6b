"""What the controller has seen of the cluster: pods, nodes and Instaslice objects, each in its newest state.

Observations may repeat and come late; an older state of a pod or an object is ignored. What each one touches is noted,
so that :mod:`tessera.controller.slicing.slicer` looks at that and nothing else.
"""

from collections.abc import Mapping
from dataclasses import replace

from tessera.api.instaslice import Instaslice
from tessera.api.names import NodeName, PodUid
from tessera.controller.cluster.capacity_changes import CapacityChanges
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.cluster.pod_index import PodIndex
from tessera.controller.cluster.storage import Storage
from tessera.controller.objects.node_info import AgentState, NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.kube.resources.meta import version_number


class Observed:
    """The newest observations, and what they touched since somebody looked.

    Attributes:
        pods: pods that hold something or want slices, by UID; finished ones only while a promise of theirs stands.
        nodes: all nodes.
        objects: the Instaslice object of each node, in its last readable state.
        unreadable: why a node's object cannot be read now.
        index: all nodes, by what pods' constraints ask of them.
        growth: where room may have grown, for whoever waits.
        neighbours: pods on nodes, by what other pods' rules ask of them.
        storage: claims and volumes.
        storage_listed: they are all there, so that pods are judged by them.
        neighbours_changed: something changed there that pods may wait for.
    """

    def __init__(self) -> None:
        self.pods: dict[PodUid, PodInfo] = {}
        self.nodes: dict[NodeName, NodeInfo] = {}
        self.objects: dict[NodeName, Instaslice] = {}
        self.unreadable: dict[NodeName, str] = {}
        self.index = NodeIndex()
        self.neighbours = PodIndex()
        self.storage = Storage()
        self.storage_listed = False
        self.neighbours_changed = False
        self._fixed: set[NodeName] = set()
        self._rewound_pods: set[PodUid] = set()
        self._rewound_objects: set[NodeName] = set()
        self._agents: dict[NodeName, dict[PodUid, bool]] = {}
        self._uids: dict[str, PodUid] = {}
        self._hosts: dict[str, NodeName] = {}
        self._changed_nodes: set[NodeName] = set()
        self._changed_pods: set[PodUid] = set()
        self.growth = CapacityChanges()
        self._orphans: list[tuple[NodeName, str]] = []

    def see_pod(self, pod: PodInfo) -> None:
        """A pod as it is now; ignored if a newer state was seen."""
        known = self.pods.get(pod.uid)
        if known is not None and known.version > pod.version and pod.uid not in self._rewound_pods:
            return
        self._rewound_pods.discard(pod.uid)
        other = self._uids.get(pod.key)
        if other is not None and other != pod.uid:
            self.lose_pod(other)
        self._uids[pod.key] = pod.uid
        self.pods[pod.uid] = pod
        if known != pod:
            self._changed_pods.add(pod.uid)
            self._follow_agent(known, pod)

    def lose_pod(self, uid: PodUid) -> None:
        """A pod is gone."""
        pod = self.pods.pop(uid, None)
        self._follow_agent(pod, None)
        if pod is not None and self._uids.get(pod.key) == uid:
            del self._uids[pod.key]
        self._changed_pods.add(uid)

    def _follow_agent(self, before: PodInfo | None, pod: PodInfo | None) -> None:
        """Takes over what an agent's pod says of its node; of several, as in an upgrade, one has to serve."""
        if before is not None and before.agent_ready is not None:
            self._agents.get(before.node, {}).pop(before.uid, None)
        if pod is not None and pod.agent_ready is not None and pod.node:
            self._agents.setdefault(pod.node, {})[pod.uid] = pod.agent_ready
        for name in {one.node for one in (before, pod) if one is not None and one.agent_ready is not None}:
            if not self._agents.get(name):
                self._agents.pop(name, None)
            if name in self.nodes:
                self.see_node(self.nodes[name])

    def _agent(self, node: NodeName) -> AgentState:
        known = self._agents.get(node)
        if known is None:
            return AgentState.UNKNOWN
        return AgentState.READY if any(known.values()) else AgentState.DOWN

    def see_node(self, node: NodeInfo) -> None:
        """A node as it is now."""
        node = replace(node, agent=self._agent(node.name))
        before = self.nodes.get(node.name)
        if before == node:
            return
        if before is not None and self._hosts.get(before.hostname) == node.name:
            del self._hosts[before.hostname]
        self.nodes[node.name] = node
        self.index.put(node)
        (self._fixed.add if node.fixed_profiles else self._fixed.discard)(node.name)
        self._hosts[node.hostname] = node.name
        self._changed_nodes.add(node.name)
        self.growth.room_may_have_grown(node.name)

    def lose_node(self, name: NodeName) -> None:
        """A node is gone; its object goes with it."""
        node = self.nodes.pop(name, None)
        self.index.remove(name)
        self.growth.remove_node(name)
        self._fixed.discard(name)
        if node is not None and self._hosts.get(node.hostname) == name:
            del self._hosts[node.hostname]
        self._orphan(name)
        self._changed_nodes.add(name)

    def see_object(self, item: Instaslice) -> None:
        """A node's Instaslice object; ignored if a newer one was seen."""
        node = NodeName(item.metadata.name)
        known = self.objects.get(node)
        if known is not None and _version(known) > _version(item) and node not in self._rewound_objects:
            return
        self._rewound_objects.discard(node)
        self.objects[node] = item
        self._changed_nodes.add(node)

    def see_unreadable(self, node: NodeName, error: str | None) -> None:
        """A node's Instaslice object breaks its type, as ``error`` says; None once it does not any more."""
        before = self.unreadable.get(node)
        if error is not None:
            self.unreadable[node] = error
        else:
            self.unreadable.pop(node, None)
        if error != before:
            self._changed_nodes.add(node)

    def rewind_pods(self) -> None:
        """Versions of pods went back: the next observation of each counts, whatever its version."""
        self._rewound_pods = set(self.pods)

    def rewind_objects(self) -> None:
        """The same for Instaslice objects."""
        self._rewound_objects = set(self.objects)

    def lose_object(self, node: NodeName) -> None:
        """A node's Instaslice object is gone."""
        if self.objects.pop(node, None) is not None:
            self._changed_nodes.add(node)

    def see_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Labels of a namespace, which rules about pods may ask for; None for one that is gone."""
        before = self.neighbours.changes
        self.neighbours.set_namespace(name, labels)
        self.neighbours_changed |= self.neighbours.changes != before

    def home_of(self, pod: PodInfo) -> NodeName | None:
        """The node that an ungated pod must run on: bound to it or pinned by hostname; None for any other pod."""
        if pod.gates:
            return None
        return pod.node or self._hosts.get(pod.hostname)

    def _orphan(self, node: NodeName) -> None:
        """The object of a node that is gone is to be deleted."""
        item = self.objects.get(node)
        if item is not None:
            self._orphans.append((node, item.metadata.uid))


def _version(item: Instaslice) -> int:
    return version_number(item.metadata.resource_version)
