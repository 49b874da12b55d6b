"""Nodes on their way to usable cards in whole clusters: the real controller, agents, and drivers; simulated time."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.cluster.new_nodes import COSTS, GPU, K1, K2, K3, Nodes

from tessera.api.nodes.node_marks import PROVISIONED
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.resources import NODES
from tessera.nvml.errors import UnknownNvmlError
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, Span, node_phases, span_seconds
from tessera.provisioning.startup_deadline import STARTUP_TAINT

M = Milestone
Play = Callable[..., None]


def test_a_new_node_is_followed_from_the_pod_that_asked_for_it_to_the_pod_that_runs(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy()
        await lab.create("job", GPU)
        await lab.clock.sleep(90)  # a machine is made
        lab.add("gpu-1")
        await lab.until(lambda: lab.done("gpu-1", M.PULLED), "its driver's image is there")
        answer = await lab.why("gpu-1")
        assert answer.case == "starting-up"
        assert "in phase driver for" in answer.verdict
        await lab.running("job")
        await lab.until(lambda: lab.done("gpu-1", M.WORKLOAD), "the way is over", seconds=30)

        found = lab.record("gpu-1")
        assert found is not None
        assert (found.strategy, found.group, found.simulated) == ("precompiled", "gpus", True)
        assert found.at.keys() == set(M) - {M.VM}
        assert found.at[M.REGISTERED] - found.at[M.REQUESTED] == pytest.approx(90, abs=2)
        phases = node_phases(found)
        assert phases.total is not None
        assert phases.unattributed == pytest.approx(90, abs=2)  # who made the machine told nobody
        known = sum(each for each in phases.seconds.values() if each is not None)
        assert known + (phases.unattributed or 0) == pytest.approx(phases.total, abs=1)
        order = [found.at[each] for each in (M.PULLED, M.DRIVER, M.TOOLKIT, M.VALIDATED, M.ALLOCATABLE, M.WORKLOAD)]
        assert all(after >= before - 1 for before, after in itertools.pairwise(order))
        assert lab.taints("gpu-1") == []
        assert lab.condition(PROVISIONED, "gpu-1")[:2] == ("True", "Provisioned")

        await lab.clock.sleep(30)
        assert (await lab.kept())["gpu-1"].at == found.at
        assert any(each.startswith("came up") for each in (await lab.why("gpu-1")).facts)
        await lab.cluster.remove_node("gpu-1")
        await lab.clock.sleep(60)
        assert (await lab.kept())["gpu-1"].at == found.at

    with_new_nodes(scenario)


LEFT_OUT = "nvidia.com/gpu.deploy.driver"
BEFORE: dict[str, dict[str, Any]] = {"disabled": {"enabled": False}, "mistaken": {"version": 525}}


@pytest.mark.parametrize(
    ("before", "dies"),
    [
        ("no policy", True),
        *(pytest.param(each, False, marks=pytest.mark.soak) for each in ("no policy", "left out", *BEFORE)),
    ],
)
def test_the_time_in_which_nobody_asked_for_a_driver_is_no_time_to_a_gpu(
    with_new_nodes: Play, before: str, *, dies: bool
) -> None:
    async def scenario(lab: Nodes) -> None:
        lab.add("gpu-1", labels={LEFT_OUT: "false"} if before == "left out" else {})
        if before == "left out":
            await lab.policy()
        elif before != "no policy":
            await lab.client.apply(CLUSTER_POLICIES, "cluster-policy", {"spec": {"driver": BEFORE[before]}})
        await lab.clock.sleep(600)
        await lab.client.merge_patch(NODES, "gpu-1", {"metadata": {"labels": {LEFT_OUT: None}}})
        await lab.policy()
        await lab.until(lambda: (found := lab.record("gpu-1")) and found.asked, "its driver is asked for", seconds=30)
        if dies:
            await lab.kill()
        await lab.until(lambda: lab.done("gpu-1", M.ALLOCATABLE), "it came up", seconds=600)
        await lab.clock.sleep(30)
        found = (await lab.kept())["gpu-1"]
        assert found.late
        took = span_seconds(found, Span.AFTER_LABELLED)
        assert took is not None
        assert 30 < took < 300
        assert [span_seconds(found, part) for part in (Span.TOTAL, Span.PROVISIONED, Span.STARTUP)] == [None] * 3
        assert any("s after a driver was requested" in each for each in (await lab.why("gpu-1")).facts)

    with_new_nodes(scenario)


def test_the_strategy_shows_in_the_phase_that_it_shortens(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy()
        lab.add("fast", K1)
        lab.add("slow", K2)
        await lab.until(lambda: lab.taints("fast") == lab.taints("slow") == [], "both are there", seconds=1200)
        await lab.clock.sleep(30)
        kept = await lab.kept()
        assert (kept["fast"].strategy, kept["slow"].strategy) == ("precompiled", "built")
        drivers = {name: node_phases(each).seconds[M.DRIVER] for name, each in kept.items()}
        assert drivers["slow"] is not None
        assert drivers["fast"] is not None
        assert drivers["slow"] - drivers["fast"] > COSTS.compile_seconds * 0.8
        assert all(span_seconds(each, Span.STARTUP) is not None for each in kept.values())

    with_new_nodes(scenario)


def test_the_taint_goes_within_a_scan_of_the_autoscaler(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy()
        lab.add("gpu-1")
        await lab.until(lambda: lab.gpus("gpu-1") == GPU, "its card is given out")
        await lab.until(lambda: lab.taints("gpu-1") == [], "the taint is off", seconds=10)

    with_new_nodes(scenario)


def test_a_node_whose_driver_never_comes_is_told_of_at_its_deadline(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy(version="1.2.3")
        lab.add("gpu-1", K3)
        await lab.clock.sleep(880)
        assert lab.condition(PROVISIONED, "gpu-1")[0] == ""
        await lab.until(lambda: lab.condition(PROVISIONED, "gpu-1")[0] == "False", "it is overdue", seconds=60)
        _status, reason, message = lab.condition(PROVISIONED, "gpu-1")
        assert reason == "DriverNotPulled"
        assert "blocked" in message
        assert lab.taints("gpu-1") == [STARTUP_TAINT]
        assert (await lab.why("gpu-1")).case == "overdue"
        await lab.clock.sleep(4000)
        assert "gpu-1" in lab.nodes.cache  # nobody asked for replacements

    with_new_nodes(scenario)


def test_a_mig_layout_that_cannot_be_made_keeps_the_taint_until_it_is(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.config_map("mig-layouts", {"config.yaml": LAYOUTS})
        lab.add("gpu-1", cards="A100-40GB", labels={"nvidia.com/mig.config": "two"})
        lab.cluster.nodes["gpu-1"].machine.fail("create_compute_instance", UnknownNvmlError, times=None)  # type: ignore[union-attr]
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied", "gpu-1")[0] == "False", "the layout fails")
        await lab.clock.sleep(300)
        assert lab.taints("gpu-1") == [STARTUP_TAINT]
        lab.cluster.nodes["gpu-1"].machine.heal()  # type: ignore[union-attr]
        await lab.until(lambda: lab.condition("GpuMigLayoutApplied", "gpu-1")[0] == "True", "the layout is made")
        await lab.until(lambda: lab.taints("gpu-1") == [], "the taint is off", seconds=10)
        assert lab.gpus("gpu-1") == {"nvidia.com/mig-3g.20gb": 2}

    with_new_nodes(scenario, drivers=False)


LAYOUTS = """
version: v1
mig-configs:
  two:
    - devices: all
      mig-enabled: true
      mig-devices: {3g.20gb: 2}
"""


@pytest.mark.soak
@pytest.mark.parametrize("every", [7, 23, 61])
def test_a_controller_that_dies_again_and_again_knows_what_objects_say(with_new_nodes: Play, every: float) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.policy()
        lab.add("gpu-1")
        for _ in range(int(300 / every)):
            await lab.clock.sleep(every)
            await lab.kill()
        await lab.until(lambda: lab.taints("gpu-1") == [], "it is there", seconds=1200)
        await lab.clock.sleep(60)
        found = (await lab.kept())["gpu-1"]
        assert {M.REGISTERED, M.READY, M.PULLED, M.DRIVER, M.TOOLKIT, M.VALIDATED} <= found.at.keys()
        assert all(each is None or each >= 0 for each in node_phases(found).seconds.values())
        assert found.usable

    with_new_nodes(scenario)


def test_where_the_host_has_the_driver_its_phases_take_no_time(with_new_nodes: Play) -> None:
    async def scenario(lab: Nodes) -> None:
        await lab.create("job", GPU)
        await lab.clock.sleep(30)
        lab.add("gpu-1")
        await lab.running("job")
        await lab.until(lambda: lab.done("gpu-1", M.WORKLOAD), "the way is over", seconds=60)
        found = lab.record("gpu-1")
        assert found is not None
        seconds = node_phases(found).seconds
        assert seconds[M.DRIVER] == seconds[M.TOOLKIT] == 0
        assert msgspec.structs.replace(found, at={}) == ProvisioningRecord(
            node="gpu-1", uid=found.uid, group="gpus", simulated=True
        )

    with_new_nodes(scenario, drivers=False)
