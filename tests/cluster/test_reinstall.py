"""Tessera is taken away while pods with slices run, and comes back: their slices are recorded as theirs again."""

from contextlib import suppress

import pytest
from tests.support.mortal_process import MortalAgent, MortalController, die_at, fate_of
from tests.support.virtual_lab import InLab, Scenario, VirtualLab

from tessera.doctor.manifests import install_manifests
from tessera.explain.card_map import cards_of
from tessera.kube.errors import NotFound
from tessera.kube.resources import PODS
from tessera.kube.resources.meta import resource_for
from tessera_lab.installation.install import install_tessera

PLACE = ("namespace", "name")


async def uninstall(lab: VirtualLab) -> None:
    """``kubectl delete -k deploy/``, which waits until every object is gone; then the same of Tessera's pods."""
    objects = [(resource_for(each), [each["metadata"].get(key) for key in PLACE]) for each in install_manifests()]
    for resource, (namespace, name) in objects:
        with suppress(NotFound):  # its namespace, or the definition of its kind, was deleted before it
            await lab.client.delete(resource, name, namespace, propagation="Background")
    for resource, (namespace, name) in objects:
        with suppress(NotFound):
            while True:
                await lab.client.get(resource, name, namespace)
                await lab.clock.sleep(1)
    while (await lab.client.list(PODS, "tessera-system")).items:
        await lab.clock.sleep(1)


def tiles(lab: VirtualLab) -> list[tuple[str, str, str, int]]:
    """Returns the slices that ``tessera map`` draws: pod, state, profile and start of each."""
    drawn = cards_of(list(lab.slices.cache.values()))
    found = [tile for node in drawn for card in node.cards for tile in card.tiles]
    return sorted((each.pod, each.state, each.profile, each.start) for each in found)


async def offers_again(lab: VirtualLab) -> None:
    await lab.until(lambda: lab.slices.cache.get("instaslice-system/node-1") is not None, "the object is there")
    await lab.until(lambda: lab.offers("node-1") and lab.trusts_webhook(), "the node serves")


@pytest.mark.parametrize("restarted", [False, True], ids=["as-it-comes", "controller-restarted"])
def test_slices_of_running_pods_are_recorded_again(in_lab: InLab, restarted: bool) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("one", {"nvidia.com/mig-3g.20gb": 1})
        await lab.create("two", {"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/mig-2g.10gb": 1})
        await lab.running("one", "two")
        drawn, hardware = tiles(lab), lab.hardware()
        assert len(drawn) == 3
        await uninstall(lab)
        assert lab.hardware() == hardware, "nothing is destroyed under a running pod"
        await install_tessera(lab.client)
        await offers_again(lab)
        if restarted:
            await lab.kill()
        await lab.until(lambda: lab.settled("one") and lab.settled("two"), "both are recorded")
        await lab.clock.sleep(60)
        assert tiles(lab) == drawn
        assert lab.instaslice().status.node_resources.foreign == ()
        assert lab.hardware() == hardware, "no second slice is made for them"
        await lab.create("next", {"nvidia.com/mig-7g.40gb": 1})
        for name in ("one", "two"):
            await lab.delete(name)
        await lab.running("next")
        await lab.delete("next")
        await lab.empty()
        assert lab.hardware() == []

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_container_that_ended_meanwhile_starts_again_with_its_slice(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("web", {"nvidia.com/mig-3g.20gb": 1}, command="sleep 100", restartPolicy="Always")
        await lab.running("web")
        devices, hardware = lab.devices("web"), lab.hardware()
        await uninstall(lab)
        await lab.until(lambda: not lab.ready("web"), "its container has ended")
        await lab.clock.sleep(300)
        assert not lab.ready("web"), "nobody prepares its device"
        await install_tessera(lab.client)
        await offers_again(lab)
        await lab.until(lambda: lab.settled("web"), "it is recorded")
        await lab.running("web")
        assert (lab.devices("web"), lab.hardware()) == (devices, hardware)

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_slice_whose_pod_ended_meanwhile_is_free(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.create("one", {"nvidia.com/mig-3g.20gb": 1})
        await lab.running("one")
        await uninstall(lab)
        await lab.delete("one")
        await install_tessera(lab.client)
        await offers_again(lab)
        await lab.create("next", {"nvidia.com/mig-7g.40gb": 1})
        await lab.running("next")

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_slice_that_somebody_else_made_stays_foreign(in_lab: InLab) -> None:
    """A pod of the very same profile runs on the node; that alone is no proof."""

    async def scenario(lab: VirtualLab) -> None:
        await lab.create("one", {"nvidia.com/mig-1g.5gb": 1})
        await lab.running("one")
        await uninstall(lab)
        machine = lab.machine()
        (gpu,) = machine.uuids()
        (ours,) = (each.start for each in machine.instances(gpu))
        other = 0 if ours else 6
        machine.create_gpu_instance(gpu, "1g.5gb", other)
        await install_tessera(lab.client)
        await offers_again(lab)
        await lab.until(lambda: lab.settled("one"), "it is recorded")
        assert tiles(lab) == [("", "foreign", "1g.5gb", other), ("default/one", "created", "1g.5gb", ours)]
        await lab.delete("one")
        await lab.empty()
        assert [start for _, _, start in lab.hardware()] == [other]

    in_lab(scenario, nodes="1xA100-40GB")


#: More writes of the controller than it takes to record two pods; the test proves that it is.
WRITES = 7
#: Some of the NVML calls of an agent that finds slices of its own: the first ones, and those of a later reading.
CALLS = (1, 2, 3, 5, 8, 13)


def death_after_the_return(at: int, *, after: bool) -> Scenario:
    """Tessera comes back to two pods, and a process dies once before it has recorded them."""

    async def scenario(lab: VirtualLab) -> bool:
        fate = fate_of(lab)
        await lab.create("one", {"nvidia.com/mig-3g.20gb": 1})
        await lab.create("two", {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-2g.10gb": 1})
        await lab.running("one", "two")
        drawn, hardware = tiles(lab), lab.hardware()
        await uninstall(lab)
        fate.arm(at, after=after)
        await install_tessera(lab.client)
        await offers_again(lab)
        await lab.until(lambda: lab.settled("one") and lab.settled("two"), "both are recorded")
        await lab.until(lambda: tiles(lab) == drawn, "where they were, and nothing else is there")
        assert lab.hardware() == hardware
        fate.armed = False
        for name in ("one", "two"):
            await lab.delete(name)
        await lab.empty()
        assert lab.hardware() == []
        return fate.struck

    return scenario


@pytest.mark.parametrize(
    "after", [pytest.param(False, id="before", marks=pytest.mark.soak), pytest.param(True, id="after")]
)
def test_the_controller_may_die_at_any_write(in_lab: InLab, after: bool) -> None:
    def outlives(at: int) -> bool:
        story = death_after_the_return(at, after=after)
        return bool(in_lab(story, nodes="1xA100-40GB", cluster_type=MortalController))

    die_at(range(1, WRITES + 1), outlives, every=4)


@pytest.mark.soak
@pytest.mark.parametrize("at", CALLS)
def test_the_agent_may_die_at_nvml_calls(in_lab: InLab, at: int) -> None:
    story = death_after_the_return(at, after=bool(at % 2))
    assert in_lab(story, nodes="1xA100-40GB", cluster_type=MortalAgent)
