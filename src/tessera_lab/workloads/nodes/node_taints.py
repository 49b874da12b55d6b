"""The node lifecycle controller's taints: a node that is not Ready takes no pods that do not tolerate it.

A node that says itself that it is not Ready has the taint ``node.kubernetes.io/not-ready`` with effect NoSchedule. The
same with NoExecute is left out: it evicts after five minutes, and a node of the lab that boots is back before that. A
node whose conditions are Unknown, since its Lease is stale (:mod:`node_lifecycle`), has ``unreachable`` with both
effects. Each goes as soon as the node is Ready.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.kube.client.errors import Conflict, NotFound
from tessera.kube.resources import NODES
from tessera.kube.resources.meta import key_of
from tessera.kube.watch.informer import EventKind
from tessera_lab.kubelet.node.node_object import NOT_READY_TAINT
from tessera_lab.workloads.base.mirrors import Mirrors
from tessera_lab.workloads.base.ownership import Json
from tessera_lab.workqueue import WorkQueue

UNREACHABLE_TAINT = "node.kubernetes.io/unreachable"

#: Taints of a node by the status of its condition Ready.
_WANTED: Mapping[str, Sequence[tuple[str, str]]] = {
    "False": ((NOT_READY_TAINT, "NoSchedule"),),
    "Unknown": ((UNREACHABLE_TAINT, "NoSchedule"), (UNREACHABLE_TAINT, "NoExecute")),
}


class NodeTaints:
    """Keeps the taint of nodes that are not Ready."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        mirrors.nodes.add_handler(self._on_node)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _on_node(self, event: Any) -> None:
        if event.kind is not EventKind.DELETED and wanted_taints(event.object) is not None:
            self._queue.add(key_of(event.object))

    async def _reconcile(self, key: str) -> None:
        node = self._mirrors.nodes.cache.get(key)
        wanted = wanted_taints(node) if node is not None else None
        if node is None or wanted is None:
            return
        metadata, patch = node["metadata"], {"spec": {"taints": wanted or None}}
        try:
            await self._mirrors.client.merge_patch(
                NODES, metadata["name"], patch, resource_version=metadata["resourceVersion"]
            )
        except (NotFound, Conflict):
            return  # the next state of the node is looked at when it comes


def wanted_taints(node: Json) -> list[Json] | None:
    """The taints that the node should have; None where they are as they should be, or the node says nothing."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((each.get("status") for each in conditions if each.get("type") == "Ready"), None)
    if ready is None:
        return None
    taints = (node.get("spec") or {}).get("taints") or []
    others = [each for each in taints if each.get("key") not in {NOT_READY_TAINT, UNREACHABLE_TAINT}]
    ours = [each for each in taints if each not in others]
    wanted = _WANTED.get(ready, ())
    if {(each["key"], each.get("effect")) for each in ours} == set(wanted):
        return None
    return [*others, *({"key": key, "effect": effect} for key, effect in wanted)]
