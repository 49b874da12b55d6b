"""Tessera's processes die at any point of a pod's life: it still runs, nothing is left over, nothing is used twice.

While an agent is dead kubelet refuses pods that come in just then, as a real one does, so the pod has an owner that
replaces it.
"""

import pytest
from tests.support.mortal_process import MortalAgent, MortalController, die_at, fate_of
from tests.support.virtual_lab import InLab, Scenario, VirtualLab

#: The parts of the agent's calls: `make test` tries some, `make soak` each.
OFTEN = [("before", 0), ("after", 2)]
RARELY = [("before", 1), ("before", 2), ("before", 3), ("after", 0), ("after", 1), ("after", 3)]
PARTS = [*OFTEN, *(pytest.param(*each, marks=pytest.mark.soak) for each in RARELY)]
#: More writes of the controller than a pod's whole life has; the test proves that it is.
WRITES = 5
#: More NVML calls of the agent than a pod's whole life has; the test proves that it is.
CALLS = 40


def life_of_a_pod(at: int, *, after: bool) -> Scenario:
    """A pod with two slices lives and dies beside a neighbour that keeps its own; then everything must be in order."""

    async def scenario(lab: VirtualLab) -> bool:
        fate = fate_of(lab)
        await lab.create("neighbour", {"nvidia.com/mig-2g.10gb": 1})
        await lab.running("neighbour")
        kept = lab.devices("neighbour")
        fate.arm(at, after=after)
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
        return fate.struck

    return scenario


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_controller_may_die_at_any_write(in_lab: InLab, when: str) -> None:
    def outlives(at: int) -> bool:
        story = life_of_a_pod(at, after=when == "after")
        return bool(in_lab(story, nodes="1xA100-40GB", cluster_type=MortalController))

    die_at(range(1, WRITES + 1), outlives, every=2)


@pytest.mark.parametrize(("when", "part"), PARTS)
def test_the_agent_may_die_at_any_nvml_call(in_lab: InLab, when: str, part: int) -> None:
    def outlives(at: int) -> bool:
        story = life_of_a_pod(at, after=when == "after")
        return bool(in_lab(story, nodes="1xA100-40GB", cluster_type=MortalAgent))

    die_at(range(part + 1, CALLS + 1, 4), outlives, every=3)
