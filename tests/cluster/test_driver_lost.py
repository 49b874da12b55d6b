"""Pods that use cards stand in a driver's way: in that of the next one, and of their own where its pod was lost.

A driver cannot be unloaded under them, nor come back over itself.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from tests.cluster.driverlab import K1, NEWER, REPOSITORY, Drivers, boot, node, precompiled
from tests.support.booted_lab import BootedLabs

from tessera.api.nodes.node_marks import PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL, DriverPhase, DriverStatus
from tessera.driver.images import Outcome
from tessera.driver.node_facts import REQUESTED_ANNOTATION
from tessera.driver.rollout.candidates import FAILURES_CONFIG_MAP, read_failures
from tessera.kube.errors import NotFound
from tessera.kube.resources import CONFIGMAPS, NODES, PODS, Node
from tessera.kube.resources.meta import Resource

CARD = {"nvidia.com/gpu": 1}
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, dict[str, Any])
#: Simulated seconds in which a node is emptied and has its driver again.
TIMEOUT = 3600.0


@pytest.fixture
def with_drivers(booted_labs: BootedLabs) -> Callable[..., None]:
    """Runs a scenario on one node without a driver, for which there are two precompiled ones."""
    images = precompiled(K1) | precompiled(K1, NEWER)
    return partial(booted_labs.run, "one of two drivers", partial(boot, nodes=[node("a")], images=images))


async def run_workload(lab: Drivers) -> None:
    await lab.served("a")
    await lab.create_owned("train", CARD)
    await lab.until(lambda: lab.ready_of("train"), "the workload runs")


async def keep_workload(lab: Drivers) -> None:
    """Nobody may evict the workload's only pod."""
    budget = {"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}}}
    await lab.client.apply(BUDGETS, "keep", budget, "default")


async def lose_driver_pod(lab: Drivers) -> None:
    """A workload runs, and from one moment to the next the pod of its node's driver is gone."""
    await run_workload(lab)
    (gone,) = [each for each in lab.own_pods.cache.values() if each.metadata.name.startswith("tessera-driver-")]
    await lab.client.delete(PODS, gone.metadata.name, "tessera-system", grace_seconds=0)
    await lab.until(lambda: not lab.gpus("a"), "the node offers no card any more")


async def all_is_back(lab: Drivers) -> None:
    await lab.until(lambda: lab.serves("a") and lab.ready_of("train"), "node and workload are back", TIMEOUT)


def told(lab: Drivers) -> DriverStatus:
    found = lab.told("a")
    assert found is not None
    return found


def seen(lab: Drivers) -> Node:
    found = lab.nodes.cache.get("a")
    assert found is not None
    return found


def labels(lab: Drivers) -> Mapping[str, str]:
    return seen(lab).metadata.labels


def state(lab: Drivers) -> str:
    return labels(lab).get(UPGRADE_STATE_LABEL, "")


def evicted(lab: Drivers) -> list[str]:
    return [each.name for each in lab.cluster.server.audit if each.subresource == "eviction" and each.code < 300]


async def failures(lab: Drivers) -> Any:
    try:
        return read_failures((await lab.client.get(CONFIGMAPS, FAILURES_CONFIG_MAP, "tessera-system")).data)
    except NotFound:
        return {}


def test_the_rollout_has_the_pods_leave_and_the_driver_comes_back(with_drivers: Callable[..., None]) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lose_driver_pod(lab)
        await all_is_back(lab)
        (gone,) = evicted(lab)
        assert gone.startswith("train-")
        await lab.until(lambda: labels(lab)[UPGRADE_STATE_LABEL] == "upgrade-done", "the rollout is done")
        assert (seen(lab).spec.unschedulable, labels(lab)[PAUSE_LABEL]) == (False, "true")

    with_drivers(scenario)


@pytest.mark.soak
def test_without_auto_upgrade_nobody_is_evicted_until_a_person_asks_for_it(with_drivers: Callable[..., None]) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy(upgradePolicy={"autoUpgrade": False})
        await lose_driver_pod(lab)
        await lab.until(lambda: "upgradePolicy.autoUpgrade is off" in told(lab).reason, "the node says why", TIMEOUT)
        await lab.clock.sleep(3600)
        assert told(lab).phase is DriverPhase.FAILED
        assert "cannot unload the driver before while pods use the cards" in told(lab).reason
        assert lab.ready_of("train")
        await lab.client.merge_patch(NODES, "a", {"metadata": {"annotations": {REQUESTED_ANNOTATION: "true"}}})
        await all_is_back(lab)
        assert len(evicted(lab)) == 1

    with_drivers(scenario)


def test_pods_that_cannot_be_evicted_are_asked_once_and_the_driver_comes_when_they_have_ended(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy(upgradePolicy={"autoUpgrade": True, "podDeletion": {"timeoutSeconds": 60}})
        await keep_workload(lab)
        await lose_driver_pod(lab)
        await lab.until(lambda: state(lab) == "upgrade-failed", "it was tried", TIMEOUT)
        await lab.clock.sleep(3600)
        assert (state(lab), evicted(lab)) == ("upgrade-failed", [])
        assert not seen(lab).spec.unschedulable
        assert "disruption budget" in told(lab).reason
        assert await failures(lab) == {}  # the driver set is as good as before
        await lab.delete_owned("train")
        await lab.until(lambda: lab.serves("a") and state(lab) == "upgrade-done", "the node serves", TIMEOUT)

    with_drivers(scenario)


@pytest.mark.soak
def test_pods_that_could_not_leave_say_nothing_against_the_next_driver_which_comes_when_they_have_ended(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        upgrade = {"autoUpgrade": True, "podDeletion": {"timeoutSeconds": 60}}
        await lab.policy(upgradePolicy=upgrade)
        await keep_workload(lab)
        await run_workload(lab)
        await lab.policy(version=NEWER, upgradePolicy=upgrade)
        await lab.until(lambda: state(lab) == "upgrade-failed", "it was tried", TIMEOUT)
        await lab.served("a")
        lab.cluster.add_node(node("b"))
        await lab.served("b")
        fresh = lab.told("b")
        assert fresh is not None
        assert fresh.version == NEWER  # though it did not come to the other node
        assert await failures(lab) == {}
        assert (state(lab), evicted(lab)) == ("upgrade-failed", [])
        await lab.delete_owned("train")
        await lab.until(lambda: told(lab).version == NEWER and lab.serves("a"), "it came", TIMEOUT)

    with_drivers(scenario)


def test_a_pause_that_a_person_left_on_a_node_whose_driver_works_is_taken_back(
    with_drivers: Callable[..., None],
) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a")
        await lab.client.merge_patch(NODES, "a", {"metadata": {"labels": {PAUSE_LABEL: PAUSED}}})
        await lab.until(lambda: labels(lab).get(PAUSE_LABEL) == "true", "the pause is over")
        await lab.served("a")

    with_drivers(scenario)


@pytest.mark.soak
def test_boots_are_no_crashes_of_a_driver(with_drivers: Callable[..., None]) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy()
        await lab.served("a")
        before = told(lab)
        lab.catalogue.refuse(
            f"{REPOSITORY}:*", Outcome.NOT_FOUND
        )  # the image is on the node, and nowhere else any more
        await lab.create_owned("train", CARD)
        for _ in range(5):
            await lab.until(lambda: lab.ready_of("train"), "the workload runs", TIMEOUT)
            lab.cluster.nodes["a"].reboot()
            await lab.until(lambda: not lab.gpus("a"), "the node is down")
            await lab.until(lambda: lab.serves("a") or told(lab).phase is DriverPhase.FAILED, "it is up again", TIMEOUT)
            assert (told(lab).phase, told(lab).set) == (DriverPhase.READY, before.set)
        assert evicted(lab) == []

    with_drivers(scenario)
