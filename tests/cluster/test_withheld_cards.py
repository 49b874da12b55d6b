"""Pods hold faulty or cordoned cards: each screen says which free cards kube-scheduler leaves empty, and why."""

from collections.abc import Mapping
from typing import Any

from tests.cluster.test_cordons import annotate
from tests.cluster.test_pod_notices import break_card
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.access.agent_pages import FleetUsage
from tessera.cli.map import picture
from tessera.cli.top.columns import warnings
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardDocument
from tessera.dashboard.view.cluster_map import make_map
from tessera.doctor.examination import examine
from tessera.explain.explanation import parse_query
from tessera.explain.fleet_map import CardFilter, select, summarize
from tessera.explain.query import explain
from tessera.kube.resources import DEPLOYMENTS, PODS
from tessera.observe.cluster_reading import read_cluster
from tessera.observe.health_rows import judge_fleet
from tessera.observe.reading import read_usage
from tessera.observe.top_view import TopView

GPU = {"nvidia.com/gpu": 1}
SUM = "node node-1: pods hold 2 withheld nvidia.com/gpu; kube-scheduler counts these 2 against the 4 that are left"


async def free_rooms(lab: VirtualLab) -> tuple[int, int]:
    """The whole cards that map and page say are free for pods."""
    reading = await read_cluster(lab.client)
    nodes = make_map(reading).nodes
    assert len([card for node in select(nodes, CardFilter(free="gpu")) for card in node.cards]) == sum(
        each.possible.get("gpu", 0) for each in summarize(nodes)
    )
    documents = make_documents(
        reading.fleet or FleetUsage(), reading.pods or (), reading.instaslices, nodes=reading.nodes or ()
    ).values()
    cards = [each for each in documents if isinstance(each, CardDocument)]
    return sum(each.possible.get("gpu", 0) for each in summarize(nodes)), sum(each.free.get("gpu", 0) for each in cards)


async def told(lab: VirtualLab) -> Mapping[str, str]:
    """What each place says of free cards."""
    usage, shown = await read_usage(lab.client), make_map(await read_cluster(lab.client))
    (node,) = (await explain(lab.client, lab.clock, parse_query("node/node-1"), "default")).answers
    (pod,) = (await explain(lab.client, lab.clock, parse_query("waits"), "default")).answers
    found = {each.check: each.text for each in await examine(lab.client, lab.clock)}
    return {
        "map": " ".join(picture(shown, CardFilter(), colour=False, summary=False, width=999)),
        "top": " ".join(warnings(TopView(), usage)),
        "health": " ".join(judge_fleet(usage.fleet, blocked=usage.blocked).blocked),
        "why node": " ".join(node.facts),
        "why pod": " ".join((pod.verdict, *pod.facts)),
        "doctor": found["withheld-cards"],
    }


def service(name: str) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "c", "image": "e.com/a:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    }


def test_every_place_says_which_free_cards_are_left_empty_and_agrees_with_the_scheduler(
    in_lab: InLab,
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for name in ("a", "b"):
            await lab.create(name, GPU)
        await lab.running("a", "b")
        await lab.clock.sleep(30)
        held = [
            index for index, each in enumerate((await read_usage(lab.client)).cards) if each.held
        ]  # the lab's kubelet chooses
        for index in held:
            break_card(lab, card=index)
        await lab.until(lambda: lab.gpus()["nvidia.com/gpu"] == 4, "two are withheld")
        for name in ("c", "d"):
            await lab.create(name, GPU)
        await lab.running("c", "d")
        await lab.create("waits", GPU)
        await lab.clock.sleep(60)
        assert lab.phase("waits") == "Pending"
        places = await told(lab)
        assert {name: SUM in text for name, text in places.items()} == dict.fromkeys(places, True)
        assert "and leaves 2 of 2 free ones empty" in places["why pod"]
        assert "4 of 4 nvidia.com/gpu in use" in places["why pod"]
        assert await free_rooms(lab) == (0, 0)
        (pod,) = (await explain(lab.client, lab.clock, parse_query("waits"), "default")).answers
        assert pod.help[0].endswith("see them: tessera health node-1")
        await lab.delete("a")
        await lab.running("waits")

    in_lab(scenario, nodes="6xA100-40GB", mig_config="", pages=True)


def test_a_service_on_a_cordoned_card_costs_no_good_card(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(DEPLOYMENTS.as_dicts(), service("web"), "default")
        both = "its pods run"
        await lab.until(lambda: sum(p.status.phase == "Running" for p in lab.pods.cache.values()) == 2, both)
        for gpu in lab.machine().uuids()[:2]:
            await annotate(lab, gpu, "fan is loud")
        await lab.clock.sleep(60)
        for name in ("c", "d"):
            await lab.create(name, GPU)
        await lab.running("c", "d")
        await lab.create("waits", GPU)
        await lab.clock.sleep(60)
        assert lab.phase("waits") == "Pending"
        # Its pods leave the cordoned cards one by one; none of the next ones is sent there and refused.
        for pod in [each for each in lab.pods.cache.values() if each.metadata.name.startswith("web")]:
            await lab.client.delete(PODS, pod.metadata.name, "default")
            await lab.clock.sleep(30)
        assert [pod.metadata.name for pod in lab.pods.cache.values() if pod.status.phase == "Failed"] == []
        assert lab.gpus()["nvidia.com/gpu"] == 2

    in_lab(scenario, nodes="4xA100-40GB", mig_config="")
