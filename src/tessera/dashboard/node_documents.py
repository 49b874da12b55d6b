"""Makes the documents of nodes: their drivers, and their way to usable cards. Pure."""

from collections.abc import Iterable, Iterator

from tessera.api.nodes.node_marks import UPGRADE_STATE_LABEL
from tessera.dashboard.documents import DriverDocument, NodeDocument, PhaseDocument, StartupDocument
from tessera.driver.node_facts import read_node_facts
from tessera.driver.node_status import read_status
from tessera.explain.node_startup import explain_startup
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.kube.resources import Node
from tessera.provisioning.milestones import node_phases
from tessera.provisioning.timestamps import record_on


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
