"""Each kind of workload is charged its slices once: not twice, and not nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.kueue.cluster import KueueCluster, template

from tessera.api.names import QUOTA_RESOURCE
from tessera.kube.resources import JOBS, PODS
from tessera.kueue.objects import VERSIONS, Version
from tessera_lab.kueue.webhooks import KueueWebhooks

#: Kueue's webhook before Tessera's, as by the names of both, and after it.
ORDERS = ("kueue-mutating-webhook", "zz-kueue-mutating-webhook")


async def reserves(cluster: KueueCluster, gigabytes: int) -> None:
    """Waits until the queue has reserved just this, and checks that it stays so."""

    async def exact() -> bool:
        return await cluster.reserved() == gigabytes

    await cluster.until(exact, f"the queue has reserved {gigabytes}Gi")
    await cluster.stays(exact, f"the queue has reserved {gigabytes}Gi", 5)


async def runs(cluster: KueueCluster, pods: int) -> None:
    async def enough() -> bool:
        return len(await cluster.running()) == pods

    await cluster.until(enough, f"{pods} pods run")


@pytest.mark.parametrize(
    ("version", "order"),
    [
        pytest.param(version, order, marks=pytest.mark.soak if number % 2 != place % 2 else ())
        for number, version in enumerate(VERSIONS)
        for place, order in enumerate(ORDERS)
    ],
)
def test_every_kind_is_charged_once(with_kueue: Callable[..., None], order: str, version: Version) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(160)
        await cluster.pod("single", "1g.5gb")
        await reserves(cluster, 5)
        await cluster.pod("member-0", "1g.5gb", group="pair", count=2)
        await cluster.pod("member-1", "1g.5gb", group="pair", count=2)
        await reserves(cluster, 15)
        await cluster.deployment("web", "1g.5gb", replicas=2)
        await reserves(cluster, 25)
        await cluster.stateful_set("store", "1g.5gb", replicas=2)
        await reserves(cluster, 35)
        await cluster.job("batch", template("1g.5gb"), parallelism=2)
        await reserves(cluster, 45)
        await runs(cluster, 9)
        await reserves(cluster, 45)

    with_kueue(story, order=order, version=version)


def test_a_job_of_60gi_is_held_by_a_quota_of_20gi(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.job("large", template("3g.20gb"), parallelism=3)

        async def held() -> bool:
            return f"podset request ({60 * 2**30})" in await cluster.reason("large")

        await cluster.until(held, "Kueue tells why it is held")
        assert await cluster.pods() == []
        assert await cluster.reserved() == 0

    with_kueue(story)


@pytest.mark.parametrize("order", ORDERS)
def test_a_job_with_requirements_is_charged_the_slice_that_it_gets(with_kueue: Callable[..., None], order: str) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.job("needs", template(gpu_memory="10Gi"), parallelism=2)
        await reserves(cluster, 20)
        await runs(cluster, 2)
        for pod in await cluster.pods():
            limits = pod["spec"]["containers"][0]["resources"]["limits"]
            assert limits == {"nvidia.com/mig-1g.10gb": "1", QUOTA_RESOURCE: "10Gi"}
        await cluster.job("more", template(gpu_memory="10Gi"))

        async def held() -> bool:
            return f"{10 * 2**30} more needed" in await cluster.reason("more")

        await cluster.until(held, "the next one is held")

    with_kueue(story, order=order)


def test_a_job_that_kueue_manages_without_a_label_is_written(with_kueue: Callable[..., None]) -> None:
    """Kueue has suspended it when Tessera's webhook is called: the names of both decide on the order."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        body = {"metadata": {"name": "plain"}, "spec": {"template": template(gpu_memory="10Gi")}}
        stored = await cluster.client.create(JOBS.as_dicts(), body, cluster.namespace)
        limits = stored["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {"nvidia.com/mig-1g.10gb": "1", QUOTA_RESOURCE: "10Gi"}

    with_kueue(story, webhooks=KueueWebhooks(everything=True))


def covering_our_resource() -> dict[str, Any]:
    """The other configuration: Kueue counts the resource that admission writes."""
    rule = {"input": QUOTA_RESOURCE, "strategy": "Replace", "outputs": {"tessera.dev/gpu-memory": "1"}}
    return {"excludeResourcePrefixes": ["nvidia.com/mig-"], "transformations": [rule]}


@pytest.mark.parametrize("order", ORDERS)
def test_where_kueue_counts_the_resource_of_pods_a_job_is_charged_too(
    with_kueue: Callable[..., None], order: str
) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80)
        await cluster.pod("single")
        await reserves(cluster, 20)
        await cluster.job("batch", template("3g.20gb"), parallelism=2)
        await reserves(cluster, 60)
        await runs(cluster, 3)

    with_kueue(story, order=order, resources=covering_our_resource())


def test_what_ends_gives_its_quota_back_and_the_next_runs(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(20)
        await cluster.pod("first")
        await runs(cluster, 1)
        await cluster.pod("second")

        async def held() -> bool:
            return f"{20 * 2**30} more needed" in await cluster.reason("second")

        await cluster.until(held, "the second is held")
        await cluster.client.delete(PODS, "first", cluster.namespace)

        async def next_runs() -> bool:
            return await cluster.running() == ["second"]

        await cluster.until(next_runs, "the second runs")
        await reserves(cluster, 20)

    with_kueue(story)
