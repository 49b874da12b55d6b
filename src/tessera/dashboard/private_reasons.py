"""Why a pod waits, for a reader who may not see everything: the words of ``tessera why`` with aliases in them.

1. The names of nodes and pods that the reader may not see are replaced in the objects *before* the explanation is made
   from them, by the aliases that the page shows. So no text can name what its maker did not know.
2. Free texts of nodes are left out: messages of conditions, and annotations other than the offers.
3. A name that stands in a label, such as that of the host, is replaced in the finished text.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.api.instaslice import Instaslice, PodRef
from tessera.api.nodes.agent_pod import is_agent
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.dashboard.visibility import HIDDEN, Redactor, Visibility
from tessera.explain.explanation import Explanation
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.kube.resources import Node, Pod

_replace = msgspec.structs.replace


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a cluster at one time; ``now`` is in seconds since 1970."""

    now: float
    pods: Sequence[Pod]
    nodes: Sequence[Node]
    instaslices: Sequence[Instaslice]


def explain_privately(objects: Objects, pod: Pod, visibility: Visibility, redactor: Redactor) -> Explanation:
    """Explains a pod to a reader who may list the pods of its namespace."""
    shown = objects if visibility.full else _Aliases(visibility, redactor).hide(objects)
    (about,) = (each for each in shown.pods if each.metadata.uid == pod.metadata.uid)
    snapshot = Snapshot(
        now=shown.now,
        pods=shown.pods,
        nodes=shown.nodes,
        instaslices=shown.instaslices,
        forbidden=frozenset({"leases", "events"}),
    )
    found = explain_pod(ClusterView(snapshot), about)
    if visibility.nodes:
        return found
    clean = _cleaner({node.metadata.name: redactor.node(node.metadata.name) for node in objects.nodes})
    return _replace(
        found, verdict=clean(found.verdict), facts=tuple(map(clean, found.facts)), help=tuple(map(clean, found.help))
    )


def _cleaner(aliases: Mapping[str, str]) -> Callable[[str], str]:
    """Replaces whole names in a text; of two that begin alike the longer one."""
    if not aliases:
        return lambda text: text
    names = "|".join(re.escape(name) for name in sorted(aliases, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w.~-])(?:{names})(?![\w-]|\.\w)")
    return lambda text: pattern.sub(lambda found: aliases[found[0]], text)


class _Aliases:
    """Replaces names for one reader."""

    def __init__(self, visibility: Visibility, redactor: Redactor) -> None:
        self._visibility = visibility
        self._redactor = redactor

    def hide(self, objects: Objects) -> Objects:
        return Objects(
            now=objects.now,
            pods=[self._pod(each) for each in objects.pods],
            nodes=[self._node_object(each) for each in objects.nodes],
            instaslices=[self._instaslice(each) for each in objects.instaslices],
        )

    def _node(self, name: str) -> str:
        return name if self._visibility.nodes or not name else self._redactor.node(name)

    def _visible(self, namespace: str) -> bool:
        return self._visibility.namespaces is None or namespace in self._visibility.namespaces

    def _pod(self, pod: Pod) -> Pod:
        metadata = pod.metadata
        if not self._visible(metadata.namespace):
            alias = self._redactor.pod(metadata.namespace, metadata.name)
            namespace = metadata.namespace if is_agent(pod) else HIDDEN
            conditions = tuple(_replace(each, message="") for each in pod.status.conditions)
            status = _replace(pod.status, message="", conditions=conditions)
            pod = _replace(pod, metadata=_replace(metadata, name=alias, namespace=namespace), status=status)
        return _replace(pod, spec=_replace(pod.spec, node_name=self._node(pod.spec.node_name)))

    def _node_object(self, node: Node) -> Node:
        if self._visibility.nodes:
            return node
        metadata = node.metadata
        annotations = {key: text for key, text in metadata.annotations.items() if key == OFFERS_ANNOTATION}
        conditions = tuple(_replace(each, message="") for each in node.status.conditions)
        return _replace(
            node,
            metadata=_replace(metadata, name=self._node(metadata.name), annotations=annotations),
            status=_replace(node.status, conditions=conditions),
        )

    def _instaslice(self, item: Instaslice) -> Instaslice:
        requests = {
            uid: _replace(request, pod_ref=_replace(request.pod_ref, **self._reference(request.pod_ref)))
            for uid, request in item.spec.pod_allocation_requests.items()
        }
        results = {
            uid: _replace(result, nodename=self._node(result.nodename))
            for uid, result in item.status.pod_allocation_results.items()
        }
        return _replace(
            item,
            metadata=_replace(item.metadata, name=self._node(item.metadata.name)),
            spec=_replace(item.spec, pod_allocation_requests=requests),
            status=_replace(item.status, pod_allocation_results=results),
        )

    def _reference(self, reference: PodRef) -> dict[str, str]:
        if self._visible(reference.namespace):
            return {}
        return {"namespace": HIDDEN, "name": self._redactor.pod(reference.namespace, reference.name)}
