"""A new leader keeps placeholders of the former one until it knows all pods that wait, and the pauses it has told."""

from typing import Any

import pytest
from tests.support.scale_up_lab import ScaleUpLab, add_pod_for_second_generation, create_node_groups
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import NAMESPACE, Lab, in_lab

from tessera.api.names import NodeName
from tessera.api.nodes.node_groups import NO_HELP_REASON, Pause, parse_node_groups, pause_text
from tessera.controller.slicing.cycle import take_in
from tessera.kube.resources import EVENTS
from tessera.scale_up.node_requests import PlaceholderPods, pod_spec

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
    monkeypatch.setattr(take_in, "ABSORBED_CHANGES", 4)

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


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        pytest.param(0, {}, id="the former leader's"),
        pytest.param(1, {"reportingComponent": "kubelet"}, id="of another process"),
        pytest.param(1, {"metadata": {"name": "e", "namespace": NAMESPACE}}, id="of another namespace"),
        pytest.param(1, {"message": "no new node of group many"}, id="of other words"),
        pytest.param(1, {"involvedObject": {"kind": "Pod", "uid": "other"}}, id="about another pod"),
    ],
)
def test_it_takes_over_pauses_that_the_former_leader_told(asked: int, written: dict[str, Any]) -> None:
    async def story(lab: Lab) -> None:
        await create_node_groups(lab, GROUP)
        cluster = large()
        cluster.run()
        (pod,) = (each for each in cluster.slicer.state.cluster.pods.values() if each.name == "waits")
        scale_up, now = ScaleUpLab(lab, cluster), lab.clock.now()
        event = {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "uid": pod.uid, "namespace": "default"},
            "reason": NO_HELP_REASON,
            "message": pause_text("many", Pause(now - 600, now + 600, "why")),
            "reportingComponent": scale_up.component,
            **written,
        }
        event["involvedObject"] |= {"namespace": event["metadata"]["namespace"]}
        await lab.client.create(EVENTS.as_dicts(), event, event["metadata"]["namespace"])
        async with scale_up.running():
            await lab.clock.sleep(60)
            assert scale_up.shown == {"many": asked}
            await lab.clock.sleep(600)
            assert scale_up.shown == {"many": 1}

    in_lab(story)
