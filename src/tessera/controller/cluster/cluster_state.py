"""The cluster as watches show it: pods, nodes and Instaslice objects, each in its newest state.

Observations may repeat and come late; this class ignores an older state of a pod or an object. For every change it
notes the affected pods and nodes, so that :mod:`tessera.controller.slicing` looks only at these.

Pods with whole cards or shares are also indexed by the node that they are bound to or the hostname that they are pinned
to. After a change of a node's devices its pods are counted again. A start changes all nodes, some in each step: each
step asks for the pods of its nodes and never walks over all pods.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tessera.api.instaslice import Instaslice
from tessera.api.names import NAME_LABEL, PLACEMENT_LABEL, PLACEMENT_MANAGED, QUEUE_LABEL, NodeName, PodUid
from tessera.api.queues import ANY_NAMESPACE, Queue
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.cluster.pod_index import PodIndex
from tessera.controller.cluster.volumes import Storage, StorageObject
from tessera.controller.objects.node_info import AgentState, NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.kube.resources.meta import version_number


class DevicePods:
    """The index. A pod behind a gate, or that names no node, is not in it."""

    def __init__(self) -> None:
        #: UIDs by node name, and by hostname; no set is empty.
        self._bound: dict[str, set[PodUid]] = {}
        self._pinned: dict[str, set[PodUid]] = {}

    def replace(self, before: PodInfo | None, pod: PodInfo | None) -> None:
        """Takes in a pod in place of its former state; None if there was none, or if it is gone."""
        if before is not None and before.devices:
            table, key = self._place(before)
            found = table.get(key, set())
            found.discard(before.uid)
            if not found:
                table.pop(key, None)
        if pod is not None and pod.devices and not pod.gates:
            table, key = self._place(pod)
            if key:
                table.setdefault(key, set()).add(pod.uid)

    def of(self, node: str, hostname: str) -> AbstractSet[PodUid]:
        """Returns the pods that are bound to a node, or pinned to its hostname; no hostname is empty."""
        return self._bound.get(node, set()) | self._pinned.get(hostname, set())

    def _place(self, pod: PodInfo) -> tuple[dict[str, set[PodUid]], str]:
        return (self._bound, pod.node) if pod.node else (self._pinned, pod.hostname)


class CapacityChanges:
    """Counts changes of nodes that may have made room.

    A pod that was refused is planned again only on nodes that changed after the count at its refusal.

    Attributes:
        count: number of changes so far.
    """

    def __init__(self) -> None:
        self.count = 0
        #: ``count`` at the last change of each node, in the order of the counts.
        self._nodes: dict[NodeName, int] = {}
        #: ``count`` at the last change that concerns all nodes.
        self._everywhere = 0
        #: Remembered answers: nodes that changed after a count. Emptied by each change of a node.
        self._since: dict[int, frozenset[NodeName]] = {}

    def room_may_have_grown(self, node: NodeName) -> None:
        """Notes that room may have grown on a node."""
        self.count += 1
        self._nodes.pop(node, None)
        self._nodes[node] = self.count
        self._since.clear()

    def room_may_have_grown_anywhere(self) -> None:
        """Notes that room may have grown on any node: every waiting pod is planned again on all nodes."""
        self.count += 1
        self._everywhere = self.count

    def remove_node(self, node: NodeName) -> None:
        """Forgets a node that is gone."""
        self._nodes.pop(node, None)
        self._since.clear()

    def last_change(self, node: NodeName) -> int:
        """Returns :attr:`count` at the last change that concerns a node; 0 if there was none."""
        return max(self._nodes.get(node, 0), self._everywhere)

    def nodes_changed_since(self, count: int) -> frozenset[NodeName] | None:
        """Returns the nodes that changed since :attr:`count` had this value; None if any may have, or it is below 0."""
        if count < self._everywhere or count < 0:
            return None
        if count not in self._since:
            found = []
            for node, changed in reversed(self._nodes.items()):
                if changed <= count:
                    break
                found.append(node)
            self._since[count] = frozenset(found)
        return self._since[count]


class ClusterState:
    """The newest observations, and the changes since the slicer last looked."""

    def __init__(self) -> None:
        #: Pods that hold resources or want slices. A finished pod stays only while it has an allocation.
        self.pods: dict[PodUid, PodInfo] = {}
        #: All nodes.
        self.nodes: dict[NodeName, NodeInfo] = {}
        #: Each node's Instaslice object in its last readable state. Its node may not be known yet, or be gone.
        self.objects: dict[NodeName, Instaslice] = {}
        #: By node, the error for which its object cannot be decoded now; ``objects`` keeps the last readable state.
        self.unreadable: dict[NodeName, str] = {}
        #: The same nodes as ``nodes``, by the labels and taints that pods' constraints test.
        self.index = NodeIndex()
        #: Pods on nodes, by the labels, ports and claims that other pods' rules test. The lifecycle updates it.
        self.placed_pods = PodIndex()
        #: The Queue objects.
        self.queues: dict[str, Queue] = {}
        #: Claims, volumes, classes and CSI nodes.
        self.storage = Storage()
        #: True once ``storage`` is complete; pods' claims are tested only then. It never becomes False again.
        self.storage_listed = False
        #: True if a change of a pod, claim or namespace may open a node to a waiting pod; the slicer resets it.
        self.dependencies_changed = False
        #: Nodes where room may have grown, and the count at which each waiting pod was refused.
        self.capacity_changes = CapacityChanges()
        #: Nodes and pods that the next decision absorbs and removes here. They may be gone from ``nodes`` and ``pods``.
        self.changed_nodes: set[NodeName] = set()
        self.changed_pods: set[PodUid] = set()
        #: Objects to delete since their nodes are gone, as (node, UID); emptied when the writes are popped.
        self.orphaned_objects: list[tuple[NodeName, str]] = []
        #: Nodes of ``nodes`` with at least one profile in a fixed layout.
        self.fixed_layout_nodes: set[NodeName] = set()
        #: Pods and objects whose next observation counts at any version, since versions went back.
        self._reset_pods: set[PodUid] = set()
        self._reset_objects: set[NodeName] = set()
        #: By node, its agent's pods, True for a ready one; a node without an agent pod has no entry.
        self._agents: dict[NodeName, dict[PodUid, bool]] = {}
        #: By node and kind of request, the resources that the node has for it; no inner dict is empty.
        self._offers: dict[NodeName, dict[str, frozenset[str]]] = {}
        #: The UID of the newest pod of each ``namespace/name``. All values are keys of ``pods``.
        self._uids: dict[str, PodUid] = {}
        #: The pods of ``pods`` with whole cards or shares that are bound or pinned.
        self._device_pods = DevicePods()
        #: The node of each hostname label. All values are keys of ``nodes``.
        self._hosts: dict[str, NodeName] = {}

    def put_pod(self, pod: PodInfo) -> None:
        """Takes in a pod as it is now; ignored if a newer state was seen."""
        known = self.pods.get(pod.uid)
        if known is not None and known.version > pod.version and pod.uid not in self._reset_pods:
            return
        self._reset_pods.discard(pod.uid)
        other = self._uids.get(pod.key)
        if other is not None and other != pod.uid:
            self.drop_pod(other)
        self._uids[pod.key] = pod.uid
        self.pods[pod.uid] = pod
        if known != pod:
            if pod.devices or (known is not None and known.devices):
                self._device_pods.replace(known, pod)
            self.changed_pods.add(pod.uid)
            self._follow_agent(known, pod)

    def drop_pod(self, uid: PodUid) -> None:
        """Forgets a pod that is gone."""
        pod = self.pods.pop(uid, None)
        self._device_pods.replace(pod, None)
        self._follow_agent(pod, None)
        if pod is not None and self._uids.get(pod.key) == uid:
            del self._uids[pod.key]
        self.changed_pods.add(uid)

    def _follow_agent(self, before: PodInfo | None, pod: PodInfo | None) -> None:
        """Updates the state of a node's agent from its pods; if it has several, one ready pod suffices."""
        if before is not None and before.agent_ready is not None:
            self._agents.get(before.node, {}).pop(before.uid, None)
        if pod is not None and pod.agent_ready is not None and pod.node:
            self._agents.setdefault(pod.node, {})[pod.uid] = pod.agent_ready
        for name in {one.node for one in (before, pod) if one is not None and one.agent_ready is not None}:
            if not self._agents.get(name):
                self._agents.pop(name, None)
            if name in self.nodes:
                self.put_node(self.nodes[name])

    def _agent_state(self, node: NodeName) -> AgentState:
        known = self._agents.get(node)
        if known is None:
            return AgentState.UNKNOWN
        return AgentState.READY if any(known.values()) else AgentState.DOWN

    def put_node(self, node: NodeInfo) -> None:
        """Takes in a node as it is now."""
        offered = frozenset[str]().union(*self._offers.get(node.name, {}).values())
        node = replace(node, agent=self._agent_state(node.name), offered=offered)
        before = self.nodes.get(node.name)
        if before == node:
            self.nodes[node.name] = node  # what is not compared wakes no pod
            self.index.put_images(node)
            return
        if before is not None and self._hosts.get(before.hostname) == node.name:
            del self._hosts[before.hostname]
        self.nodes[node.name] = node
        self.index.put(node)
        (self.fixed_layout_nodes.add if node.fixed_profiles else self.fixed_layout_nodes.discard)(node.name)
        self._hosts[node.hostname] = node.name
        self.changed_nodes.add(node.name)
        self.capacity_changes.room_may_have_grown(node.name)

    def offered_by(self, name: NodeName, kind: str) -> frozenset[str]:
        """Returns what a node has for a kind of request besides its devices."""
        return self._offers.get(name, {}).get(kind, frozenset())

    def offer(self, name: NodeName, kind: str, resources: frozenset[str]) -> None:
        """Notes what a node, which may not be known yet, has for a kind of request besides its devices."""
        if resources == self.offered_by(name, kind):
            return
        offers = self._offers.setdefault(name, {})
        offers[kind] = resources
        if not resources:
            del offers[kind]
        if not offers:
            del self._offers[name]
        if name in self.nodes:
            self.put_node(self.nodes[name])

    def drop_node(self, name: NodeName) -> None:
        """Forgets a node that is gone, and notes that its object must be deleted."""
        node = self.nodes.pop(name, None)
        self.index.remove(name)
        self.capacity_changes.remove_node(name)
        self.fixed_layout_nodes.discard(name)
        if node is not None and self._hosts.get(node.hostname) == name:
            del self._hosts[node.hostname]
        self.note_orphan(name)
        self.changed_nodes.add(name)

    def put_object(self, item: Instaslice) -> None:
        """Takes in a node's Instaslice object; ignored if a newer one was seen."""
        node = NodeName(item.metadata.name)
        known = self.objects.get(node)
        if known is not None and _version(known) > _version(item) and node not in self._reset_objects:
            return
        self._reset_objects.discard(node)
        self.objects[node] = item
        self.changed_nodes.add(node)

    def set_object_error(self, node: NodeName, error: str | None) -> None:
        """Sets the error for which a node's Instaslice object cannot be decoded; None once it can be."""
        before = self.unreadable.get(node)
        if error is not None:
            self.unreadable[node] = error
        else:
            self.unreadable.pop(node, None)
        if error != before:
            self.changed_nodes.add(node)

    def reset_pod_versions(self) -> None:
        """Notes that versions of pods went back: the next observation of each pod counts at any version."""
        self._reset_pods = set(self.pods)

    def reset_instaslice_versions(self) -> None:
        """Notes that versions of Instaslice objects went back: the next observation of each counts at any version."""
        self._reset_objects = set(self.objects)

    def drop_object(self, node: NodeName) -> None:
        """Forgets the Instaslice object of a node."""
        if self.objects.pop(node, None) is not None:
            self.changed_nodes.add(node)

    def put_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Takes in the labels of a namespace, which rules about pods may test; None if the namespace is gone."""
        before = self.placed_pods.changes
        self.placed_pods.set_namespace(name, labels)
        self.dependencies_changed |= self.placed_pods.changes != before

    def put_storage(self, item: StorageObject, *, deleted: bool) -> None:
        """Takes in a claim, volume, class or CSI node as it is now."""
        if deleted:
            self.storage.drop(item)
        else:
            self.storage.put(item)
        self.dependencies_changed = True

    def note_storage_listed(self) -> None:
        """Notes that all claims, volumes, classes and CSI nodes were listed."""
        self.storage_listed = True
        self.dependencies_changed = True

    def queue_of(self, pod: PodInfo) -> str:
        """Returns the queue that a pod counts for.

        It is the queue that the pod's label names, if that Queue lists the namespace; else the one that the namespace's
        label names; else the namespace itself, which is the Queue of its name only if that lists it. So a tenant cannot
        join a queue that does not expect it, by a label or by a name.
        """
        namespace = pod.namespace
        if self.queues:
            named = next((value for key, value in pod.labels if key == QUEUE_LABEL), "")
            if named and self._lists(named, namespace):
                return named
        labelled = self.placed_pods.namespace_label(namespace, QUEUE_LABEL)
        if labelled or namespace not in self.queues or self._lists(namespace, namespace):
            return labelled or namespace
        return f"namespace/{namespace}"

    def _lists(self, name: str, namespace: str) -> bool:
        queue = self.queues.get(name)
        return queue is not None and not queue.namespaces.isdisjoint((namespace, ANY_NAMESPACE))

    def is_namesake(self, queue: str) -> bool:
        """True if a namespace has the name of this Queue, and neither it nor the Queue says that it counts for one."""
        label = self.placed_pods.namespace_label
        exists = bool(label(queue, NAME_LABEL))
        return exists and not label(queue, QUEUE_LABEL) and not self._lists(queue, queue)

    def is_managed(self, namespace: str) -> bool:
        """True for a namespace whose pods with whole cards Tessera places."""
        return self.placed_pods.namespace_label(namespace, PLACEMENT_LABEL) == PLACEMENT_MANAGED

    def required_node(self, pod: PodInfo) -> NodeName | None:
        """Returns the node that an ungated pod is bound to or pinned to by hostname; None for any other pod.

        A hostname that a pod without need of a gate names is a rule of its author like others: no place was found yet.
        """
        if pod.gates:
            return None
        return pod.node or (self._hosts.get(pod.hostname) if pod.kind.needs_gate else None)

    def device_pods_of(self, node: NodeName) -> AbstractSet[PodUid]:
        """Returns the ungated pods with whole cards or shares that are bound or pinned to a node."""
        facts = self.nodes.get(node)
        named = facts is not None and self._hosts.get(facts.hostname) == node
        return self._device_pods.of(node, facts.hostname if facts is not None and named else "")

    def note_orphan(self, node: NodeName) -> None:
        """Notes that the object of a deleted node must be deleted."""
        item = self.objects.get(node)
        if item is not None:
            self.orphaned_objects.append((node, item.metadata.uid))


def _version(item: Instaslice) -> int:
    return version_number(item.metadata.resource_version)
