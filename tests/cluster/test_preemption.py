"""A pod of higher priority evicts the fewest and cheapest, through the eviction API, and budgets hold."""

from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.resources import DEPLOYMENTS, PODS
from tessera.kube.resources.meta import Resource
from tessera.provisioning.warm_nodes import Placeholder, placeholders

BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, dict[str, Any])
PRIORITIES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, dict[str, Any])
HALF = {"nvidia.com/mig-3g.20gb": 1}
WHOLE = {"nvidia.com/mig-7g.40gb": 1}


async def preempting(lab: VirtualLab) -> None:
    """The controller's option, and a priority class."""
    found = await lab.client.get(DEPLOYMENTS.as_dicts(), "tessera-controller", "tessera-system")
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["args"] = [*container["args"], "--preempt"]
    spec = {"template": {"spec": {"containers": [container]}}}
    await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "tessera-controller", {"spec": spec}, "tessera-system")
    await lab.client.create(PRIORITIES, {"metadata": {"name": "urgent"}, "value": 1000})
    await lab.clock.sleep(60)


def test_the_cheapest_of_the_fewest_is_evicted_and_a_pod_that_a_budget_protects_stays(
    in_lab: InLab,
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await preempting(lab)
        await lab.create("half-1", HALF)
        await lab.create("half-2", HALF)
        await lab.running("half-1", "half-2")
        await lab.create("older", WHOLE)
        await lab.running("older")
        await lab.clock.sleep(600)
        await lab.create("younger", WHOLE)
        await lab.running("younger")
        await lab.client.merge_patch(PODS, "younger", {"metadata": {"labels": {"app": "guarded"}}}, "default")
        budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}}
        await lab.client.apply(BUDGETS, "keep", budget, "default")

        await lab.create("equal", WHOLE)
        await lab.clock.sleep(120)
        assert lab.phase("equal") == "Pending", "a pod of the same priority evicts nobody"
        await lab.delete("equal")

        await lab.create("first", WHOLE, priorityClassName="urgent")
        await lab.running("first")
        assert not lab.phase("older")
        assert all(map(lab.ready, ("half-1", "half-2", "younger")))
        (told,) = lab.events_of("older", "SlicePreempted")
        assert "default/first" in told.message
        (asked,) = lab.events_of("younger", "SlicePreempted")
        assert asked.message.startswith("To be evicted, unless a PodDisruptionBudget keeps it: ")

    in_lab(scenario, "3xA100-40GB")


def test_two_halves_go_where_every_other_card_is_taken_by_pods_that_may_not_be_evicted(
    in_lab: InLab,
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await preempting(lab)
        await lab.create("same", WHOLE, priorityClassName="urgent")
        await lab.running("same")
        await lab.create("half-1", HALF)
        await lab.create("half-2", HALF)
        await lab.running("half-1", "half-2")
        polite = {"metadata": {"name": "polite"}, "value": 1000, "preemptionPolicy": "Never"}
        await lab.client.create(PRIORITIES, polite)
        await lab.create("never", WHOLE, priorityClassName="polite")
        await lab.clock.sleep(120)
        assert lab.phase("never") == "Pending"
        assert all(map(lab.ready, ("same", "half-1", "half-2")))
        await lab.delete("never")
        await lab.create("first", WHOLE, priorityClassName="urgent")
        await lab.running("first")
        assert lab.ready("same")
        assert [name for name in ("half-1", "half-2") if lab.events_of(name, "SlicePreempted")] == ["half-1", "half-2"]

    in_lab(scenario, "2xA100-40GB")


def test_placeholders_keep_slices_and_any_pod_takes_their_place(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        priority, deployment = placeholders(Placeholder(name="warm", resource="nvidia.com/mig-7g.40gb"), 2)
        await lab.client.create(PRIORITIES, priority)
        await lab.client.create(DEPLOYMENTS.as_dicts(), deployment, "default")
        kept = {"app.kubernetes.io/name": "warm"}

        def running() -> int:
            pods = [each for each in lab.pods.cache.values() if kept.items() <= each.metadata.labels.items()]
            return sum(lab.ready(each.metadata.name) for each in pods)

        await lab.until(lambda: running() == 2, "the placeholders run")
        await lab.create("real", WHOLE)
        await lab.running("real")
        assert running() == 1

    in_lab(scenario, "1xA100-40GB,1xA100-40GB")
