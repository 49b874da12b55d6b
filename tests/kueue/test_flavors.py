"""Jobs go to the nodes of the flavor that Kueue chose, and a write that the server refuses concerns one Job alone."""

from collections.abc import Callable

from tests.support.kueue.cluster import KueueCluster, template

from tessera.kube.resources import JOBS
from tessera.kueue.objects import QUEUE_LABEL

NODES = "1xA100-40GB,1xA100-40GB"
SECOND = {"kubernetes.io/hostname": "node-2"}


async def places(cluster: KueueCluster) -> dict[str, str]:
    """Nodes of running pods, by their Jobs."""
    ready = await cluster.running()
    pods = [each for each in await cluster.pods() if each["metadata"]["name"] in ready]
    return {each["metadata"]["labels"]["job-name"]: each["spec"]["nodeName"] for each in pods}


def test_a_job_is_sent_to_the_flavors_nodes(with_kueue: Callable[..., None]) -> None:
    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80, labels=SECOND)
        await cluster.job("trained", template("1g.5gb"))

        async def placed() -> bool:
            return await places(cluster) == {"trained": "node-2"}

        await cluster.until(placed, "the Job's pod runs on the flavor's node")

    with_kueue(story, nodes=NODES)


def test_a_refused_write_stops_nobody_else(with_kueue: Callable[..., None]) -> None:
    """The template of a Job that has started may not change, so Kueue cannot send it to the flavor's nodes."""

    async def story(cluster: KueueCluster) -> None:
        await cluster.open_queue(80, labels=SECOND)
        body = {"metadata": {"name": "started"}, "spec": {"template": template("1g.5gb")}}
        jobs = JOBS.as_dicts()
        await cluster.client.create(jobs, body, cluster.namespace)

        async def started() -> bool:
            return "started" in await places(cluster)

        await cluster.until(started, "the Job without a queue runs")
        queued = {"metadata": {"labels": {QUEUE_LABEL: "slices"}}, "spec": {"suspend": True}}
        await cluster.client.merge_patch(jobs, "started", queued, cluster.namespace)
        await cluster.job("next", template("1g.5gb"))

        async def placed() -> bool:
            return await places(cluster) == {"next": "node-2"}

        await cluster.until(placed, "the other Job's pod runs")
        await cluster.stays(placed, "the refused Job waits", 10)

    with_kueue(story, nodes=NODES)
