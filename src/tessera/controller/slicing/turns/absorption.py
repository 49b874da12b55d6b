"""Takes in what has changed in the cluster, in steps of bounded length.

A start, or the first use of whole cards, changes everything at once, which would hold the controller for a second and
more. Rules:

- As many changes as one step plans are taken in at once: nodes first, then pods.
- Of more, each step takes some nodes with their pods, so no node ever looks emptier than it is. Pods without a node,
  which may wait, come last. Nothing is planned or written before the step after that.
- Where many have changed again by then, they are taken in by steps once more, and events that come meanwhile are held
  (:attr:`Absorption.holds_events`). So a step plans at last, however fast the cluster changes.
"""

from collections import deque
from collections.abc import Collection

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.evictions.mover import Mover
from tessera.controller.slicing.evictions.overstays import Overstays
from tessera.controller.slicing.evictions.unbound_pods import UnboundPods
from tessera.controller.slicing.planning.allocation_lifecycle import AllocationLifecycle
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits.planning import ABSORBED_CHANGES, BATCH_PODS


class Absorption:
    """Brings the state in line with changed nodes and pods.

    Args:
        state: the slicer's state.
        lifecycle: takes in a node or a pod.
        mover: is told of pods.
        watchers: are told of pods.

    Attributes:
        is_done: True if the last step took in all changes.
        has_begun: True once a step was taken.
    """

    def __init__(
        self,
        state: SlicerState,
        lifecycle: AllocationLifecycle,
        mover: Mover,
        watchers: tuple[Overstays, UnboundPods],
    ) -> None:
        self._state = state
        self._cluster = state.cluster
        self._lifecycle = lifecycle
        self._mover = mover
        self._watchers = watchers
        self.is_done = True
        self.has_begun = False
        #: Changes that later steps take in, in order: a node and its changed pods. The node is "" for pods without one.
        self._left: deque[tuple[NodeName, list[PodUid]]] = deque()
        #: How often changes were divided since the last step that took in all.
        self._divisions = 0
        #: Nodes that were taken in since the last :meth:`pop_nodes`.
        self._nodes: set[NodeName] = set()

    @property
    def are_few(self) -> bool:
        """True if one step can take in all that has changed since the last one."""
        return len(self._cluster.changed_nodes) <= ABSORBED_CHANGES and len(self._cluster.changed_pods) <= BATCH_PODS

    @property
    def holds_events(self) -> bool:
        """True if events must be held, since many changes are taken in by steps for a second time."""
        return self._divisions > 1

    def step(self) -> None:
        """Takes in all changes, or some of many."""
        self.has_begun = True
        self.is_done = not self._left and self.are_few
        if self.is_done:
            self._divisions = 0
            nodes, self._cluster.changed_nodes = self._cluster.changed_nodes, set()
            self._absorb_nodes(nodes)
            changed, self._cluster.changed_pods = self._cluster.changed_pods, set()
            self._absorb_pods(changed)
            return
        if not self._left:
            self._divisions += 1
            self._left = self._divide()
        first: dict[NodeName, None] = {}
        pods: set[PodUid] = set()
        while self._left and len(first) + len(pods) < ABSORBED_CHANGES:
            node, there = self._left.popleft()
            if node:
                first[node] = None
            pods.update(there)
        self._absorb_nodes(first)
        self._cluster.changed_pods -= pods
        self._absorb_pods(pods)
        if self._state.devices.used:
            self._state.ratings.update()

    def pop_nodes(self) -> set[NodeName]:
        """Returns the nodes that were taken in since the last call."""
        found, self._nodes = self._nodes, set()
        return found

    def _divide(self) -> deque[tuple[NodeName, list[PodUid]]]:
        """Takes the changes over: each node with its changed pods, then one by one the pods without a changed node."""
        nodes, self._cluster.changed_nodes = self._cluster.changed_nodes, set()
        changed, self._cluster.changed_pods = self._cluster.changed_pods, set()
        there: dict[NodeName, list[PodUid]] = {node: [] for node in sorted(nodes)}
        others: list[tuple[NodeName, list[PodUid]]] = []
        for uid in sorted(changed):
            pod = self._cluster.pods.get(uid)
            home = pod.node or self._cluster.required_node(pod) if pod is not None else None
            if home in there:
                there[home].append(uid)
            else:
                others.append((NodeName(""), [uid]))
        return deque([*there.items(), *others])

    def _absorb_nodes(self, nodes: Collection[NodeName]) -> None:
        if nodes:
            self._state.serving_nodes.clear()
        for node in sorted(nodes):
            self._lifecycle.absorb_node(node)
        self._lifecycle.recount_devices()
        self._nodes.update(nodes)

    def _absorb_pods(self, pods: Collection[PodUid]) -> None:
        for uid in sorted(pods):
            self._lifecycle.absorb_pod(uid)
            self._mover.observe(uid)
            for watcher in self._watchers:
                watcher.observe(uid)
        if self._state.devices.used:
            self._state.ratings.refresh()
