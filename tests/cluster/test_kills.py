"""Tessera's processes die at any point of a pod's life: it still runs, nothing is left over, nothing is used twice.

While an agent is dead kubelet refuses pods that come in just then, as a real one does, so the pod has an owner that
replaces it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.support.mortal_process import Fate, mortal
from tests.support.virtual_lab import InLab, VirtualLab

#: The parts of the agent's calls: `make test` tries every fourth call, `make soak` each.
OFTEN = [("before", 0), ("after", 2)]
RARELY = [("before", 1), ("before", 2), ("before", 3), ("after", 0), ("after", 1), ("after", 3)]
PARTS = [*OFTEN, *(pytest.param(*each, marks=pytest.mark.soak) for each in RARELY)]
#: More writes of the controller than a pod's whole life has; the test proves that it is.
WRITES = 4
#: More NVML calls of the agent than a pod's whole life has; the test proves that it is.
CALLS = 40


def life_of_a_pod(fate: Fate, outcome: list[bool]) -> Callable[[Any], Any]:
    """A pod with two slices lives and dies beside a neighbour that keeps its own; then everything must be in order."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("neighbour", {"nvidia.com/mig-2g.10gb": 1})
        await lab.running("neighbour")
        kept = lab.devices("neighbour")
        fate.armed = True
        await lab.create_owned("pod", {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-3g.20gb": 1})
        await lab.until(lambda: lab.ready_of("pod"), "the pod runs")
        assert sorted(profile for _, profile, _ in lab.hardware()) == ["1g.5gb", "2g.10gb", "3g.20gb"]
        assert len({*kept, *lab.devices(lab.ready_of("pod"))}) == 3
        await lab.delete_owned("pod")
        await lab.until(lambda: len(lab.results()) == 1, "only the neighbour's record is left")
        fate.armed = False
        await lab.until(lambda: len(lab.instaslice().spec.pod_allocation_requests) == 1, "and only its promise")
        assert [profile for _, profile, _ in lab.hardware()] == ["2g.10gb"]
        assert lab.devices("neighbour") == kept
        await lab.delete("neighbour")
        await lab.empty()
        assert lab.hardware() == []
        outcome.append(fate.struck)

    return scenario


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_controller_may_die_at_any_write(in_lab: InLab, when: str) -> None:
    die_at(range(1, WRITES + 1), in_lab, "controller", when)


@pytest.mark.parametrize(("when", "part"), PARTS)
def test_the_agent_may_die_at_any_nvml_call(in_lab: InLab, when: str, part: int) -> None:
    die_at(range(part + 1, CALLS + 1, 4), in_lab, "agent", when)


def die_at(points: Sequence[int], in_lab: InLab, process: str, when: str) -> None:
    """Kills the process before or after each of these calls, in a cluster of its own; the last lies beyond its life."""
    outcome: list[bool] = []
    for at in points:
        fate = Fate(at, after=when == "after")
        in_lab(life_of_a_pod(fate, outcome), nodes="1xA100-40GB", cluster_type=mortal(process, fate))
    assert outcome[0]
    assert not outcome[-1], "the last point lies beyond the pod's life, so every point before it was tried"
