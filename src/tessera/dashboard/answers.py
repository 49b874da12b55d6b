"""What the page says unasked, in the words of ``tessera why``: why pods wait, and how far nodes are on their way.

The documents of nodes tell their drivers and their starts. The pods are those that kube-scheduler places, and all
waiting pods while no controller answers. The answers are made from the objects that the page mirrors, in a thread of
their own, since one plan for thousands of pods takes a while.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tessera.api.nodes.node_marks import UPGRADE_STATE_LABEL
from tessera.dashboard.card_documents import waiting_pod
from tessera.dashboard.documents import DriverDocument, NodeDocument, PhaseDocument, StartupDocument
from tessera.driver.node_facts import read_node_facts
from tessera.driver.node_status import read_status
from tessera.explain.explanation import Explanation
from tessera.explain.node_startup import explain_startup
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.forecast.queue_page import QueuePage
from tessera.kube.resources import Node, Pod
from tessera.provisioning.milestones import node_phases
from tessera.provisioning.timestamps import record_on

#: The kinds of a snapshot that the page does not mirror.
NOT_MIRRORED = frozenset({"leases", "events"})


def node_documents(nodes: Iterable[Node], now: float) -> Iterator[NodeDocument]:
    """Yields a document for each node that has something to tell.

    Args:
        nodes: all nodes.
        now: seconds since 1970.
    """
    # The view of one node's start needs no other object; without pods it makes no plan.
    view = ClusterView(Snapshot(now=now, forbidden=frozenset({"pods"})))
    for node in nodes:
        driver, startup = _driver(node), _startup(view, node)
        if driver is not None or startup is not None:
            yield NodeDocument(node=node.metadata.name, driver=driver, startup=startup)


def _driver(node: Node) -> DriverDocument | None:
    status = read_status(read_node_facts(node).status_annotation)
    if status is None:
        return None
    return DriverDocument(
        strategy=status.strategy.value,
        phase=status.phase.value,
        version=status.version,
        since=status.since,
        reason=status.text if status.outdated or not status.serves else "",
        upgrade=node.metadata.labels.get(UPGRADE_STATE_LABEL, ""),
        offered=status.offered,
    )


def _startup(view: ClusterView, node: Node) -> StartupDocument | None:
    found, record = explain_startup(view, node), record_on(node)
    if found is None or record is None:
        return None
    seconds = node_phases(record).seconds
    return StartupDocument(
        verdict=found.verdict,
        overdue=found.case == "overdue",
        facts=found.facts,
        phases=tuple(
            PhaseDocument(name=each.value, seconds=round(took, 1)) for each, took in seconds.items() if took is not None
        ),
    )


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


def explain_waiting(waiting: Sequence[Pod], objects: Snapshot, page: QueuePage | None = None) -> dict[str, Explanation]:
    """The reasons of pods by ``namespace/name``. Whether a controller runs is not asked here.

    Args:
        waiting: the pods.
        objects: what the page mirrors.
        page: the controller's queue, if it could be read.
    """
    view = ClusterView(replace(objects, page=page))
    return {f"{pod.metadata.namespace}/{pod.metadata.name}": explain_pod(view, pod) for pod in waiting}
