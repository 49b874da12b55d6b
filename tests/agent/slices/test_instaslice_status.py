"""The agent writes its node's part of the Instaslice object, and only differences."""

import json
from typing import Any

import msgspec
import pytest

from tessera.agent.inventory.gpu_inventory import read_gpu_inventory
from tessera.agent.inventory.sliceable_gpus import SliceableGpus, SlicePosition, sliceable_gpus
from tessera.agent.slices.events import (
    ExecutorReady,
    GpuRead,
    InitialSyncDone,
    ObservedInstance,
    PodChanged,
    PodDeleted,
    SliceJournal,
)
from tessera.agent.slices.instaslice_status import NodeDescription, foreign_slices, instaslice_event, status_patch
from tessera.agent.slices.slice_table import SliceTable
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.instaslice import (
    ForeignSlice,
    Instaslice,
    InstasliceStatus,
    NodeGpu,
    NodeResources,
    NodeSummary,
    ProfilePlacements,
    summarize,
)
from tessera.api.instaslice import Position as Place
from tessera.api.names import PodUid
from tessera.clock import SystemClock
from tessera.nvml.simulated.machine_access import InlineNvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

ROW = ProfilePlacements(placements=(Place(start=0, size=1),), gi_profile_id=19, ci_profile_id=0)
POD = PodUid("pod-1")
AT = SlicePosition("GPU-a", "3g.20gb", 4)
MADE = GpuRead(
    "GPU-a", {"3g.20gb": (0, 4)}, (ObservedInstance(gi_id=1, position=AT, size=4, computes=((0, "MIG-1"),)),)
)
HALF = GpuRead("GPU-a", {"3g.20gb": (0, 4)}, (ObservedInstance(gi_id=1, position=AT, size=4),))
NONE = GpuRead("GPU-a", {"3g.20gb": (0, 4)}, ())
HERE, OVER, GONE = PodChanged(POD, ended=False), PodChanged(POD, ended=True), PodDeleted(POD)


def patched(before: NodeResources, after: NodeResources) -> object:
    item = Instaslice(status=InstasliceStatus(node_resources=before))
    return json.loads(msgspec.json.encode(status_patch(item, SliceTable(SliceJournal()), after)))


def written(*facts: Any, promised: bool = True, result: tuple[str, str] | None = None, unbound: bool = True) -> object:
    """The entry of the pod in the patch after these events; ``result`` has the states of the present entry."""
    piece = {"id": "a", "profile": "3g.20gb", "gpuUUID": "GPU-a", "start": 4, "size": 4}
    request = {"profile": "3g.20gb", "podRef": {"namespace": "ns", "name": "web", "uid": POD}, "slices": [piece]}
    item: dict[str, Any] = {"metadata": {"name": "n1"}, "spec": {"podAllocationRequests": {POD: request}}}
    if not promised:
        del item["spec"]
    if result is not None:
        states = {"allocationStatusController": result[0], "allocationStatusDaemonset": result[1]}
        entry = {"gpuUUID": "GPU-a", "migPlacement": {"size": 4, "start": 4}, "nodename": "n1"}
        entry |= {"allocationStatus": states, "configMapResourceIdentifier": "x"}
        item["status"] = {"podAllocationResults": {POD: entry}}
    made = SliceStateMachine(SliceJournal(owners={AT.device_id: POD}))
    seen = msgspec.convert(item, Instaslice)
    for fact in (instaslice_event(seen), *facts, InitialSyncDone()):
        made.handle(fact)
    made.handle(ExecutorReady("GPU-a", 0.0))
    patch = status_patch(seen, made.table, NodeResources(), unbound=unbound)
    return patch.get("status", {}).get("podAllocationResults", {}).get(POD, "nothing")


def test_a_status_that_is_up_to_date_is_not_written() -> None:
    same = NodeResources(mig_placement={"1g.5gb": ROW}, boot_id="b")
    assert patched(same, same) == {}


def test_profiles_of_cards_that_were_exchanged_are_removed() -> None:
    before, after = NodeResources(mig_placement={"1g.5gb": ROW}), NodeResources(mig_placement={"1g.6gb": ROW})
    row = {"placements": [{"size": 1, "start": 0}], "giProfileId": 19, "ciProfileId": 0}
    assert patched(before, after) == {"status": {"nodeResources": {"migPlacement": {"1g.5gb": None, "1g.6gb": row}}}}


def test_a_result_is_written_once_for_slices_that_exist_and_a_pod_that_is_bound() -> None:
    assert written(MADE, HERE) == {
        "allocationStatus": {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"},
        "configMapResourceIdentifier": "8bf32089-8c96-5229-a08e-aa7f7aad9fa4",
        "gpuUUID": "GPU-a",
        "migPlacement": {"size": 4, "start": 4},
        "nodename": "n1",
    }


def test_a_slice_whose_pod_is_not_bound_yet_can_wait() -> None:
    assert written(MADE, unbound=False) == "nothing"
    early = written(MADE)
    assert isinstance(early, dict)
    assert early["allocationStatus"] == {
        "allocationStatusController": "creating",
        "allocationStatusDaemonset": "created",
    }
    assert written(MADE, HERE, result=("creating", "created")) == {
        "allocationStatus": {"allocationStatusController": "ungated"}
    }


@pytest.mark.parametrize(
    ("facts", "promised", "result", "expected"),
    [
        ((HALF, HERE), True, None, "nothing"),
        ((MADE, OVER), True, None, "nothing"),
        ((MADE, HERE), True, ("ungated", "created"), "nothing"),
        ((MADE, HERE, GONE), True, ("ungated", "created"), "nothing"),
        ((NONE, HERE, GONE), True, ("ungated", "created"), "nothing"),
        ((MADE, HERE, GONE), False, ("ungated", "created"), "nothing"),
        ((NONE, HERE, GONE), False, ("ungated", "created"), None),
        ((MADE, HERE), False, ("ungated", "created"), "nothing"),
    ],
    ids=[
        "half made",
        "made for a pod that has ended",
        "up to date",
        "the pod is gone, its slice is not",
        "the slice is gone, the promise is not",
        "the promise is gone, the slice is not",
        "all is gone",
        "the promise was lost under a living pod",
    ],
)
def test_a_result_remains_as_long_as_a_slice_or_a_promise(
    facts: tuple[Any, ...], promised: bool, result: tuple[str, str] | None, expected: object
) -> None:
    assert written(*facts, promised=promised, result=result) == expected


@pytest.mark.parametrize(
    ("facts", "result", "changes"),
    [
        (
            (MADE, HERE),
            ("creating", ""),
            {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"},
        ),
        ((MADE, HERE), ("ungated", ""), {"allocationStatusDaemonset": "created"}),
        ((NONE,), ("deleting", "created"), {"allocationStatusDaemonset": "deleted"}),
    ],
    ids=["promised by an earlier version", "ungated by it", "asked for its slices"],
)
def test_states_of_the_controller_are_answered(
    facts: tuple[Any, ...], result: tuple[str, str], changes: dict[str, str]
) -> None:
    assert written(*facts, result=result) == {"allocationStatus": changes}


@pytest.mark.parametrize(("recorded", "told"), [(True, 0), (False, 1)])
def test_a_slice_that_cannot_be_destroyed_is_foreign_once_nothing_records_it(recorded: bool, told: int) -> None:
    """Its promise is gone; a result of it says to the controller that the slots are taken."""
    made = SliceStateMachine(SliceJournal(owners={AT.device_id: POD}, released=(POD,)))
    entry = {
        "allocationStatus": {"allocationStatusController": "ungated", "allocationStatusDaemonset": "created"},
        "configMapResourceIdentifier": "x",
        "gpuUUID": "GPU-a",
        "migPlacement": {"size": 4, "start": 4},
        "nodename": "n1",
    }
    status = {"podAllocationResults": {POD: entry}} if recorded else {}
    for fact in (instaslice_event(msgspec.convert({"status": status}, Instaslice)), MADE, InitialSyncDone()):
        made.handle(fact)
    assert len(foreign_slices(SliceableGpus(), made.table)) == told


async def test_cards_keep_the_drivers_index_when_another_card_is_withheld() -> None:
    hardware = InlineNvml(SimulatedMachine("3xA100-40GB", seed="node-1", mig=True), SystemClock())
    cards = sliceable_gpus(await read_gpu_inventory(hardware))
    description, slices = NodeDescription(cards), SliceTable(SliceJournal())
    assert [each.index for each in description.resources(slices, "b").node_gpus] == [None, None, None]
    left = description.resources(slices, "b", {cards.gpus[0].uuid})
    assert [each.index for each in left.node_gpus] == [1, 2]
    assert left.indexes() == {cards.gpus[1].uuid: 1, cards.gpus[2].uuid: 2}


def gpu(uuid: str, name: str = "A100") -> NodeGpu:
    return NodeGpu(gpu_uuid=uuid, gpu_name=name, gpu_memory="40Gi")


EIGHT = {"1g.5gb": ProfilePlacements(placements=(Place(start=7, size=1),), gi_profile_id=19, ci_profile_id=0)}


@pytest.mark.parametrize(
    ("resources", "cards", "summary"),
    [
        (NodeResources(), 0, NodeSummary(cards=0, model="", used_slots=0, free_slots=0, pods=0, health="healthy")),
        (
            NodeResources(node_gpus=(gpu("GPU-a"), gpu("GPU-b", "A30")), mig_placement=EIGHT),
            3,
            NodeSummary(
                cards=3, model="A100 and 1 other", used_slots=4, free_slots=12, pods=1, health="1 of 3 withheld"
            ),
        ),
        (
            NodeResources(
                node_gpus=(gpu("GPU-a"),),
                mig_placement=EIGHT,
                foreign=tuple(ForeignSlice(gpu_uuid=card, start=0, size=n) for card, n in (("GPU-a", 4), ("GPU-x", 8))),
            ),
            1,
            NodeSummary(cards=1, model="A100", used_slots=16, free_slots=0, pods=1, health="healthy"),
        ),
    ],
)
def test_the_columns_follow_from_the_rest_of_the_status(
    resources: NodeResources, cards: int, summary: NodeSummary
) -> None:
    results = {"pod-1": ["GPU-a"] * 4} if cards else {}
    assert summarize(results, resources, cards) == summary
