"""A namespace with Kueue whose whole cards Tessera places: Kueue charges and goes first, Tessera places."""

from collections.abc import Callable

from tests.support.kueue.cluster import IMAGE, KueueCluster

from tessera.api.names import GATE
from tessera.kube.resources import NAMESPACES, PODS
from tessera.kueue.configuration import ALL_CARDS
from tessera.kueue.objects import ADMISSION_GATE, QUEUE_LABEL

GPU = "nvidia.com/gpu"


async def open_queue(cluster: KueueCluster, cards: int, *, checked: bool = False) -> None:
    """A queue with a quota of whole cards, for the namespace, which is managed."""
    covered = ["cpu", "memory", GPU]
    quotas = [
        {"name": name, "nominalQuota": amount} for name, amount in zip(covered, ("64", "64Gi", cards), strict=True)
    ]
    group = {"coveredResources": covered, "flavors": [{"name": ALL_CARDS, "resources": quotas}]}
    await cluster.open_queue(0, checked=checked, resourceGroups=[group])
    labels = {"tessera.dev/placement": "managed"}
    await cluster.client.merge_patch(NAMESPACES, cluster.namespace, {"metadata": {"labels": labels}})


async def create(cluster: KueueCluster, name: str, cards: int) -> None:
    """A pod with whole cards in the queue."""
    amounts = {"cpu": "100m", "memory": "64Mi", GPU: str(cards)}
    container = {"name": "c", "image": IMAGE, "resources": {"limits": amounts, "requests": amounts}}
    body = {
        "metadata": {"name": name, "labels": {QUEUE_LABEL: "slices"}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]},
    }
    await cluster.client.create(PODS.as_dicts(), body, cluster.namespace)


async def gates(cluster: KueueCluster, name: str) -> set[str]:
    pod = await cluster.client.get(PODS, name, cluster.namespace)
    return {each.name for each in pod.spec.scheduling_gates}


async def runs(cluster: KueueCluster, *names: str) -> None:
    async def all_run() -> bool:
        return set(names) <= set(await cluster.running())

    await cluster.until(all_run, f"{names} run")


def test_kueue_goes_first_and_tessera_places_what_it_admits(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await open_queue(cluster, 2)
        await create(cluster, "first", 2)
        await runs(cluster, "first")
        pod = await cluster.client.get(PODS, "first", cluster.namespace)
        assert pod.spec.node_selector["kubernetes.io/hostname"] == "node-1"
        await create(cluster, "second", 1)

        async def held() -> bool:
            return await gates(cluster, "second") == {ADMISSION_GATE, GATE}

        await cluster.until(held, "the quota is used up, so Kueue holds the second, and Tessera does nothing")
        await cluster.client.delete(PODS, "first", cluster.namespace, grace_seconds=0)
        await runs(cluster, "second")

    with_kueue(story, nodes="4xA100-40GB", mig_config="")


def test_with_the_check_kueue_admits_what_the_cards_can_hold(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await open_queue(cluster, 8, checked=True)
        await create(cluster, "first", 3)
        await runs(cluster, "first")
        await create(cluster, "second", 2)

        async def sent_back() -> bool:
            return '"packable" (there is no room (2 x nvidia.com/gpu)' in await cluster.reason("second", "Evicted")

        await cluster.until(sent_back, "one free card is too few, and the check says so")
        await cluster.client.delete(PODS, "first", cluster.namespace, grace_seconds=0)
        await runs(cluster, "second")

    with_kueue(story, nodes="4xA100-40GB", mig_config="", ready_timeout=60.0)
