"""A change in the agent wakes the parts that it concerns, and no others."""

import pytest
from bench.trail import measure

#: By trip, parts of the agent that it does not concern.
UNCONCERNED = {
    "pod": [
        "config",
        "health/executor",
        "health/pod_reporter",
        "memory",
        "mig_config",
        "monitoring",
        "mps",
        "node_status",
        "sharing/occupancy",
        "sharing/offer",
    ],
    "label": [
        "health/executor",
        "health/pod_reporter",
        "mig_config/card_reconciler",
        "monitoring",
        "mps/supervisor",
        "slices/executor",
        "slices/instaslice_status",
        "slices/state_machine",
    ],
    "xid": [
        "config/selection",
        "driver/driver_state",
        "memory",
        "mig_config/card_reconciler",
        "monitoring/sampler",
        "mps/supervisor",
    ],
}


@pytest.mark.parametrize("trip", UNCONCERNED)
def test_a_change_wakes_only_the_parts_of_the_agent_that_it_concerns(trip: str) -> None:
    entered = measure(trip)["entered"]
    woken = [part for part in UNCONCERNED[trip] if any(file.startswith(f"agent/{part}") for file in entered)]
    assert woken == []
