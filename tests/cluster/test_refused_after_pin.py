"""A node stops taking a pod just before the pod is pinned to it: by a cordon, or since the pod's volume is gone.

The controller has promised the slices; its request that pins the pod is held up until the node has changed. A pod with
an owner is evicted and made anew elsewhere; any other pod is told, and its slices go to the next. The third cause,
anti-affinity of pods that run, is in ``test_neighbours.py``.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.cluster.test_neighbours import HOST, SLICE, replicas, run, slice_condition, template
from tests.cluster.test_withdrawn_at_bind import WHOLE, Moment
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, STORAGE_CLASSES

Act = Callable[[Any], Callable[[], Awaitable[None]]]
VOLUMES = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]


def cordon(lab: VirtualLab) -> Callable[[], Awaitable[None]]:
    """Closes the node to new pods."""

    async def act() -> None:
        await lab.client.merge_patch(NODES, "node-1", {"spec": {"unschedulable": True}})

    return act


def lose_volume(lab: VirtualLab) -> Callable[[], Awaitable[None]]:
    """Deletes the volume on the node that would have served the pod's claim."""

    async def act() -> None:
        await lab.client.delete(PERSISTENT_VOLUMES, "disk-1", "")

    return act


CAUSES = pytest.mark.parametrize(
    ("cause", "word", "volumes"),
    [
        (cordon, "node(s) were unschedulable", []),
        (lose_volume, "didn't find available persistent volumes to bind", VOLUMES),
    ],
    ids=["cordon", "volume"],
)


async def storage(lab: VirtualLab) -> None:
    """A claim that is bound where its pod runs, and a volume on each node that could serve it."""
    kind = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    await lab.client.create(STORAGE_CLASSES.as_dicts(), {"metadata": {"name": "local"}, **kind})
    access = {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]}
    for number, node in enumerate(lab.cluster.nodes, 1):
        here = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
        spec = {
            **access,
            "capacity": {"storage": "1Gi"},
            "local": {"path": "/disk"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
        }
        await lab.client.create(PERSISTENT_VOLUMES.as_dicts(), {"metadata": {"name": f"disk-{number}"}, "spec": spec})
    claim = {"metadata": {"name": "data"}, "spec": {**access, "resources": {"requests": {"storage": "1Gi"}}}}
    await lab.client.create(PERSISTENT_VOLUME_CLAIMS.as_dicts(), claim, "default")


@CAUSES
def test_a_pod_of_an_owner_is_made_anew_on_another_node(
    in_lab: InLab, cause: Act, word: str, volumes: list[dict[str, Any]]
) -> None:
    moment = Moment("PATCH", "/pods/refused-", "schedulingGates")

    async def scenario(lab: VirtualLab) -> None:
        await storage(lab)
        await lab.create("filler", SLICE, nodeSelector={HOST: "node-1"})
        await lab.running("filler")
        moment.act = cause(lab)
        await replicas(lab, "refused", 1, volumes=volumes)
        assert await run(lab, "refused", 1) == ["node-2"]
        assert moment.came
        (taken,) = [event for event in lab.events.cache.values() if event.reason == "SliceReclaimed"]
        assert word in taken.message
        assert "It is evicted" in taken.message
        await lab.until(lambda: len(lab.results("node-1")) == 1, "the slice is free again")

    in_lab(scenario, nodes="2*1xA100-40GB", cluster_type=moment.cluster)


@CAUSES
def test_a_pod_that_nobody_makes_anew_is_told_and_its_slice_goes_to_the_next(
    in_lab: InLab, cause: Act, word: str, volumes: list[dict[str, Any]]
) -> None:
    moment = Moment("PATCH", "/pods/first", "schedulingGates")

    async def scenario(lab: VirtualLab) -> None:
        await storage(lab)
        moment.act = cause(lab)
        body = template("refused", WHOLE, volumes=volumes)
        body["metadata"]["name"] = "first"
        await lab.client.create(PODS.as_dicts(), body, "default")
        await lab.until(lambda: lab.is_free("first"), "it was pinned")
        await lab.create("second", WHOLE)
        await lab.until(lambda: lab.events_of("first", "SliceReclaimed"), "the first is told", 300.0)
        assert word in lab.events_of("first", "SliceReclaimed")[0].message
        await lab.until(lambda: slice_condition(lab, "first") == ("False", "SliceReclaimed"), "its condition says so")
        await lab.until(
            lambda: lab.existing_pod("first").metadata.uid not in lab.results("node-1"), "it holds no slice"
        )
        if not volumes:  # the cordon holds the next pod back too
            await lab.delete("first")
            await lab.client.merge_patch(NODES, "node-1", {"spec": {"unschedulable": None}})
        await lab.running("second")
        assert len(lab.hardware()) == 1

    in_lab(scenario, nodes="1xA100-40GB", cluster_type=moment.cluster)
