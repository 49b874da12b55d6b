"""The reasons of waiting pods that the controller does not list, in the words of ``tessera why``, for the live page.

These are the pods that kube-scheduler places, and all waiting pods while no controller answers. The answers are made
from the objects that the page mirrors, in a thread of their own, since one plan for thousands of pods takes a while.
"""

from collections.abc import Iterable, Sequence

from tessera.api.instaslice import Instaslice
from tessera.dashboard.card_documents import waiting_pod
from tessera.explain.explanation import Explanation
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView, OrderObjects, Snapshot
from tessera.forecast.queue_page import QueuePage
from tessera.kube.resources import Node, Pod

#: Most pods: waiting pods for which the live page shows why, those that have waited longest first. Each answer takes up
#: to a few milliseconds of CPU; the others are explained on a click.
PAGE_REASONS = 200


def waiting_pods(pods: Iterable[Pod], page: QueuePage | None = None) -> Sequence[Pod]:
    """The pods that have waited longest among those of which the controller says no reason, at most ``PAGE_REASONS``.

    Args:
        pods: all pods of the cluster.
        page: the controller's queue, if it could be read.
    """
    listed = {row.uid for row in page.pods if row.why is not None} if page is not None else set[str]()
    waiting = [
        (found.since, pod) for pod in pods if pod.metadata.uid not in listed and (found := waiting_pod(pod)) is not None
    ]
    oldest = sorted(waiting, key=lambda each: (each[0], each[1].metadata.name))[:PAGE_REASONS]
    return [pod for _, pod in oldest]


def explain_waiting(
    waiting: Sequence[Pod],
    *,
    now: float,
    pods: Sequence[Pod],
    nodes: Sequence[Node],
    instaslices: Sequence[Instaslice],
    order: OrderObjects | None = None,
    page: QueuePage | None = None,
) -> dict[str, Explanation]:
    """The reasons of pods by ``namespace/name``. Whether a controller runs is not asked here.

    Args:
        waiting: the pods.
        now: seconds since 1970.
        pods: all pods of the cluster.
        nodes: all nodes.
        instaslices: the Instaslice objects of nodes.
        order: what decides on the order of pods, as far as it could be read.
        page: the controller's queue, if it could be read.
    """
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
    return {f"{pod.metadata.namespace}/{pod.metadata.name}": explain_pod(view, pod) for pod in waiting}
