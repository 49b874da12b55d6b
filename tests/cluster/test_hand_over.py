"""A service is updated on full cards: by hand-over where its annotation asks for it, and else the deadlock is named."""

from typing import Any

import pytest
from tests.cluster.test_inheritance import runs, workload
from tests.support.mortal_process import MortalAgent, MortalController, die_at, fate_of
from tests.support.virtual_lab import InLab, Scenario, VirtualLab

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.handover.image_pulls import PULL_LABEL
from tessera.kube.resources import DEPLOYMENTS, PODS, Resource

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, dict[str, Any])
#: Time that a pull of an image takes.
PULL = 6.0
#: More writes of the controller than an update has; the test proves that it is.
WRITES = 30
#: More NVML calls of the agent than an update has.
CALLS = 60


def service(image: str, profile: str = "7g.40gb", replicas: int = 1, *, fails: bool = False, **spec: Any) -> Any:
    made = workload(image, profile, replicas, **spec)
    template = made["spec"]["template"]
    template["metadata"]["annotations"] = {UPDATE_ANNOTATION: HAND_OVER}
    template["spec"]["terminationGracePeriodSeconds"] = 1
    if fails:
        template["spec"]["containers"][0]["command"] = ["sh", "-c", "exit 1"]
    return made


async def update(lab: VirtualLab, wanted: dict[str, Any]) -> None:
    patch = {"spec": {"template": wanted["spec"]["template"]}}
    await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "svc", patch, "default")


async def start(lab: VirtualLab, wanted: dict[str, Any]) -> None:
    """The service fills the card, and another team's pod waits."""
    await lab.client.create(DEPLOYMENTS.as_dicts(), wanted, "default")
    await lab.until(lambda: runs(lab, "i:1", wanted["spec"]["replicas"]), "the service runs")
    await lab.clock.sleep(60)
    await lab.create("batch", {"nvidia.com/mig-3g.20gb": 1})
    await lab.clock.sleep(5)


def ready_pods(lab: VirtualLab, image: str = "") -> list[str]:
    """The service's pods that are ready, of one image or of all."""
    pods = [each for each in lab.pods.cache.values() if each.metadata.labels.get("app") == "svc"]
    names = [each.metadata.name for each in pods if image in {"", each.spec.containers[0].image}]
    return [each for each in names if lab.ready(each)]


async def fewest_ready(lab: VirtualLab, image: str, replicas: int) -> tuple[int, float]:
    """Waits for the end of an update; returns the fewest ready pods meanwhile, and seconds without any."""
    fewest, unserved = replicas, 0.0
    for _ in range(1_200):
        if runs(lab, image, replicas):
            return fewest, unserved
        await lab.clock.sleep(0.1)
        fewest = min(fewest, len(ready_pods(lab)))
        unserved += 0.1 * (not ready_pods(lab))
    raise AssertionError("the update does not end")


@pytest.mark.parametrize(("profile", "replicas"), [("7g.40gb", 1), ("3g.20gb", 2)])
def test_an_update_ends_on_full_cards_and_the_service_is_away_only_while_pods_change(
    in_lab: InLab, profile: str, replicas: int
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await start(lab, service("i:1", profile, replicas))
        await update(lab, service("i:2", profile, replicas))
        fewest, unserved = await fewest_ready(lab, "i:2", replicas)
        assert fewest == replicas - 1
        assert unserved < PULL / 2
        assert lab.phase("batch") == "Pending"
        await lab.clock.sleep(30)
        assert not (await lab.client.list(PODS, "tessera-system", label_selector=PULL_LABEL)).items

    in_lab(scenario, "1xA100-40GB", pull_seconds=PULL, slice_seconds=0.4)


def test_a_new_image_that_fails_gives_the_slots_back(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await start(lab, service("i:1", minReadySeconds=30))
        await update(lab, service("i:2", fails=True))
        await lab.until(lambda: not ready_pods(lab, "i:1"), "the old pod has ended")
        await lab.until(lambda: ready_pods(lab, "i:1"), "the old revision is back", 300)
        (name,) = ready_pods(lab)
        await lab.clock.sleep(900)
        assert ready_pods(lab) == [name]
        assert lab.phase("batch") == "Pending"
        await update(lab, service("i:3"))
        await lab.until(lambda: runs(lab, "i:3", 1), "the corrected update ends")

    in_lab(scenario, "1xA100-40GB")


def test_a_service_stays_up_while_an_image_of_its_update_does_not_exist(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await start(lab, service("i:1"))
        await update(lab, service("registry.example/NotAName:2"))
        await lab.until(lambda: told(lab, "its node does not get an image of this pod"), "the refusal is told")
        assert told(lab, "NotAName")
        for _ in range(25 * 60):
            await lab.clock.sleep(1)
            assert len(ready_pods(lab, "i:1")) == 1
        await update(lab, service("i:3"))
        await lab.until(lambda: runs(lab, "i:3", 1), "the corrected update ends")

    in_lab(scenario, "1xA100-40GB")


def test_a_budget_that_lets_no_pod_be_away_is_named(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        selector = {"matchLabels": {"app": "svc"}}
        budget = {"metadata": {"name": "svc"}, "spec": {"minAvailable": 1, "selector": selector}}
        await lab.client.create(BUDGETS, budget, "default")
        await start(lab, service("i:1"))
        await update(lab, service("i:2"))
        await lab.until(lambda: told(lab, "its eviction is refused"), "the refusal is told")
        assert len(ready_pods(lab)) == 1
        await lab.client.delete(BUDGETS, "svc", "default")
        await lab.until(lambda: runs(lab, "i:2", 1), "the service is updated")

    in_lab(scenario, "1xA100-40GB")


def told(lab: VirtualLab, words: str) -> bool:
    return any(words in each.message for each in lab.events.cache.values() if each.reason == "SliceUpdate")


def updated_though_killed(at: int, *, after: bool, yields: bool = False) -> Scenario:
    """An update during which a process dies; ``yields`` if the other team's pod may get the slots, and then ends."""

    async def scenario(lab: VirtualLab) -> bool:
        fate = fate_of(lab)
        await start(lab, service("i:1"))
        fate.arm(at, after=after)
        await update(lab, service("i:2"))
        await lab.until(lambda: ready_pods(lab, "i:2") or (yields and lab.ready("batch")), "a pod runs", 300)
        if yields and lab.ready("batch"):
            promised = {each.involved_object.name for each in lab.events.cache.values() if each.reason == "SliceReady"}
            assert len(promised) > 2, "the new pod had the slots first, and kubelet refused it"
            await lab.delete("batch")
            await lab.until(lambda: ready_pods(lab, "i:2"), "the service is updated", 300)
        else:
            assert lab.phase("batch") == "Pending"
        fate.armed = False
        return fate.struck

    return scenario


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_controller_may_die_at_any_write(in_lab: InLab, when: str) -> None:
    def outlives(at: int) -> bool:
        story = updated_though_killed(at, after=when == "after")
        return bool(in_lab(story, nodes="1xA100-40GB", cluster_type=MortalController))

    die_at(range(1, WRITES + 1), outlives, every=9)


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_agent_may_die_at_any_nvml_call(in_lab: InLab, when: str) -> None:
    """Kubelet refuses a pod that comes while the agent is away for good, and such a pod leaves no slots."""

    def outlives(at: int) -> bool:
        story = updated_though_killed(at, after=when == "after", yields=True)
        return bool(in_lab(story, nodes="1xA100-40GB", cluster_type=MortalAgent))

    die_at(range(1, CALLS + 1), outlives)
