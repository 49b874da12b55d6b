"""Documents of nodes: their drivers, and nodes on their way."""

from tests.explain.test_node_startup import M, record
from tests.provisioning.conftest import T0, driver, make_node

from tessera.api.nodes.node_marks import UPGRADE_STATE_LABEL, DriverPhase, DriverStrategy
from tessera.dashboard.answers import node_documents
from tessera.dashboard.documents import NodeDocument
from tessera.kube.resources import Node
from tessera.provisioning.history import encode_record
from tessera.provisioning.milestones import PROVISIONING_ANNOTATION


def only(node: Node, now: float = 100) -> NodeDocument:
    (found,) = node_documents([node], T0 + now)
    return found


def test_a_node_without_a_driver_and_a_start_has_no_document() -> None:
    assert list(node_documents([make_node()], T0)) == []


def test_a_node_on_its_way_tells_its_phases_and_what_it_waits_for() -> None:
    way = encode_record(record(ready=20, labelled=30))
    found = only(make_node(annotations={PROVISIONING_ANNOTATION: way}))
    assert found.startup is not None
    assert not found.startup.overdue
    assert "pulling its driver's image" in found.startup.verdict
    phases = {each.name: each.seconds for each in found.startup.phases}
    assert phases[M.READY.value] == 20.0
    assert phases[M.LABELLED.value] == 10.0


def test_a_driver_tells_its_phase_and_the_state_of_the_rollout() -> None:
    status = driver(strategy=DriverStrategy.BUILT, phase=DriverPhase.FAILED, reason="no headers")
    found = only(make_node(annotations=status, labels={UPGRADE_STATE_LABEL: "drain-required"}))
    assert found.driver is not None
    assert (found.driver.strategy, found.driver.phase, found.driver.reason) == ("built", "failed", "no headers")
    assert found.driver.upgrade == "drain-required"
    assert found.startup is None
