"""A fleet changes its driver behind a network that takes its time: parts of one controller do not overtake each other.

In the lab a watch shows a write at once. Here answers and watches come late, as on a real cluster, so what is decided
in between is decided from an old view.
"""

from collections import Counter
from pathlib import Path

import pytest
from tests.cluster.distance import Network, distant
from tests.cluster.fleet import NEW, Fleet, play

CONTROLLER = "system:serviceaccount:tessera-system:tessera-controller"
NODES = 4


@pytest.mark.soak
def test_few_writes_of_a_rollout_fail_and_none_is_made_twice(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        assert outcomes(fleet)[409] == 0
        fleet.cluster.server.audit.clear()
        await fleet.ask_for(NEW)
        await fleet.reach(lambda: set(fleet.states().values()) == {"upgrade-done"}, "all are done")
        # The agent, kubelet and what was told just before a node began may still come in between.
        assert outcomes(fleet)[409] <= 5 * NODES
        # A dozen steps, each of them told once: in an annotation and in a condition.
        assert sum(outcomes(fleet).values()) <= 45 * NODES

    play(tmp_path, scenario, f"{NODES}*1xA100-40GB", cluster_type=distant(Network(trip=0.03)))


def outcomes(fleet: Fleet) -> Counter[int]:
    """Counts the status codes of the controller's writes of nodes."""
    return Counter(
        each.code
        for each in fleet.cluster.server.audit
        if each.is_write and each.user == CONTROLLER and each.resource == "nodes"
    )
