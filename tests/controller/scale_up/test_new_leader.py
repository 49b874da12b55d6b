"""A new leader keeps the placeholders of the former one until it knows all pods that wait."""

import pytest
from tests.support.scale_up_lab import ScaleUpLab, add_pod_for_second_generation, create_node_groups
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.api.names import NodeName
from tessera.api.nodes.node_groups import parse_node_groups
from tessera.controller.scale_up.node_requests import PlaceholderPods
from tessera.controller.scale_up.placeholders import pod_spec
from tessera.controller.slicing.turns import absorption

GROUP = """
groups:
  - name: many
    selector: {pool: many}
    labels: {generation: two}
    cards: {model: L40S, count: 1, kind: whole}
"""


def large() -> SlicerCluster:
    """Full nodes of the first generation, and a pod that waits for a card of the second."""
    cluster = SlicerCluster()
    for number in range(8):
        cluster.device_node(f"n{number}", count=1)
        cluster.whole(f"held-{number}", gated=False, node=NodeName(f"n{number}"))
    add_pod_for_second_generation(cluster)
    return cluster


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_placeholders_stay_while_many_pods_are_taken_in_by_parts(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absorption, "ABSORBED_CHANGES", 4)

    async def story(lab: Lab) -> None:
        await create_node_groups(lab, GROUP)
        cluster = large()
        for _ in range(parts):
            cluster.slicer.decide()
        assert not cluster.slicer.state.waiting
        scale_up = ScaleUpLab(lab, cluster)
        former = PlaceholderPods(scale_up.runtime, scale_up.pods, NAMESPACE)
        for name in ("tessera-new-node-many-0", "tessera-new-node-many-1"):
            spec = pod_spec(parse_node_groups(GROUP)[0], "pause:1", (), has_ready=False, least={})
            await former.create("many", name, spec, cards=True, version="")
        async with scale_up.running():
            await lab.clock.sleep(60)
            assert len(scale_up.pods.cache) == 2
            assert not scale_up.shown
            cluster.run()
            await lab.clock.sleep(90)
            assert [pod.metadata.name for pod in scale_up.pods.cache.values()] == ["tessera-new-node-many-0"]
            assert scale_up.shown == {"many": 1}

    in_lab(story)
