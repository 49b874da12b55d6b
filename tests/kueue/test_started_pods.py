"""After Kueue has admitted a pod: its second gate, its node selector, its comparison of containers, its preemption."""

from collections.abc import Callable

from tests.support.kueue.cluster import KueueCluster

from tessera.api.names import GATE
from tessera.kube.resources import PODS
from tessera.kueue.objects import ADMISSION_GATE, TOPOLOGY_GATE
from tessera_lab.kueue.webhooks import KueueWebhooks


async def runs(cluster: KueueCluster, name: str) -> None:
    async def found() -> bool:
        return name in await cluster.running()

    await cluster.until(found, f"{name} runs")


def test_three_gates_go_in_order_and_the_topologys_host_is_obeyed(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80)
        await cluster.pod("single")
        (pod,) = await cluster.pods()
        gates = {gate["name"] for gate in pod["spec"]["schedulingGates"]}
        assert gates == {ADMISSION_GATE, TOPOLOGY_GATE, GATE}
        await runs(cluster, "single")
        (pod,) = await cluster.pods()
        assert pod["spec"]["nodeName"] == "node-2"

    settings = {"webhooks": KueueWebhooks(topology=True), "hostname": "node-2"}
    with_kueue(story, nodes="1xA100-40GB,1xA100-40GB", **settings)


def test_a_running_pod_is_still_that_of_its_workload(with_kueue: Callable[..., None]) -> None:
    """Kueue deletes a pod whose containers differ from those in its Workload."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80)
        await cluster.pod("single")
        await cluster.pod("a", "1g.5gb", group="pair", count=2)
        await cluster.pod("b", "1g.5gb", group="pair", count=2)
        for name in ("single", "a", "b"):
            await runs(cluster, name)
        before = {pod["metadata"]["uid"] for pod in await cluster.pods()}

        async def same() -> bool:
            return {pod["metadata"]["uid"] for pod in await cluster.pods()} == before

        await cluster.stays(same, "no pod is deleted", 20)
        for name in ("single", "a"):
            item = await cluster.workload(name)
            assert item is not None
            pod = await cluster.client.get(PODS.as_dicts(), name, cluster.namespace)
            specs = [each["template"]["spec"] for each in item["spec"]["podSets"]]
            assert pod["spec"]["containers"] in [spec["containers"] for spec in specs]

    with_kueue(story, order="zz-kueue-mutating-webhook")


def test_the_stand_in_deletes_a_pod_whose_containers_were_changed(with_kueue: Callable[..., None]) -> None:
    """The proof that the test above would see it."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80)
        await cluster.pod("single")
        await runs(cluster, "single")
        (pod,) = await cluster.pods()
        container = {**pod["spec"]["containers"][0], "image": "registry.k8s.io/pause:3.9"}
        await cluster.client.merge_patch(
            PODS.as_dicts(), "single", {"spec": {"containers": [container]}}, cluster.namespace
        )

        async def gone() -> bool:
            return await cluster.pods() == []

        await cluster.until(gone, "it is deleted")

    with_kueue(story, version="v1beta2")


def test_a_slice_of_a_preempted_pod_goes_to_the_preemptor(with_kueue: Callable[..., None]) -> None:
    """Kueue may let the preemptor go before its victim has ended; the slice is given on once it is free."""

    async def story(cluster: KueueCluster) -> None:
        preemption = {"withinClusterQueue": "LowerPriority"}
        await cluster.open_queue(40, checked=True, preemption=preemption)
        await cluster.pod("victim", "7g.40gb")
        await runs(cluster, "victim")
        await cluster.priority("high", 1000)
        await cluster.pod("urgent", "7g.40gb", priorityClassName="high")
        await runs(cluster, "urgent")
        assert [pod["metadata"]["name"] for pod in await cluster.pods()] == ["urgent"]
        assert await cluster.reserved() == 40

    with_kueue(story, nodes="1xA100-40GB")


def test_pods_of_a_stateful_set_start_one_after_the_other(with_kueue: Callable[..., None]) -> None:
    """Kueue makes them a group, and admits it with its first pod; the second is made when the first is ready."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80)
        await cluster.stateful_set("store", "1g.5gb", replicas=3)

        async def all_run() -> bool:
            return len(await cluster.running()) == 3

        await cluster.until(all_run, "all three pods run")

    with_kueue(story)
