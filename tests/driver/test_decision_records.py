"""Records of the driver plan and of the rollout: replayed without a difference, small, and without passwords."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.driver.rollout.simulated_fleet import SimulatedFleet
from tests.driver.rollout.test_rollout_always import CRASHING, FIRST, NODES, SETS, Controller, settled
from tests.driver.test_drivers_process import ServerWithNodes

from tessera.driver.planning.cluster_plan import plan_cluster
from tessera.driver.planning.interface import ClusterPlan, ClusterSnapshot, LabelNode
from tessera.driver.rollout.fleet import RolloutDecision, RolloutSnapshot, decide_rollout
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.gpu_operator.driver_policy import DriverPolicy, OperandSettings, UpgradePolicy
from tessera.observe.record_player import DECIDERS, replay
from tessera.replay.recorder import Record, Recorders, read_records
from tessera.replay.state_codec import decode, encode
from tessera_lab.simulation.virtual_time import run_virtual

PASSWORD = "hunter2"


def plan_without_labels(snapshot: ClusterSnapshot) -> ClusterPlan:
    """Another version of the planner, which labels no node."""
    plan = plan_cluster(snapshot)
    return msgspec.structs.replace(
        plan, instructions=tuple(each for each in plan.instructions if not isinstance(each, LabelNode))
    )


def decide_without_stop(snapshot: RolloutSnapshot) -> RolloutDecision:
    """Another version of the rollout, which does not report that it has stopped."""
    return msgspec.structs.replace(decide_rollout(snapshot), stopped={})


@pytest.fixture(scope="module")
def text() -> str:
    """The records of a controller that installs drivers on two nodes and is then asked for another version."""
    found: list[bytes] = []

    async def story() -> None:
        lab = ServerWithNodes()
        lab.recorders = Recorders(1000)
        await lab.begin()
        await lab.ask()
        secret = {"env": [{"name": "HTTPS_PROXY", "value": f"http://me:{PASSWORD}@proxy"}], "args": [PASSWORD]}
        manager = {"env": [{"name": "TOKEN", "value": PASSWORD}]}
        spec = {"driver": secret | {"manager": manager}, "daemonsets": {"annotations": {"a": PASSWORD}}}
        await lab.admin.merge_patch(CLUSTER_POLICIES, "p", {"spec": spec})
        await lab.live(30)
        await lab.admin.merge_patch(CLUSTER_POLICIES, "p", {"spec": {"driver": {"version": "535.183.06"}}})
        await lab.live(30)
        found.extend(msgspec.json.encode(each) for each in lab.recorders.records())

    run_virtual(story())
    return b"\n".join(found).decode()


@pytest.fixture(scope="module")
def plan(text: str) -> Record:
    (record,) = [each for each in read_records(text.encode()) if each.decider == "driver-plan"]
    return record


@pytest.fixture(scope="module")
def rollout() -> Record:
    """The record of a rollout to a set that crashes: the first nodes fail, and all go back."""
    fleet = SimulatedFleet(list(NODES), FIRST, SETS, 2, 2)
    controller = Controller(fleet, UpgradePolicy(max_parallel=2, max_unavailable=2), CRASHING)
    controller.recorders = Recorders(10_000)
    settled(fleet, controller)
    (record,) = controller.recorders.records()
    return read_records(msgspec.json.encode(record))[0]


def results(record: Record) -> Iterator[Any]:
    for each in record.decisions:
        yield decode(each.result, DECIDERS[record.decider].modules)


def test_the_plan_is_replayed_without_a_difference(plan: Record) -> None:
    assert any(each.instructions for each in results(plan))
    assert not [*replay(plan, DECIDERS["driver-plan"])]


def test_the_rollout_is_replayed_without_a_difference(rollout: Record) -> None:
    assert any(each.stopped for each in results(rollout))
    assert sum(len(each.instructions) for each in results(rollout)) > 10
    assert not [*replay(rollout, DECIDERS["driver-rollout"])]


def differences(record: Record, changed: Any, attribute: str) -> int:
    """Replays with a changed decider; each difference must be one of this attribute of the result."""
    known = DECIDERS[record.decider]
    found = [*replay(record, msgspec.structs.replace(known, decider=f"{__name__}:{changed.__name__}"))]
    for each in found:
        before, now = (decode(one.result, known.modules) for one in (each.recorded, each.now))
        assert getattr(before, attribute) != getattr(now, attribute)
    return len(found)


def test_a_changed_planner_differs_where_its_result_changed(plan: Record) -> None:
    assert 0 < differences(plan, plan_without_labels, "instructions") < len(plan.decisions)


def test_a_changed_rollout_differs_where_its_result_changed(rollout: Record) -> None:
    assert 0 < differences(rollout, decide_without_stop, "stopped") < len(rollout.decisions)


def test_no_password_is_in_a_record(text: str) -> None:
    assert "driver-plan" in text
    assert PASSWORD not in text


def test_a_recorded_policy_has_the_digest_of_the_original() -> None:
    policy = DriverPolicy(
        kind="ClusterPolicy",
        name="p",
        env=({"name": "A", "value": PASSWORD},),
        args=(PASSWORD,),
        annotations={"a": PASSWORD},
        manager=OperandSettings(env={"A": PASSWORD}),
        toolkit=OperandSettings(env={"A": PASSWORD}),
    )
    data = encode(policy)
    assert PASSWORD not in str(data)
    copy = decode(data, DECIDERS["driver-plan"].modules)
    assert copy.settings_digest == policy.settings_digest
    assert encode(copy) == data
