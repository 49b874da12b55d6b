"""A mistake in the file of node groups: what is asked for is right once it is corrected, and the controller runs on."""

import pytest
from tests.support.scale_up_lab import NODE_GROUPS, ScaleUpLab, add_pod_for_second_generation, create_node_groups
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.kube.resources import CONFIGMAPS

GROUP = "groups: [{name: two, selector: {pool: a}, labels: {generation: two}, cards: {model: L40S, kind: whole}, MORE}]"
RIGHT = GROUP.replace("MORE", "max: 1")


@pytest.mark.parametrize(
    "text",
    [
        GROUP.replace("MORE", "taints: [{key: a b}]"),
        GROUP.replace("MORE", "allocatable: {cpu: '-4'}"),
        RIGHT.replace("{pool: a}", "{a b/c d: x y}"),
        RIGHT.replace("{pool: a}", "{pool: a, generation: one}"),
    ],
)
def test_a_mistake_stops_requests_for_nodes_and_not_the_controller(text: str, caplog: pytest.LogCaptureFixture) -> None:
    async def story(lab: Lab) -> None:
        await create_node_groups(lab, RIGHT)
        cluster = SlicerCluster()
        add_pod_for_second_generation(cluster)
        cluster.run()
        scale_up, counts = ScaleUpLab(lab, cluster), []
        async with scale_up.running():
            for each in (RIGHT, text, RIGHT):
                await lab.client.merge_patch(CONFIGMAPS, NODE_GROUPS, {"data": {"groups.yaml": each}}, NAMESPACE)
                await lab.clock.sleep(300)
                counts.append(len(scale_up.pods.cache.values()))
        assert counts == [1, 0, 1]

    in_lab(story)
    assert 'group "two": ' in caplog.text
    assert "; correct the file; no node is asked for until then" in caplog.text


@pytest.mark.parametrize(
    "wrong", [RIGHT.replace("{pool: a}", "{pool: b}"), RIGHT.replace("kind: whole", "kind: whole, count: 8")]
)
def test_a_placeholder_that_was_made_for_a_corrected_group_is_made_anew(wrong: str) -> None:
    """With the former selector or cards no autoscaler would make the node, and the pod would wait for ever."""

    async def story(lab: Lab) -> None:
        await create_node_groups(lab, wrong)
        cluster = SlicerCluster()
        add_pod_for_second_generation(cluster)
        cluster.run()
        scale_up = ScaleUpLab(lab, cluster)
        async with scale_up.running():
            await lab.clock.sleep(60)
            (before,) = scale_up.pods.cache.values()
            await lab.client.merge_patch(CONFIGMAPS, NODE_GROUPS, {"data": {"groups.yaml": RIGHT}}, NAMESPACE)
            await lab.clock.sleep(60)
            (after,) = scale_up.pods.cache.values()
            await lab.clock.sleep(300)
            (last,) = scale_up.pods.cache.values()
        assert after.spec.node_selector == {"pool": "a"}
        assert after.spec.containers[0].resources.limits["nvidia.com/gpu"] == "1"
        assert before.metadata.uid != after.metadata.uid == last.metadata.uid

    in_lab(story)
