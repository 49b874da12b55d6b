"""A queue keeps a slice spare: batch pods leave it alone and read why, and a service that grows gets it at once."""

from tests.cluster.test_inheritance import runs, workload
from tests.cluster.test_queues import queue
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.queues import QUEUES
from tessera.cli.map import picture
from tessera.dashboard.view.cluster_map import make_map
from tessera.explain.explanation import parse_query
from tessera.explain.fleet_map import CardFilter
from tessera.explain.query import explain
from tessera.handover.image_pulls import PULL_LABEL
from tessera.kube.resources import DEPLOYMENTS, NAMESPACES, PODS
from tessera.observe.cluster_reading import read_cluster

#: Time that a pull of an image takes.
PULL = 60.0
HALF = {"nvidia.com/mig-3g.20gb": 1}


def test_a_service_that_grows_on_full_cards_gets_the_spare_slice(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        labels = {"tessera.dev/queue": "serving"}
        await lab.client.merge_patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
        await lab.client.create(QUEUES, queue("serving", spare={"3g.20gb": 1}))
        await lab.client.create(DEPLOYMENTS.as_dicts(), workload("i:1", "3g.20gb", 1), "default")
        await lab.until(lambda: runs(lab, "i:1", 1), "the service runs")
        await lab.create("batch", HALF)
        await lab.until(lambda: lab.events_of("batch", "SliceWaiting"), "the batch pod waits")
        told = "kept spare for services of queue serving"
        assert told in lab.events_of("batch", "SliceWaiting")[0].message
        (why,) = (await explain(lab.client, lab.clock, parse_query("batch"), "default")).answers
        assert told in why.verdict
        (place,) = [each for each in why.facts if each.startswith("queue serving keeps this spare")]
        assert "on node node-1, which are free" in place
        await lab.clock.sleep(60)
        kept = "node node-1: 1 x 3g.20gb kept spare for services of queue serving"
        assert kept in picture(
            make_map(await read_cluster(lab.client)), CardFilter(), colour=False, summary=False, width=80
        )
        assert (await lab.client.get(QUEUES, "serving"))["status"]["spare"] == "1 of 1 3g.20gb"
        await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "svc", {"spec": {"replicas": 2}}, "default")
        await lab.until(lambda: runs(lab, "i:1", 2), "the service has grown")
        assert lab.phase("batch") == "Pending"

    in_lab(scenario, "1xA100-40GB")


def test_the_images_of_a_service_come_to_the_node_of_its_spare_slice(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(QUEUES, queue("default", spare={"7g.40gb": 1}, namespaces=["default"]))
        service = workload("i:1", "7g.40gb", 1)
        await lab.client.create(DEPLOYMENTS.as_dicts(), service, "default")
        await lab.until(lambda: runs(lab, "i:1", 1), "the service runs")
        await lab.clock.sleep(30)
        pulls = await lab.client.list(PODS, "tessera-system", label_selector=PULL_LABEL)
        assert pulls.items == []
        began = lab.clock.monotonic()
        await lab.client.merge_patch(DEPLOYMENTS.as_dicts(), "svc", {"spec": {"replicas": 2}}, "default")
        await lab.until(lambda: runs(lab, "i:1", 2), "the service has grown")
        assert lab.clock.monotonic() - began < PULL

    in_lab(scenario, "1xA100-40GB,1xA100-40GB", pull_seconds=PULL, slice_seconds=0.4)


def test_a_service_gets_a_spare_slice_of_a_controller_that_has_ended(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(QUEUES, queue("default", spare={"3g.20gb": 1}, namespaces=["default"]))
        await lab.create("batch-1", HALF)
        await lab.running("batch-1")
        await lab.create("batch-2", HALF)
        await lab.until(lambda: lab.events_of("batch-2", "SliceWaiting"), "the batch pod waits")
        await lab.kill()
        await lab.client.create(DEPLOYMENTS.as_dicts(), workload("i:1", "3g.20gb", 1), "default")
        await lab.until(lambda: runs(lab, "i:1", 1), "the service runs")
        assert lab.phase("batch-2") == "Pending"

    in_lab(scenario, "1xA100-40GB")
