"""Caches of nodes, pods and DaemonSets for drivers; decides which of their changes start a planning round.

Nodes send heartbeats, and thousands of pods come and go. A planning round begins only if a node's facts changed, if a
pod concerns drivers, or if the pod's node is being upgraded. While there is nothing to do for drivers, nodes and pods
are read during a round only, and a node on which a driver has left traces begins one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from tessera.api.nodes.node_marks import TOOLKIT_APP, has_driver_traces
from tessera.driver.driver_sets import APP_LABEL, NAMESPACE, SPEC_ANNOTATION, set_of
from tessera.driver.node_facts import (
    DriverNodeFacts,
    UpgradeState,
    equal_except_version,
    parse_upgrade_state,
    read_node_facts,
)
from tessera.driver.planning.interface import ExistingSet
from tessera.driver.pod_facts import NodePods, concerns_drivers, read_node_pods
from tessera.driver.rollout.node_view import DesiredDriver, NodeView, live_pods, read_node_view, read_pod_view
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.informer import Informer
from tessera.kube.resources import DaemonSet, Node, Pod

#: Label ``app.kubernetes.io/name`` of pods that run this process's image.
_OWN_APP = "tessera-controller"


class ClusterCache:
    """Nodes, pods and DaemonSets as the watches show them.

    Args:
        nodes: mirrors all nodes.
        pods: mirrors all pods.
        sets: mirrors DaemonSets in Tessera's namespace.
        changed: called after a relevant change, with the keys of writes that may be decided again.
        pods_changed: called after driver-related pods changed on a node.

    Attributes:
        facts: facts of nodes, by name.
    """

    def __init__(
        self,
        nodes: Informer[Node],
        pods: Informer[Pod],
        sets: Informer[DaemonSet],
        *,
        changed: Callable[[Iterable[str]], None],
        pods_changed: Callable[[NodePods], None],
    ) -> None:
        self.facts: dict[str, DriverNodeFacts] = {}
        self._nodes = nodes
        self._pods = pods
        self._sets = sets
        self._changed = changed
        self._pods_changed = pods_changed
        #: End the handlers of nodes and pods.
        self._ends: list[Callable[[], None]] = []
        self._follows = False
        #: True while handlers get what the caches have: that is no change.
        self._quiet = False
        #: All pods by node and ``namespace/name``. A node without pods has no entry.
        self._on_node: dict[str, dict[str, Pod]] = {}
        #: The driver-related pods read from ``_on_node``; a change of such a pod on the node removes the entry.
        self._pod_facts: dict[str, NodePods] = {}
        #: If pods use each node's GPUs; a change of any pod on the node removes the entry.
        self._in_use: dict[str, bool] = {}

    def start(self) -> list[Callable[[], None]]:
        """Starts following the watches; returns functions that stop it."""
        self.follow()
        return [self._sets.add_handler(self._on_set_event), self._leave]

    def follow(self) -> None:
        """Begins to follow nodes and pods, unless they are followed; a round needs them."""
        if not self._follows:
            self._quiet = bool(self._ends)
            self._leave()
            self._follows = True
            self._ends = [self._nodes.add_handler(self._on_node_event), self._pods.add_handler(self._on_pod_event)]
            self._quiet = False

    def rest(self) -> None:
        """Ends that, after a round without a policy, a driver of Tessera's and anything to do."""
        self._leave()
        self._quiet = True
        self._ends = [
            self._nodes.add_handler(
                lambda _: self._tell(()),
                only=has_driver_traces,
                reads=lambda node: msgspec.structs.replace(read_node_facts(node), version=""),
            )
        ]
        self._quiet = False

    def _leave(self) -> None:
        for end in self._ends:
            end()
        self._ends, self._follows = [], False
        for known in (self.facts, self._on_node, self._pod_facts, self._in_use):
            known.clear()

    def _tell(self, keys: Iterable[str]) -> None:
        if not self._quiet:
            self._changed(keys)

    def pods_of(self, name: str) -> NodePods:
        """The driver-related pods on a node."""
        found = self._pod_facts.get(name)
        if found is None:
            found = self._pod_facts[name] = read_node_pods(self._on_node.get(name, {}).values())
        return found

    def existing_sets(self) -> dict[str, ExistingSet]:
        """The driver sets that have a DaemonSet, by id."""
        found: dict[str, ExistingSet] = {}
        for each in self._sets.cache.values():
            made = set_of(each.metadata)
            if made is not None and each.metadata.deletion_timestamp is None:
                found[made.id] = ExistingSet(set=made, uid=each.metadata.uid)
        return found

    def node_views(self, wanted: Mapping[str, DesiredDriver], now: float) -> Iterator[NodeView]:
        """The rollout's views of nodes that have a driver, or are between two."""
        for name, each in wanted.items():
            node, facts = self._nodes.cache.get(name), self.facts.get(name)
            if node is not None and facts is not None and (facts.driver_set or facts.record_annotation):
                pods = list(self._on_node.get(name, {}).values())
                yield read_node_view(node, pods, each, validated=self.pods_of(name).validated, now=now)

    def nodes_in_use(self) -> frozenset[str]:
        """Nodes with a set whose GPUs are used by pods that can be evicted."""
        return frozenset(name for name, facts in self.facts.items() if facts.driver_set and self._is_in_use(name))

    def _is_in_use(self, name: str) -> bool:
        found = self._in_use.get(name)
        if found is None:
            pods = live_pods(self._on_node.get(name, {}).values())
            found = self._in_use[name] = any(each.gpu and not each.stays for each in pods)
        return found

    @property
    def has_toolkit(self) -> bool:
        """True if the container toolkit has a DaemonSet."""
        return f"{NAMESPACE}/{TOOLKIT_APP}" in self._sets.cache

    def toolkit_spec(self) -> str:
        """Hash of the spec of the toolkit's DaemonSet; empty if there is none."""
        found = self._sets.cache.get(f"{NAMESPACE}/{TOOLKIT_APP}")
        return found.metadata.annotations.get(SPEC_ANNOTATION, "") if found is not None else ""

    def own_image(self, identity: str) -> str:
        """The image that a pod of this process runs; empty if the cache has none."""
        own = self._pods.cache.get(f"{NAMESPACE}/{identity}") if identity else None
        found = [own] if own is not None else [each for each in self._pods.cache.values() if _is_own(each)]
        return next((each.spec.containers[0].image for each in found if each.spec.containers), "")

    # Changes in the watches

    def _on_node_event(self, event: WatchEvent[Node]) -> None:
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self.facts.pop(name, None)
            self._in_use.pop(name, None)
            self._tell(())
            return
        facts, before = read_node_facts(event.object), self.facts.get(name)
        self.facts[name] = facts
        if before is None or _is_changing(facts) or not equal_except_version(before, facts):
            self._tell(_write_keys(before, facts))

    def _on_pod_event(self, event: WatchEvent[Pod]) -> None:
        pod = event.object
        if not pod.spec.node_name:
            return
        name, key = pod.spec.node_name, f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._in_use.pop(name, None)
        pods = self._on_node.setdefault(name, {})
        if event.kind is EventKind.DELETED:
            pods.pop(key, None)
            if not pods:
                del self._on_node[name]
        else:
            pods[key] = pod
        if self._quiet:
            return
        facts = self.facts.get(name)
        if concerns_drivers(pod):
            self._pod_facts.pop(name, None)
            self._pods_changed(self.pods_of(name))
            self._tell((f"validation/{name}",))
        elif facts is not None and (_is_changing(facts) or (facts.driver_set and read_pod_view(pod).gpu)):
            self._tell(())

    def _on_set_event(self, event: WatchEvent[DaemonSet]) -> None:
        name = event.object.metadata.name
        self._changed((f"set/{name}", *(("toolkit",) if name == TOOLKIT_APP else ())))


def _write_keys(before: DriverNodeFacts | None, facts: DriverNodeFacts) -> Iterator[str]:
    """Keys of a node's writes that a change may show; a status counts as shown only by a write of the status itself."""
    if before is None or before.labels != facts.labels:
        yield f"label/{facts.name}"
    if before is None or before.status_annotation != facts.status_annotation:
        yield f"status/{facts.name}"
    if before is None or before.condition != facts.condition:
        yield f"condition/{facts.name}"


def _is_changing(facts: DriverNodeFacts) -> bool:
    """True if the rollout is changing a node, so that every pod on it matters."""
    return parse_upgrade_state(facts.upgrade_state) not in {UpgradeState.NONE, UpgradeState.DONE}


def _is_own(pod: Pod) -> bool:
    return pod.metadata.namespace == NAMESPACE and pod.metadata.labels.get(APP_LABEL) == _OWN_APP
