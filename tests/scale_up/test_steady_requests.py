"""Pods that come and go do not replace a request for a node before an autoscaler can answer it."""

from dataclasses import replace

from tests.support.scale_up_lab import ScaleUpLab, add_pod_for_second_generation, create_node_groups
from tests.support.slicer_cluster import SlicerCluster
from tests.webhook.conftest import Lab, in_lab

from tessera.kube.resources import PODS
from tessera.scale_up.node_requests import is_placeholder

GROUP = """
groups:
  - name: many
    selector: {pool: many}
    labels: {generation: two}
    cards: {model: L40S, count: 1, kind: whole}
    max: 1
"""


def test_a_pod_that_changes_the_least_amounts_again_and_again_replaces_a_request_once_a_minute() -> None:
    async def story(lab: Lab) -> None:
        await create_node_groups(lab, GROUP)
        cluster = SlicerCluster()
        cluster.device_node("n0", count=1)
        cluster.whole("held", gated=False)
        add_pod_for_second_generation(cluster)
        (waits,) = (pod for pod in cluster.pods.values() if pod.name == "waits")
        cluster.put(replace(waits, amounts={**waits.amounts, "cpu": 8_000}, version=10))
        scale_up = ScaleUpLab(lab, cluster)
        made: set[str] = set()
        async with scale_up.running():
            for turn in range(40):
                cpu = 100 if turn % 2 else 8_000
                cluster.put(replace(waits, amounts={**waits.amounts, "cpu": cpu}, version=11 + turn))
                cluster.run()
                noise = {"metadata": {"name": f"noise-{turn}"}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}
                await lab.client.create(PODS.as_dicts(), noise, "default")
                await lab.clock.sleep(6)
                made |= {
                    pod.metadata.uid for pod in scale_up.pods.cache.values() if is_placeholder(pod.metadata.labels)
                }
        assert len(made) in range(2, 6)

    in_lab(story)
