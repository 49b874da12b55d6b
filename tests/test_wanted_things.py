"""A sentence that all is well means the wanted thing, never just something in its place.

A row for each statement: what it says where the wanted thing is, and where another one works instead.
"""

from collections.abc import Callable

import msgspec
import pytest

from tessera.agent.base.settings import DesiredSharing
from tessera.agent.mig_config.events import LayoutState, LayoutStatus
from tessera.agent.node_status.node_facts import layout_condition, sharing_condition
from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, DriverPhase, DriverStatus, DriverStrategy
from tessera.cli.driver.status import node_drivers, status_lines
from tessera.dashboard.answers import node_documents
from tessera.doctor.card_checks import check_cards
from tessera.doctor.facts import Verdict
from tessera.doctor.installation_checks import check_versions
from tessera.driver.node_status import encode_status, status_condition
from tessera.explain.nodes import explain_node
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.gpu_operator.policy_status import frozen_status, summarize_nodes, unmanaged_status
from tessera.kube.resources import Condition, Node, NodeStatus
from tessera.kube.resources.meta import ObjectMeta

WANTED = DriverStatus(strategy=DriverStrategy.PRECOMPILED, phase=DriverPhase.READY, since="", version="535")
OTHER = msgspec.structs.replace(WANTED, version="525", wanted="535")


def node(status: DriverStatus) -> Node:
    shown = status_condition(status)
    well = Condition(type="GpuHealthy", status="True", reason="CardsHealthy", message="well")
    return Node(
        metadata=ObjectMeta(
            name="n1", labels={"nvidia.com/gpu.present": "true"}, annotations={DRIVER_ANNOTATION: encode_status(status)}
        ),
        status=NodeStatus(
            conditions=(Condition(type="Ready", status="True", reason=""), well, shown),
            allocatable={"nvidia.com/gpu": "1"},
        ),
    )


def _why(status: DriverStatus) -> bool:
    about = node(status)
    view = ClusterView(Snapshot(now=0.0, nodes=(about,), forbidden=frozenset({"pods", "instaslices"})))
    return explain_node(view, about).case == "as-configured"


def _page(status: DriverStatus) -> bool:
    (found,) = node_documents([node(status)], 0.0)
    return found.driver is not None and not found.driver.reason


#: Whether each statement says that all is well, for the wanted driver and for another one.
OF_DRIVERS: dict[str, Callable[[DriverStatus], bool]] = {
    "ClusterPolicy and NVIDIADriver": lambda status: summarize_nodes({"n1": status}).state == "ready",
    "GpuDriverReady": lambda status: status_condition(status).status == "True",
    "tessera driver status": lambda status: (
        len(list(status_lines(node_drivers([node(status)], now=None), verbose=False))) == 2
    ),
    "tessera why node": _why,
    "tessera doctor": lambda status: (
        next(each for each in check_cards([node(status)]) if each.check == "node-conditions").verdict is Verdict.OK
    ),
    "live page": _page,
}


@pytest.mark.parametrize("name", OF_DRIVERS)
def test_another_driver_than_the_wanted_one_is_not_well(name: str) -> None:
    assert (OF_DRIVERS[name](WANTED), OF_DRIVERS[name](OTHER)) == (True, False)


@pytest.mark.parametrize(("in_force", "status"), [("slice-4", "True"), ("slice-2", "Unknown"), ("", "Unknown")])
def test_another_profile_than_the_wanted_one_is_not_applied(in_force: str, status: str) -> None:
    assert sharing_condition(DesiredSharing(name="slice-4", reason="the label"), in_force).status == status


@pytest.mark.parametrize(
    ("state", "status"), [("success", "True"), ("pending", "Unknown"), ("rebooting", "Unknown"), ("failed", "False")]
)
def test_a_layout_that_is_on_its_way_is_not_applied(state: str, status: str) -> None:
    found = layout_condition(LayoutStatus(layout="all-1g.5gb", state=LayoutState(state)))
    assert found is not None
    assert found.status == status


def test_where_nobody_looked_nothing_is_said_to_be_there() -> None:
    assert "pre-installed" not in unmanaged_status().message
    assert frozen_status("why").state == "notReady"


@pytest.mark.parametrize(("runs", "verdict"), [("tessera:2", Verdict.OK), ("tessera:1", Verdict.WARNING)])
def test_agents_of_another_version_than_the_wanted_one_are_not_well(runs: str, verdict: Verdict) -> None:
    labels = {"app.kubernetes.io/name": "tessera-agent"}
    pod = {"metadata": {"name": "a", "labels": labels}, "spec": {"containers": [{"name": "agent", "image": runs}]}}
    template = {"spec": {"containers": [{"name": "agent", "image": "tessera:2"}]}}
    wanted = {"metadata": {"name": "tessera-agent", "namespace": "tessera-system"}, "spec": {"template": template}}
    assert check_versions([pod], [wanted]).verdict is verdict
