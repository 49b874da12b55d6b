"""A whole cluster with an autoscaler, on virtual time: what short timers do while drivers come late.

The nodes take what Red Hat measured from Ready to a running workload: 369 s with drivers that are built, 217 s with
precompiled ones, in the reference operator's order of steps. Everything here is simulated.
"""

import pytest
from tests.support.virtual_lab import ENTRYPOINT

from tessera.clock import LoopClock
from tessera.kube.resources import NODES, PODS
from tessera.provisioning import timers as advised
from tessera.provisioning.start_times import GroupTimes
from tessera.provisioning.timer_advice import Labels, Rank, findings
from tessera.provisioning.timers import advise
from tessera_lab.cloud.autoscaler.process import LONGEST_NAME, parse_group, parse_groups, run_autoscaler
from tessera_lab.cloud.autoscaler.rules import AutoscalerTimers
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.daemon import lab_folder
from tessera_lab.experiments.autoscaling import AutoscalingRun, AutoscalingSettings, simulate_autoscaling
from tessera_lab.experiments.clusters import BUILT, PUBLIC, ArticleScenario
from tessera_lab.simulation.cost_model import CostModel
from tessera_lab.simulation.virtual_time import run_virtual

#: OpenShift's sample has an unneededTime of 5 minutes; its delayAfterAdd of 10 would hide what that does to one node.
FIVE = AutoscalerTimers(unneeded=300, delay_after_add=300)
#: Timers under which the drivers' own time is all that counts.
SHORT_PROVISION = AutoscalerTimers(max_node_provision=300)
#: A cloud that is so quick that a node with precompiled drivers is usable within five minutes of the request.
QUICK = CostModel(vm_seconds=30, join_seconds=20)
#: One that takes four minutes, so that a node with built drivers is not usable when the first back-off ends.
SLOW = CostModel(vm_seconds=240)


#: Simulated hours that suffice where every pod runs.
ENOUGH = 0.4


def unlabelled(scenario: ArticleScenario, maximum: int = 1, hours: float = ENOUGH) -> AutoscalingRun:
    """One pod, nodes without the accelerator label."""
    return simulate_autoscaling(
        AutoscalingSettings(scenario=scenario, timers=FIVE, labelled=False, maximum=maximum, hours=hours), ENTRYPOINT
    )


@pytest.fixture(scope="module")
def looping() -> AutoscalingRun:
    """An hour of built drivers without the label."""
    return unlabelled(BUILT, hours=1.0)


@pytest.mark.soak
def test_without_a_label_nodes_with_built_drivers_are_removed_as_empty_for_ever(looping: AutoscalingRun) -> None:
    told = looping
    assert told.ran == ()
    assert (told.made, told.lost) == (8, 7)
    kinds = [each.kind for each in told.moments]
    assert kinds[:6] == ["scale-up", "node", "removal", "scale-up", "node", "removal"]
    assert all(each.text.endswith(": unneeded") for each in told.moments if each.kind == "removal")


def test_without_a_label_nodes_with_precompiled_drivers_are_in_time() -> None:
    told = unlabelled(PUBLIC)
    assert (told.made, told.lost, len(told.ran)) == (1, 0, 1)


def test_without_a_label_one_pod_has_several_nodes_made() -> None:
    told = unlabelled(PUBLIC, maximum=4)
    assert len(told.ran) == 1
    assert told.made > 1


def test_with_the_label_a_short_provision_time_gives_nodes_with_built_drivers_up_and_asks_for_more() -> None:
    told = simulate_autoscaling(
        AutoscalingSettings(scenario=BUILT, timers=SHORT_PROVISION, costs=SLOW, hours=ENOUGH), ENTRYPOINT
    )
    kinds = [each.kind for each in told.moments if each.kind != "node"]
    assert kinds[:3] == ["scale-up", "time-out", "scale-up"]
    first, late, again, *_ = (each.at for each in told.moments if each.kind in {"scale-up", "time-out"})
    assert late - first == pytest.approx(310, abs=1)  # the first scan after five minutes
    assert again - late == pytest.approx(300, abs=1)  # the first back-off
    assert told.made == 2


@pytest.mark.parametrize(("scenario", "timed_out"), [(BUILT, 1), (PUBLIC, 0)])
def test_with_the_label_precompiled_drivers_keep_a_short_provision_time_where_the_cloud_is_quick(
    scenario: ArticleScenario, timed_out: int
) -> None:
    told = simulate_autoscaling(
        AutoscalingSettings(scenario=scenario, timers=SHORT_PROVISION, costs=QUICK, hours=ENOUGH), ENTRYPOINT
    )
    assert (told.timed_out, told.made, told.lost, len(told.ran)) == (timed_out, 1, 0, 1)


@pytest.fixture(scope="module")
def measured() -> GroupTimes:
    """The times of nodes with built drivers when nothing disturbs them."""
    return simulate_autoscaling(
        AutoscalingSettings(scenario=BUILT, timers=AutoscalerTimers(), pods=4, hours=ENOUGH), ENTRYPOINT
    ).times


def test_the_loop_is_predicted_before_a_node_is_lost(measured: GroupTimes, looping: AutoscalingRun) -> None:
    short = advised.Timers(max_node_provision=300, unneeded=FIVE.unneeded, delay_after_add=FIVE.delay_after_add)
    told = findings(measured, advise(measured, labelled=False), short, labels=Labels(present=False))
    assert [each.rank for each in told[:3]] == [Rank.LABEL_MISSING, Rank.LOOP, Rank.LOOP]
    assert any(each.rank is Rank.TOO_FEW and "cannot support p99" in each.text for each in told)
    assert looping.lost > 0


def test_with_the_advised_timers_no_node_is_lost(measured: GroupTimes) -> None:
    told = advise(measured, labelled=True).timers
    assert told.max_node_provision is not None
    assert told.max_node_startup is not None
    assert told.unneeded is not None
    assert told.delay_after_add is not None
    timers = AutoscalerTimers(
        max_node_provision=told.max_node_provision,
        max_node_startup=told.max_node_startup,
        unneeded=told.unneeded,
        delay_after_add=told.delay_after_add,
    )
    played = simulate_autoscaling(
        AutoscalingSettings(scenario=BUILT, timers=timers, pods=3, seed=1, hours=ENOUGH), ENTRYPOINT
    )
    assert (played.made, played.lost, played.timed_out, len(played.ran)) == (3, 0, 0, 3)


def test_without_a_label_the_advised_timers_lose_no_node_either(measured: GroupTimes) -> None:
    told = advise(measured, labelled=False).timers
    assert told.unneeded is not None
    assert told.delay_after_add is not None
    timers = AutoscalerTimers(unneeded=told.unneeded, delay_after_add=told.delay_after_add)
    played = simulate_autoscaling(
        AutoscalingSettings(scenario=BUILT, timers=timers, labelled=False, maximum=1, seed=2, hours=ENOUGH), ENTRYPOINT
    )
    assert (played.made, played.lost, len(played.ran)) == (1, 0, 1)


@pytest.mark.parametrize(
    ("text", "cards", "least", "most"),
    [("gpu=1xT4", 1, 0, 10), ("gpu=4xA100-40GB:1-3", 4, 1, 3), ("gpu=2xT4@ubuntu22.04:0-2", 2, 0, 2)],
)
def test_a_group_has_cards_and_a_range(text: str, cards: int, least: int, most: int) -> None:
    group = parse_group(text)
    assert (group.gpus, group.minimum, group.maximum) == (cards, least, most)


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu", "GPU=1xT4", "gpu=", "gpu=0", "gpu=1xT4,1xT4", "gpu=2*1xT4", "gpu=1xT4:3-1", "gpu=1xT4:0-0"),
        *("gpu=1xB52", "gpu=1xT4:0-9999", "too-long-a-name=1xT4"),
    ],
)
def test_what_is_no_group_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"group|cards|model|nodes"):
        parse_group(text)


def test_sockets_of_the_longest_named_node_fit() -> None:
    node = f"{'x' * LONGEST_NAME}-abcde"
    assert len(f"/n/{node}/dp/tessera-mig-1g.24gb.me.all-00.sock") == lab_folder._LONGEST_SOCKET


def test_two_groups_need_two_names() -> None:
    with pytest.raises(ValueError, match="'gpu' is there twice"):
        parse_groups(["gpu=1xT4", "gpu=1xA30"])


def test_an_autoscaler_with_nothing_to_do_makes_no_time_leap() -> None:
    """Else a lab on virtual time would never rest, and its dates would run away."""

    async def main() -> tuple[list[str], list[int]]:
        cluster = SimulatedCluster([], clock=LoopClock(1_800_000_000), options=ClusterOptions())
        groups = parse_groups(["gpu=1xT4:1-2"])
        waits = []
        async with (
            cluster.running(),
            run_autoscaler(cluster, groups, machine_seconds=30, idle_seconds=60),
        ):
            api = cluster.client("test")
            await cluster.clock.sleep(305)
            waits.append(cluster.pending_waits)
            pod = {"metadata": {"name": "a"}, "spec": {"containers": [_container("1k")]}}
            await api.create(PODS.as_dicts(), pod, "default")
            await cluster.clock.sleep(15)
            waits.append(cluster.pending_waits)
            await cluster.clock.sleep(300)  # no machine of the group is large enough, so nothing comes of it
            waits.append(cluster.pending_waits)
            return [each.metadata.name for each in (await api.list(NODES)).items], waits

    nodes, waits = run_virtual(main())
    assert len(nodes) == 1
    assert waits == [0, 1, 0]


def _container(cards: str) -> dict[str, object]:
    return {"name": "c", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": cards}}}
