"""Tests for the one reading of a node's condition Ready, and for those who use it."""

import pytest

from tessera.api.nodes.silence import SilentNode
from tessera.controller.objects.node_info import read_node
from tessera.driver.node_facts import read_node_facts
from tessera.explain.fleet_map import map_fleet
from tessera.kube.resources import Condition, Node
from tessera.kube.resources.meta import ObjectMeta
from tessera.kube.resources.nodes import NodeStatus

GONE = "Kubelet stopped posting node status."

#: Conditions of a node, and Kubernetes' words for why it is not ready; none if it is.
CASES = [
    ((Condition(type="Ready", status="True", message="kubelet is posting ready status"),), ""),
    ((Condition(type="Ready", status="False", reason="KubeletNotReady", message="no network"),), "no network"),
    ((Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown", message=GONE),), GONE),
    ((Condition(type="Ready", status="Unknown", reason="NodeStatusUnknown"),), "NodeStatusUnknown"),
    ((Condition(type="Ready", status=""),), "kubelet is not ready"),
    ((Condition(type="DiskPressure", status="True"),), "it has no Ready condition"),
    ((), "it has no Ready condition"),
]


@pytest.mark.parametrize(("conditions", "reason"), CASES)
def test_a_node_is_ready_only_if_kubelet_says_so(conditions: tuple[Condition, ...], reason: str) -> None:
    status = NodeStatus(conditions=conditions)
    assert (status.is_ready, status.not_ready_reason) == (reason == "", reason)


@pytest.mark.parametrize(("conditions", "reason"), CASES)
def test_placement_drivers_and_the_page_agree_about_it(conditions: tuple[Condition, ...], reason: str) -> None:
    node = Node(metadata=ObjectMeta(name="n1"), status=NodeStatus(conditions=conditions))
    (shown,) = map_fleet([], silent={"n1": SilentNode(node="n1", reason="no page")}, nodes=[node])
    found = (read_node(node).ready, read_node_facts(node).ready, not shown.closed)
    assert found == (reason == "",) * 3
