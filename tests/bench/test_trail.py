"""A change wakes the parts that it concerns, and a pod meets the features that it needs, and no others."""

from pathlib import Path

import pytest
from bench.trail import measure

import tessera

PRODUCT = Path(tessera.__file__).parent

#: By trip, parts of the agent that it does not concern.
UNCONCERNED = {
    "pod": [
        "config",
        "driver",
        "health",
        "lifecycle",
        "run",
        "wiring",
        "mig_config",
        "monitoring",
        "mps",
        "node_status",
        "sharing",
        "simulated",
    ],
    "label": [  # it changes the amounts of the Node, which health and slices follow, and takes a second of samples
        "health",
        "mig_config",
        "mps",
        "slices",
    ],
    "node": [
        "config",
        "driver/gate",
        "health",
        "inventory",
        "mig_config",
        "monitoring",
        "mps",
        "node_status",
        "sharing",
        "slices",
    ],
    "xid": [
        "mig_config/card_reconciler",
        "monitoring/sampler",
        "mps/process_launcher",
    ],
}


#: Features of the controller that a pod with one slice does not need, while nobody else does.
FEATURES = [
    "controller/cluster/pod_affinity",
    "controller/cluster/volumes",
    "controller/fault_breaker",
    "controller/fault_evictions",
    "controller/silent_agents",
    "controller/objects/pod_preferences",
    "controller/slicing/gangs",
    "controller/slicing/proposers/move_finder",
    "controller/slicing/proposers/mover",
    "controller/slicing/proposers/place_search",
    "controller/slicing/proposers/preemptor",
    "controller/slicing/proposers/reserver",
    "controller/slicing/state/node_records",
    "controller/slicing/state/queue_ledger",
    "controller/slicing/state/reservation_rules",
    "handover",
    "kueue",
    "scale_up",
]
#: Such features that share their file with what every pod needs, by file and class.
CLASSES = [
    "controller/cluster/filters.py:AvoidedNodes",
    "controller/cluster/filters.py:NodeAvoidance",
    "controller/slicing/planner.py:SmallNodes",
    "controller/slicing/state/slicer_state.py:GangTable",
]
#: Files of the controller that such a pod enters at most.
CONTROLLER_FILES = 26


#: By trip, parts outside the agent that it does not concern.
ELSEWHERE = {
    "label": [
        "agent/driver/gate",
        "driver",
        "provisioning/replacement",
        "provisioning/startup_deadline",
        "provisioning/startup_taints",
        "provisioning/timestamps",
        "provisioning/tracker",
    ],
    "node": [
        "controller/objects",
        "controller/slicing",
        "driver",
        "memory_limits",
        "placement",
        "provisioning/replacement",
        "provisioning/startup_deadline",
        "provisioning/startup_taints",
        "provisioning/timestamps",
        "provisioning/tracker",
        "webhook",
    ],
    "pod": [
        "driver",
        "memory_limits",
        "provisioning/replacement",
        "provisioning/history",
        "provisioning/milestones",
        "provisioning/recording",
        "provisioning/startup_deadline",
        "provisioning/startup_taints",
        "usage",
        "webhook/main",
        "webhook/restriction",
    ],
    "xid": ["memory_limits"],
}


def test_every_part_named_here_is_a_folder_a_file_or_a_class() -> None:
    inside = {part for parts in UNCONCERNED.values() for part in parts}
    named = {f"agent/{part}" for part in inside}.union(FEATURES, *ELSEWHERE.values())
    assert [part for part in sorted(named) if not any((PRODUCT / f"{part}{end}").exists() for end in ("", ".py"))] == []
    classes = [each.partition(":") for each in CLASSES]
    assert [name for file, _, name in classes if f"class {name}" not in (PRODUCT / file).read_text()] == []


@pytest.mark.parametrize("trip", UNCONCERNED)
def test_a_change_wakes_only_the_parts_that_it_concerns(trip: str) -> None:
    entered = measure(trip)["entered"]
    parts = [*(f"agent/{part}" for part in UNCONCERNED[trip]), *ELSEWHERE.get(trip, ())]
    woken = [part for part in parts if any(file.startswith(part) for file in entered)]
    assert woken == []


def test_a_pod_with_one_slice_enters_no_feature_of_the_controller_that_it_does_not_need() -> None:
    found = measure("pod")
    entered = [file for file in found["entered"] if not file.startswith("agent/")]
    assert [each for each in FEATURES if any(file.startswith(each) for file in entered)] == []
    assert [each for each in CLASSES if any(call.startswith(each) for call in found["called"])] == []
    assert len([file for file in entered if file.startswith("controller/")]) <= CONTROLLER_FILES
