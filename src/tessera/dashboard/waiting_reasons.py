"""Why pods wait, in the words of ``tessera why``, for the queue of the live page.

The answers are made from the objects that the page mirrors, in a thread of their own, since one plan for thousands of
pods takes a while. Whether a controller runs is not asked here; the full answer for one pod asks it.
"""

from collections.abc import Sequence

from tessera.api.instaslice import Instaslice
from tessera.dashboard.card_documents import waiting_pod
from tessera.explain.explanation import Explanation
from tessera.explain.order_objects import OrderObjects
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.forecast.queue_page import QueuePage
from tessera.kube.resources import Node, Pod
from tessera.limits.processes import PAGE_REASONS


def explain_waiting(
    now: float,
    pods: Sequence[Pod],
    nodes: Sequence[Node],
    instaslices: Sequence[Instaslice],
    order: OrderObjects | None = None,
    *,
    page: QueuePage | None = None,
) -> dict[str, Explanation]:
    """The reasons by ``namespace/name``, of the pods that have waited longest; at most :data:`PAGE_REASONS`.

    Args:
        now: seconds since 1970.
        pods: all pods of the cluster.
        nodes: all nodes.
        instaslices: the Instaslice objects of nodes.
        order: what decides on the order of pods, as far as it could be read.
        page: the controller's queue, if it could be read.
    """
    waiting = [(found.since, pod) for pod in pods if (found := waiting_pod(pod)) is not None]
    if not waiting:
        return {}
    oldest = sorted(waiting, key=lambda each: (each[0], each[1].metadata.name))[:PAGE_REASONS]
    snapshot = Snapshot(
        now=now,
        pods=pods,
        nodes=nodes,
        instaslices=instaslices,
        forbidden=frozenset({"leases", "events"}),
        order=order or OrderObjects(),
        page=page,
    )
    view = ClusterView(snapshot)
    return {f"{pod.metadata.namespace}/{pod.metadata.name}": explain_pod(view, pod) for _, pod in oldest}
