"""The option ``--group``, and the groups of a running lab on virtual time."""

import pytest

from tessera.clock import LoopClock
from tessera.kube.resources import NODES, PODS
from tessera_lab.cloud.autoscaler.process import LONGEST_NAME, parse_group, parse_groups, run_autoscaler
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.daemon import lab_folder
from tessera_lab.simulation.virtual_time import run_virtual


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
