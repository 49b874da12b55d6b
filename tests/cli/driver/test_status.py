"""``tessera driver status``: a table of nodes, the reasons where they matter, and the same as JSON values."""

import msgspec
import pytest

from tessera.api.nodes.node_marks import (
    DRIVER_ANNOTATION,
    DriverPhase,
    DriverStatus,
    DriverStrategy,
    RejectedStrategy,
)
from tessera.cli.base.simulated_cluster import has_virtual_time
from tessera.cli.driver.status import NodeDriver, is_stuck, node_drivers, status_lines
from tessera.clock import SystemClock
from tessera.driver.node_status import encode_status
from tessera.kube.client import Client
from tessera.kube.resources import Node, NodeStatus, NodeSystemInfo
from tessera.kube.resources.meta import ObjectMeta
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

NOW = 1_800_000_300.0
STATUS = DriverStatus(
    strategy=DriverStrategy.PRECOMPILED,
    phase=DriverPhase.READY,
    since="2027-01-15T08:00:00Z",
    image="nvcr.io/nvidia/driver@sha256:" + "a" * 64,
    tag="525.125.06-5.15.0-69-generic-ubuntu22.04",
    version="525.125.06",
    pool="ubuntu22.04 5.15.0-69-generic amd64",
    set="0123456789",
    reason="It has modules for this kernel.",
    rejected=(
        RejectedStrategy(strategy=DriverStrategy.PREINSTALLED, reason="Nothing says that the host has a driver."),
    ),
)


def node(name: str, status: DriverStatus | None = None, *, gpu: bool = True) -> Node:
    annotations = {DRIVER_ANNOTATION: encode_status(status)} if status is not None else {}
    labels = {"nvidia.com/gpu.present": "true"} if gpu else {}
    return Node(metadata=ObjectMeta(name=name, labels=labels, annotations=annotations))


def shown(*nodes: Node, verbose: bool = False) -> list[str]:
    return list(status_lines(node_drivers(nodes, now=NOW), verbose=verbose))


def test_a_node_that_serves_is_one_line() -> None:
    head, row = shown(node("a", STATUS))
    assert head == ("NODE   STRATEGY      PHASE   SINCE   VERSION      POOL                                  IMAGE")
    assert row.split() == [
        *("a", "precompiled", "ready", "5m", "525.125.06", "ubuntu22.04", "5.15.0-69-generic", "amd64"),
        "nvcr.io/nvidia/driver@sha256:aaaaaaaaaaaa",
    ]


def test_another_driver_than_the_wanted_one_is_told_below_the_row() -> None:
    _, _, reason = shown(node("a", msgspec.structs.replace(STATUS, wanted="535.104.05")))
    assert reason.strip() == "The policy names 535.104.05, the node has 525.125.06. It has modules for this kernel."


def test_verbose_tells_reasons_rejected_strategies_and_the_whole_digest() -> None:
    _, row, *reasons = shown(node("a", STATUS), verbose=True)
    assert row.endswith("a" * 64)
    reason, rejected = reasons
    assert reason == "  It has modules for this kernel."
    for fact in ("  not pre-installed: ", "Nothing says", "the host has a driver"):
        assert fact in rejected


def test_a_node_that_does_not_serve_says_why_at_once() -> None:
    waiting = msgspec.structs.replace(STATUS, phase=DriverPhase.BLOCKED, reason="No image fits.")
    assert shown(node("a", waiting))[2:] == ["  No image fits."]


def test_why_a_driver_that_works_is_to_go_is_said_without_being_asked() -> None:
    leaving = msgspec.structs.replace(STATUS, reason="No policy asks for it. It stays for a pod.", leaving=True)
    assert shown(node("a", leaving))[2:] == ["  No policy asks for it. It stays for a pod."]


def test_an_offer_is_always_told() -> None:
    offered = msgspec.structs.replace(STATUS, offered="precompiled: x@sha256:1")
    assert shown(node("a", offered))[2:] == ["  offered: precompiled: x@sha256:1"]


def test_a_node_with_cards_of_which_nothing_is_known_is_there_and_one_without_is_not() -> None:
    found = node_drivers([node("b"), node("cpu", gpu=False)], now=NOW)
    assert [each.node for each in found] == ["b"]
    assert "does not manage" in found[0].reason
    assert [each.node for each in node_drivers([node("cpu", gpu=False)], now=NOW, named=True)] == ["cpu"]


def test_how_long_a_phase_lasts_is_not_said_where_the_nodes_time_is_another() -> None:
    (found,) = node_drivers([node("a", STATUS)], now=None)
    assert (found.since, found.seconds) == ("2027-01-15T08:00:00Z", None)
    _, row = status_lines([found], verbose=False)
    assert row.split()[3] == "-"


@pytest.mark.parametrize(("leaping", "found"), [(True, True), (False, False)])
async def test_a_lab_says_that_its_time_leaps(leaping: bool, found: bool) -> None:
    clock = SystemClock()
    server = ApiServer(clock, leaps=leaping)
    user = UserInfo(name="a", groups=("system:masters",))
    client = Client(InProcessTransport(server, user), field_manager="test", clock=clock)
    simulated, real = node("a"), node("b")
    simulated = msgspec.structs.replace(
        simulated, status=NodeStatus(node_info=NodeSystemInfo(container_runtime_version="simulated://1.0"))
    )
    assert await has_virtual_time(client, [simulated, real]) is found
    assert await has_virtual_time(client, [real]) is False


def test_a_status_that_cannot_be_read_is_none() -> None:
    broken = Node(metadata=ObjectMeta(name="a", annotations={DRIVER_ANNOTATION: "{"}))
    (found,) = node_drivers([broken], now=NOW)
    assert found.phase == ""


def test_nothing_to_tell_is_told() -> None:
    assert shown() == ["No node has a card according to its labels."]


def test_what_failed_or_is_blocked_makes_the_exit_code() -> None:
    phases = [NodeDriver(node="a", phase=each.value) for each in DriverPhase]
    assert [each.phase for each in phases if is_stuck(each)] == ["failed", "blocked"]
