"""A large slice starts after one small pod, whose author allows it, has moved; by default the move is recommended."""

from typing import Any

import pytest
from tests.support.virtual_lab import InLab, VirtualLab, manifest

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import HOSTNAME_LABEL, INSTASLICE_NAMESPACE, MOVABLE_ANNOTATION
from tessera.controller.slicing.state.node_records import MOVES_ANNOTATION, RESERVATIONS_ANNOTATION
from tessera.explain.room_moves import read_moves
from tessera.kube.resources import DEPLOYMENTS, PODS, REPLICASETS, Resource
from tessera_lab.apiserver.audit import AuditEntry

SMALL = {"nvidia.com/mig-1g.5gb": 1}
HALF = {"nvidia.com/mig-4g.20gb": 1}
WHOLE = {"nvidia.com/mig-7g.40gb": 1}
NODES = "2*1xA100-40GB"
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, dict[str, Any])


async def set_option(lab: VirtualLab, option: str) -> None:
    """Restarts the controller with an option."""
    found = await lab.client.get(DEPLOYMENTS.as_dicts(), "tessera-controller", "tessera-system")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    spec = {"template": {"spec": {"containers": [container | {"args": [*container["args"], option]}]}}}
    await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "tessera-controller", {"spec": spec}, "tessera-system")
    await lab.clock.sleep(60)


def app_pods(lab: VirtualLab, name: str) -> list[Any]:
    """The living pods of a ReplicaSet."""
    return [pod for pod in lab.pods.cache.values() if pod.metadata.labels.get("app") == name]


def evictions(lab: VirtualLab) -> list[AuditEntry]:
    return [each for each in lab.cluster.server.audit.writes() if each.subresource == "eviction"]


async def fragment(lab: VirtualLab) -> str:
    """A small movable pod of a ReplicaSet runs on one node, and a half on the other; returns the small one's node."""
    template = {
        "metadata": {"labels": {"app": "small"}, "annotations": {MOVABLE_ANNOTATION: "true"}},
        "spec": manifest("small", SMALL, restartPolicy="Always")["spec"],
    }
    spec = {"selector": {"matchLabels": {"app": "small"}}, "template": template}
    await lab.client.create(REPLICASETS.as_dicts(), {"metadata": {"name": "small"}, "spec": spec}, "default")
    await lab.until(lambda: lab.ready_of("small"), "the small pod runs")
    (small,) = app_pods(lab, "small")
    (other,) = {"node-1", "node-2"} - {small.spec.node_name}
    await lab.create("half", HALF, nodeSelector={HOSTNAME_LABEL: other})
    await lab.running("half")
    await lab.clock.sleep(600)
    return str(small.spec.node_name)


def test_a_whole_card_starts_after_one_small_pod_has_moved(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await set_option(lab, "--moves=evict")
        node = await fragment(lab)
        moved = lab.ready_of("small")
        await lab.create("whole", WHOLE)
        created = lab.clock.monotonic()
        await lab.clock.sleep(30)
        (room,) = (await read_moves(lab.client, lab.clock)).rooms
        await lab.running("whole")
        assert 59 < lab.clock.monotonic() - created < 90
        assert lab.existing_pod("whole").spec.node_name == node
        await lab.until(lambda: lab.ready_of("small"), "its owner has made the small pod anew")
        (small,) = app_pods(lab, "small")
        assert small.spec.node_name == lab.existing_pod("half").spec.node_name
        assert (room.pod, room.place.node, room.is_worth) == ("default/whole", node, True)
        planned = [(move.pod, move.to.node) for move in room.moves]
        assert planned == [(f"default/{moved}", small.spec.node_name)], "tessera defrag --plan says what is done"
        assert len(evictions(lab)) == 1
        assert "default/whole needs 7g.40gb" in lab.events_of(moved, "SliceMoved")[0].message
        item = await lab.client.get(INSTASLICES, node, INSTASLICE_NAMESPACE)
        assert MOVES_ANNOTATION in item.metadata.annotations
        await lab.clock.sleep(3700)
        item = await lab.client.get(INSTASLICES, node, INSTASLICE_NAMESPACE)
        assert MOVES_ANNOTATION not in item.metadata.annotations
        assert len(evictions(lab)) == 1

    in_lab(scenario, NODES)


@pytest.mark.soak
def test_by_default_the_waiting_pod_is_told_and_nobody_is_evicted(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        node = await fragment(lab)
        await lab.create("whole", WHOLE)
        await lab.until(lambda: lab.events_of("whole", "SliceRoomByMoves"), "the moves are told")
        (event,) = lab.events_of("whole", "SliceRoomByMoves")
        (small,) = app_pods(lab, "small")
        assert f"7g.40gb would fit on node {node} if default/{small.metadata.name} ended" in event.message
        await lab.clock.sleep(600)
        assert (lab.phase("whole"), evictions(lab)) == ("Pending", [])
        await lab.client.delete(PODS, small.metadata.name, "default")
        await lab.running("whole")

    in_lab(scenario, NODES)


def test_a_disruption_budget_ends_the_plan(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await set_option(lab, "--moves=evict")
        await fragment(lab)
        budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "small"}}}}
        await lab.client.apply(BUDGETS, "keep", budget, "default")
        await lab.clock.sleep(10)
        (small,) = app_pods(lab, "small")
        await lab.create("whole", WHOLE)
        await lab.clock.sleep(600)
        assert lab.phase("whole") == "Pending"
        assert [pod.metadata.uid for pod in app_pods(lab, "small")] == [small.metadata.uid]
        assert not lab.events_of(small.metadata.name, "SliceMoved")
        item = await lab.client.get(INSTASLICES, small.spec.node_name, INSTASLICE_NAMESPACE)
        assert item.metadata.annotations[MOVES_ANNOTATION].count(small.metadata.uid) == 1, "not again within an hour"
        assert RESERVATIONS_ANNOTATION in item.metadata.annotations, "it waits in its turn"

    in_lab(scenario, NODES)
