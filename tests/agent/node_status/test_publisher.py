"""The Node shows the agent's state; only changes are written, and no field of others is touched."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tessera.agent.base.node_objects import NodeCondition
from tessera.agent.node_status.publisher import REPAIR_PAUSE
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, decode_cards
from tessera.api.nodes.node_marks import CARD_CONDITIONS, CARDS_MANAGER, mark_silent
from tessera.api.nodes.offers import decode_offers
from tessera.clock import rfc3339
from tessera.kube.resources import NODES

Play = Callable[..., None]

SLICED = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
APPLIED = NodeCondition("GpuSharingApplied", "True", "ProfileInForce", 'profile "slice-4" is in force')
REFUSED = NodeCondition("GpuSharingApplied", "False", "ProfileRefused", "replica: unknown; did you mean replicas?")
PENDING = NodeCondition("GpuSharingApplied", "Unknown", "ProfilePending", 'profile "slice-10" is next')
HEALTHY = NodeCondition("GpuHealthy", "True", "CardsHealthy", "nothing is wrong with the node's 4 cards")
MPS = NodeCondition("GpuMpsReady", "True", "DaemonsReady", "MPS serves nvidia.com/gpu.shared")


async def test_a_node_gets_labels_of_its_cards_and_its_offers(stage: Any) -> None:
    await stage.begin()
    stage.mig_state = "success"
    await stage.offer(SLICED)
    labels = await stage.labels()
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert labels["nvidia.com/gpu.replicas"] == "4"
    assert labels["nvidia.com/gpu.machine"] == "Simulated"
    assert labels["nvidia.com/gfd.timestamp"] == "1700000000"
    assert labels["nvidia.com/mig.config.state"] == "success"
    node = await stage.node()
    (offer,) = decode_offers(node["metadata"]["annotations"]["tessera.dev/offers"])
    assert (offer.resource, offer.count) == ("nvidia.com/gpu.shared", 16)


@pytest.mark.parametrize(
    ("cards", "products"),
    [("2xA100-40GB", ["", ""]), ("A100-40GB,T4", ["NVIDIA A100-SXM4-40GB", "Tesla T4"])],
)
async def test_cards_are_named_by_their_model_where_there_are_several(
    stage: Any, cards: str, products: list[str]
) -> None:
    await stage.begin()
    stage.machine = type(stage.machine)(cards)
    await stage.offer()
    listed = decode_cards((await stage.node())["metadata"]["annotations"][CARDS_ANNOTATION])
    assert [each.product for each in listed.gpus] == products


async def test_nothing_is_written_while_facts_are_unknown(stage: Any) -> None:
    await stage.begin()
    await stage.changed()
    stage.known = await stage.machine.stock()
    await stage.changed()
    assert stage.requests() == 0


async def test_a_start_and_a_burst_of_changes_cost_one_write_each_of_metadata_and_conditions(stage: Any) -> None:
    await stage.begin()
    stage.conditions = [HEALTHY, PENDING]
    await stage.offer()
    assert stage.writes() == ["metadata", "status"]
    for state in ("pending", "success"):
        stage.mig_state = state
        stage.conditions = [HEALTHY, APPLIED]
        stage.changes.notify()
    await stage.offer(SLICED)
    assert stage.writes() == ["metadata", "status"] * 2


async def test_nothing_is_written_when_nothing_changes(stage: Any) -> None:
    await stage.begin()
    stage.conditions = [HEALTHY, APPLIED]
    await stage.offer(SLICED)
    asked = stage.requests()
    for minute in range(60):
        heartbeat = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": str(minute)}]}}
        await stage.admin.request(
            "PATCH",
            NODES.path(None, "node-1", "status"),
            body=heartbeat,
            content_type="application/strategic-merge-patch+json",
        )
        await stage.offer(SLICED)
        await stage.clock.sleep(60)
    assert stage.requests() == asked


async def test_a_restarted_agent_writes_no_condition_that_is_unchanged(stage: Any) -> None:
    await stage.begin()
    stage.conditions = [HEALTHY, APPLIED]
    await stage.offer(SLICED)
    before = await stage.shown()
    await stage.clock.sleep(100)
    await stage.start()
    await stage.changed()
    assert stage.writes() == ["metadata", "status", "metadata"]  # when discovery began is a label
    assert await stage.shown() == before
    assert await stage.events() == []


async def test_an_agent_that_lives_takes_its_conditions_over_from_the_controllers_mark(stage: Any) -> None:
    await stage.begin()
    stage.conditions = [HEALTHY, APPLIED]
    await stage.offer(SLICED)
    await stage.clock.sleep(100)
    node = await stage.admin.get(NODES, "node-1")
    marked = rfc3339(stage.clock.now())
    listed = [mark_silent(each, "no pod is on it", "node-1", marked)
              for each in node.status.conditions if each.type in CARD_CONDITIONS]  # fmt: skip
    assert all(each["lastHeartbeatTime"] < marked for each in listed)
    await stage.admin.with_field_manager(CARDS_MANAGER).apply(
        NODES, "node-1", {"status": {"conditions": listed}}, subresource="status"
    )
    await stage.clock.sleep(10)
    await stage.changed()
    shown = (await stage.admin.get(NODES, "node-1")).status
    for kind in CARD_CONDITIONS & {each.type for each in shown.conditions}:
        found = shown.condition(kind)
        assert (found.status, found.last_transition_time >= marked) == ("True", True)


async def test_labels_that_are_no_longer_set_disappear_also_over_a_restart(stage: Any) -> None:
    await stage.begin()
    for card in range(4):
        stage.machine.cut(card, ("3g.20gb", 0), ("3g.20gb", 4))
    stage.mig_state = "success"
    await stage.offer()
    assert (await stage.labels())["nvidia.com/mig-3g.20gb.count"] == "8"
    await stage.stop()
    for uuid in stage.machine.cards.uuids():
        stage.machine.cards.set_mig_mode(uuid, enabled=False)
    stage.mig_state = ""
    await stage.start()
    await stage.offer()
    labels = await stage.labels()
    assert not [name for name in labels if "mig-3g" in name or name.endswith("mig.config.state")]
    assert labels["nvidia.com/gpu.replicas"] == "1"


async def test_labels_by_which_people_ask_stay_theirs(stage: Any) -> None:
    await stage.begin(layout="all-1g.5gb", profile="slice-4")
    stage.mig_state = "pending"
    await stage.offer(SLICED)
    stage.mig_state = "success"
    await stage.offer()
    labels = await stage.labels()
    assert labels["nvidia.com/mig.config"] == "all-1g.5gb"
    assert labels["nvidia.com/device-plugin.config"] == "slice-4"
    owned = [
        name
        for entry in (await stage.node())["metadata"]["managedFields"]
        if entry["manager"] == "tessera-agent"
        for name in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {})
    ]
    assert "f:nvidia.com/gpu.count" in owned
    assert not {"f:nvidia.com/mig.config", "f:nvidia.com/device-plugin.config"} & set(owned)


async def test_labels_of_nvidias_feature_discovery_are_adopted(stage: Any) -> None:
    old = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED", "nvidia.com/gpu.count": "4"}
    await stage.begin()
    await stage.user("nfd-master", "system:masters").apply(NODES, "node-1", {"metadata": {"labels": old}})
    await stage.offer()
    assert (await stage.labels())["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"


async def test_removed_labels_come_back_and_no_writer_is_fought(stage: Any) -> None:
    await stage.begin()
    await stage.tell(HEALTHY)
    await stage.offer()
    await stage.clock.sleep(100)
    gone = {"metadata": {"labels": {"nvidia.com/gpu.count": None}}}
    await stage.admin.merge_patch(NODES, "node-1", gone)
    await stage.clock.sleep(1)
    assert (await stage.labels())["nvidia.com/gpu.count"] == "4"
    before = len(stage.writes())
    for _ in range(int(10 * REPAIR_PAUSE)):
        await stage.admin.merge_patch(NODES, "node-1", gone)
        await stage.clock.sleep(1)
    assert len(stage.writes()) - before <= 11
    await stage.clock.sleep(REPAIR_PAUSE)
    assert (await stage.labels())["nvidia.com/gpu.count"] == "4"


async def test_conditions_stand_beside_kubelets_own_and_go_when_they_no_longer_apply(stage: Any) -> None:
    await stage.begin()
    await stage.tell(HEALTHY, APPLIED, MPS)
    shown = await stage.shown()
    assert shown["Ready"]["reason"] == "KubeletReady"
    assert {name: each["reason"] for name, each in shown.items() if name != "Ready"} == {
        "GpuHealthy": "CardsHealthy",
        "GpuSharingApplied": "ProfileInForce",
        "GpuMpsReady": "DaemonsReady",
    }
    await stage.tell(HEALTHY, APPLIED)
    assert set(await stage.shown()) == {"Ready", "GpuHealthy", "GpuSharingApplied"}


async def test_a_condition_of_an_agent_before_this_one_goes_too(stage: Any) -> None:
    await stage.begin()
    await stage.tell(HEALTHY, MPS)
    await stage.stop()
    stage.conditions = [HEALTHY]
    await stage.start()
    await stage.changed()
    assert set(await stage.shown()) == {"Ready", "GpuHealthy"}


async def test_the_time_of_transition_is_that_of_the_status_over_a_restart_too(stage: Any) -> None:
    await stage.begin()
    await stage.tell(REFUSED)
    first = (await stage.shown())["GpuSharingApplied"]["lastTransitionTime"]
    await stage.clock.sleep(60)
    await stage.start()
    await stage.tell(NodeCondition("GpuSharingApplied", "False", "ProfileMissing", "another mistake"))
    again = (await stage.shown())["GpuSharingApplied"]
    assert (again["reason"], again["lastTransitionTime"]) == ("ProfileMissing", first)
    assert again["lastHeartbeatTime"] > first
    await stage.tell(APPLIED)
    assert (await stage.shown())["GpuSharingApplied"]["lastTransitionTime"] > first


async def test_a_change_is_an_event_and_a_problem_is_a_warning(stage: Any) -> None:
    await stage.begin()
    await stage.tell(PENDING, HEALTHY)
    await stage.tell(APPLIED, HEALTHY)
    await stage.tell(REFUSED, HEALTHY)
    await stage.tell(REFUSED, HEALTHY)
    await stage.start()
    await stage.tell(REFUSED, HEALTHY)
    assert await stage.events() == [
        ("Normal", PENDING.reason, PENDING.message),
        ("Normal", APPLIED.reason, APPLIED.message),
        ("Warning", REFUSED.reason, REFUSED.message),
    ]


async def test_a_condition_that_is_false_from_the_start_is_an_event_and_a_true_one_is_none(stage: Any) -> None:
    await stage.begin()
    await stage.tell(APPLIED, HEALTHY)
    assert await stage.events() == []
    await stage.tell(APPLIED, HEALTHY, MPS)
    assert await stage.events() == [("Normal", MPS.reason, MPS.message)]
    await stage.admin.merge_patch(NODES, "node-1", {"status": {"conditions": None}}, subresource="status")
    await stage.start()
    await stage.tell(REFUSED, HEALTHY)
    assert (await stage.events())[1:] == [("Warning", REFUSED.reason, REFUSED.message)]


def test_a_refused_agent_logs_it_once_and_continues_to_try(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Any) -> None:
        await stage.begin()
        await stage.start(groups=())
        await stage.tell(HEALTHY)
        await stage.offer()
        await stage.clock.sleep(600)
        (told,) = [each.message for each in caplog.records if "no right to write" in each.message]
        for fact in ("no right to write labels and conditions", "grant the agent patch", "nodes/status"):
            assert fact in told
        assert 'User "tessera-agent" cannot patch resource "nodes/status"' in told
        await stage.start()
        await stage.changed()
        assert "nvidia.com/gpu.count" in await stage.labels()
        assert "GpuHealthy" in await stage.shown()

    caplog.set_level(logging.INFO)
    play(story)


async def test_writes_wait_for_an_api_server_that_is_away(stage: Any) -> None:
    await stage.begin()
    await stage.offer()
    stage.server.handle, working = _away, stage.server.handle
    await stage.tell(HEALTHY)
    await stage.clock.sleep(100)
    stage.server.handle = working
    await stage.clock.sleep(60)
    assert "GpuHealthy" in await stage.shown()


async def _away(*_request: object) -> None:
    raise ConnectionError("no route to host")


async def test_a_node_that_is_registered_anew_is_written_at_once(stage: Any) -> None:
    await stage.begin()
    await stage.tell(HEALTHY)
    await stage.offer()
    await stage.admin.delete(NODES, "node-1")
    await stage.changed()
    await stage.admin.create(NODES.as_dicts(), {"metadata": {"name": "node-1"}})
    await stage.clock.sleep(1)
    assert "nvidia.com/gpu.count" in await stage.labels()
    assert "GpuHealthy" in await stage.shown()


async def test_a_deleted_node_is_not_created_by_an_agent_that_does_not_know_it(stage: Any) -> None:
    await stage.begin()
    await stage.tell(HEALTHY)
    await stage.offer()
    stage.behind = await stage.admin.get(NODES, "node-1")
    await stage.admin.delete(NODES, "node-1")
    stage.mig_state = "success"
    await stage.tell(HEALTHY, APPLIED)
    await stage.clock.sleep(100)
    assert not (await stage.admin.list(NODES)).items
    await stage.admin.create(NODES.as_dicts(), {"metadata": {"name": "node-1"}})
    await stage.clock.sleep(100)
    assert "nvidia.com/mig.config.state" not in await stage.labels()
    stage.behind = None
    await stage.clock.sleep(60)
    assert (await stage.labels())["nvidia.com/mig.config.state"] == "success"


async def test_a_driver_version_that_cannot_be_read_leaves_the_labels(
    stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.begin()
    await stage.offer()
    before = await stage.labels()
    stage.known = msgspec.structs.replace(stage.known, driver_version="unknown")
    await stage.changed()
    await stage.changed()
    assert await stage.labels() == before
    (warning,) = [each.message for each in caplog.records if "keeps its labels" in each.message]
    assert 'driver version "unknown": not of the form X.Y' in warning
