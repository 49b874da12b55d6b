"""With the admission check, Kueue admits only what can be placed, so nothing is evicted at Tessera's gate."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.kueue.cluster import KueueCluster, template

from tessera.kube.resources import MUTATING_WEBHOOKS, NODES, PODS
from tessera.kueue.objects import ADMISSION_GATE, VERSIONS, Version
from tessera_lab.kueue.workloads import condition, is_true

#: Kueue evicts after this, and a freed slot needs less.
TIMEOUT = 60.0


async def runs(cluster: KueueCluster, *names: str) -> None:
    async def all_run() -> bool:
        return set(names) <= set(await cluster.running())

    await cluster.until(all_run, f"{names} run")


async def fill_card(cluster: KueueCluster, quota: int, *, checked: bool = False) -> None:
    """Opens the queue with this quota, and runs the pod ``first`` on a whole card."""
    await cluster.open_queue(quota, checked=checked)
    await cluster.pod("first", "7g.40gb")
    await runs(cluster, "first")


async def is_sent_back(cluster: KueueCluster, name: str) -> None:
    async def evicted() -> bool:
        return '"packable" (there is no room (7g.40gb)' in await cluster.reason(name, "Evicted")

    await cluster.until(evicted, f"the check sends {name} back with the reason")


async def names(cluster: KueueCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in await cluster.pods()]


def test_without_the_check_a_pod_that_waits_for_room_is_evicted_for_good(with_kueue: Callable[..., None]) -> None:
    """What the check is for; seen with a real Kueue too."""

    async def story(cluster: KueueCluster) -> None:
        await fill_card(cluster, 80)
        await cluster.pod("second", "7g.40gb")

        async def gone() -> bool:
            return await names(cluster) == ["first"]

        await cluster.until(gone, "the second is deleted", 2 * TIMEOUT)

    with_kueue(story, nodes="1xA100-40GB", ready_timeout=TIMEOUT)


@pytest.mark.parametrize("version", VERSIONS)
def test_with_the_check_it_waits_at_kueues_gate_and_runs_when_there_is_room(
    with_kueue: Callable[..., None], version: Version
) -> None:
    async def story(cluster: KueueCluster) -> None:
        await fill_card(cluster, 80, checked=True)
        await cluster.pod("second", "7g.40gb")
        await is_sent_back(cluster, "second")

        async def held() -> bool:
            (_, second) = await cluster.pods()
            return ADMISSION_GATE in [gate["name"] for gate in second["spec"]["schedulingGates"]]

        await cluster.stays(held, "the second is held by Kueue", 2 * TIMEOUT)
        assert await cluster.reserved() <= 80
        await cluster.client.delete(PODS, "first", cluster.namespace)
        await runs(cluster, "second")

    with_kueue(story, nodes="1xA100-40GB", ready_timeout=TIMEOUT, version=version)


def test_a_deployments_pod_is_no_longer_remade_at_each_timeout(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await fill_card(cluster, 160, checked=True)
        await cluster.deployment("web", "7g.40gb")

        async def made() -> bool:
            return len(await names(cluster)) == 2

        await cluster.until(made, "the Deployment's pod exists")
        before = await names(cluster)

        async def same() -> bool:
            return await names(cluster) == before

        await cluster.stays(same, "its pod is the same", 4 * TIMEOUT)

    with_kueue(story, nodes="1xA100-40GB", ready_timeout=TIMEOUT)


def test_a_job_whose_pods_fit_in_sum_and_not_on_cards_is_not_started(with_kueue: Callable[..., None]) -> None:
    """Fragments: 20Gi are free on each of two cards, and a 7g.40gb needs one whole."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80, checked=True)
        spread = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"part": "x"}}}
        for name in ("left", "right"):
            affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [spread]}}
            await cluster.pod(name, "3g.20gb", labels={"part": "x"}, affinity=affinity)
        await runs(cluster, "left", "right")
        await cluster.job("whole", template("7g.40gb"))
        await is_sent_back(cluster, "whole")
        assert await names(cluster) == ["left", "right"]
        await cluster.job("half", template("3g.20gb"))

        async def half_runs() -> bool:
            return len(await cluster.running()) == 3

        await cluster.until(half_runs, "a smaller one runs meanwhile")

    with_kueue(story, nodes="1xA100-40GB,1xA100-40GB")


def two_cards() -> dict[str, Any]:
    """The template of a pod with two whole cards."""
    both: Any = template("7g.40gb")
    both["spec"]["containers"].append({**both["spec"]["containers"][0], "name": "more"})
    return dict(both)


def test_what_can_never_run_is_deactivated_with_the_reason(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80, checked=True)
        await cluster.client.delete(MUTATING_WEBHOOKS, "tessera-webhook")  # it would refuse the Job
        await cluster.job("never", two_cards())

        async def deactivated() -> bool:
            item = await cluster.workload("never")
            return item is not None and item["spec"]["active"] is False

        await cluster.until(deactivated, "Kueue deactivates it")
        assert "no node could hold" in await cluster.reason("never", "Evicted")

    with_kueue(story, nodes="1xA100-40GB")


def test_nothing_is_deactivated_while_a_new_node_has_not_told_its_cards(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80, checked=True)
        await cluster.client.create(NODES.as_dicts(), {"metadata": {"name": "new"}})
        await cluster.job("large", two_cards())

        async def is_active(name: str) -> bool:
            item = await cluster.workload(name)
            return item is not None and item["spec"]["active"] is True

        async def sent_back() -> bool:
            return "a new node may" in await cluster.reason("large", "Evicted")

        await cluster.until(sent_back, "the check sends it back")
        assert await is_active("large")
        discovered = {"annotations": {"nfd.node.kubernetes.io/feature-labels": "cpu-model.family"}}
        await cluster.client.merge_patch(NODES.as_dicts(), "new", {"metadata": discovered})

        async def deactivated() -> bool:
            return not await is_active("large")

        await cluster.until(deactivated, "Kueue deactivates it", 2 * TIMEOUT)

    with_kueue(story, nodes="1xA100-40GB")


def test_the_check_answers_within_seconds_and_its_time_stays(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(40, checked=True)
        await cluster.job("one", template("3g.20gb"))

        async def admitted() -> bool:
            item = await cluster.workload("one")
            return item is not None and is_true(item, "Admitted")

        await cluster.until(cluster.is_checked, "Tessera answers the check")
        await cluster.until(admitted, "it is admitted", 10)
        item = await cluster.workload("one")
        assert item is not None
        (state,) = item["status"]["admissionChecks"]
        assert (state["name"], state["state"], state["message"]) == ("packable", "Ready", "there is room for 3g.20gb")
        await cluster.clock.sleep(20)
        again = await cluster.workload("one")
        assert again is not None
        assert again["status"]["admissionChecks"] == [state]
        reserved = condition(again, "QuotaReserved")
        assert reserved is not None
        assert reserved["status"] == "True"

    with_kueue(story)


async def _count(cluster: KueueCluster, number: int) -> bool:
    return len(await cluster.pods()) == number


def test_a_kueue_without_the_field_of_the_delay_is_answered_too(with_kueue: Callable[..., None]) -> None:
    """Such a Kueue asks again at once; the pod is held and not evicted all the same."""

    async def story(cluster: KueueCluster) -> None:
        await fill_card(cluster, 80, checked=True)
        await cluster.pod("second", "7g.40gb")

        async def told() -> bool:
            item = await cluster.workload("second")
            checks = (item or {}).get("status", {}).get("admissionChecks") or ()
            return any(each["message"].startswith("there is no room (7g.40gb)") for each in checks)

        await cluster.until(told, "the check says why it waits")

        async def held() -> bool:
            return await names(cluster) == ["first", "second"]

        await cluster.stays(held, "no pod is evicted", 2 * TIMEOUT)
        await cluster.client.delete(PODS, "first", cluster.namespace)
        await runs(cluster, "second")

    with_kueue(story, nodes="1xA100-40GB", version="v1beta1", delays=False, ready_timeout=TIMEOUT)
