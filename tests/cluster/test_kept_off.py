"""A label keeps Tessera off a node: what runs there ends in order, nothing is expected there, and it may come back."""

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE, QUOTA_RESOURCE
from tessera.api.nodes.node_marks import AGENT_CONDITIONS
from tessera.api.nodes.offers import OFFERS_ANNOTATION
from tessera.doctor.examination import examine
from tessera.doctor.facts import Verdict
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.resources import NODES, PODS
from tessera.observe.health_rows import judge_fleet
from tessera.observe.reading import read_usage

CARD = {"nvidia.com/mig-7g.40gb": 1}
NODE = "node-1"
LABELS = [
    ("nvidia.com/gpu.deploy.operands", "false"),
    ("nvidia.com/gpu.deploy.device-plugin", "false"),
    ("nvidia.com/gpu.workload.config", "vm-passthrough"),
]


async def label(lab: VirtualLab, name: str, value: str | None) -> None:
    await lab.client.merge_patch(NODES.as_dicts(), NODE, {"metadata": {"labels": {name: value}}})


async def agents(lab: VirtualLab) -> list[str]:
    pods = (await lab.client.list(PODS, "tessera-system")).items
    return [
        each.spec.node_name for each in pods if each.metadata.labels.get("app.kubernetes.io/name") == "tessera-agent"
    ]


async def has_object(lab: VirtualLab) -> bool:
    return NODE in {each.metadata.name for each in (await lab.client.list(INSTASLICES, INSTASLICE_NAMESPACE)).items}


async def complaints(lab: VirtualLab) -> list[str]:
    """What health and doctor say of the node."""
    fleet = judge_fleet((await read_usage(lab.client)).fleet)
    found = await examine(lab.client, lab.clock)
    wrong = [each.text for each in found if each.verdict in {Verdict.ERROR, Verdict.WARNING}]
    return [text for text in (*(each.reason for each in fleet.silent), *wrong) if NODE in text or "agent" in text]


@pytest.mark.parametrize(("name", "value"), LABELS, ids=[name.rpartition(".")[2] for name, _ in LABELS])
def test_a_label_keeps_tessera_off_a_node(in_lab: InLab, name: str, value: str) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for pod in ("first", "second"):
            await lab.create(pod, CARD)
        await lab.running("first", "second")
        (here,) = (pod for pod in ("first", "second") if lab.existing_pod(pod).spec.node_name == NODE)
        await label(lab, name, value)
        await lab.clock.sleep(60)
        assert sorted(await agents(lab)) == ["node-2"]
        node = await lab.client.get(NODES, NODE)
        assert not [each.type for each in node.status.conditions if each.type in AGENT_CONDITIONS]
        assert OFFERS_ANNOTATION not in node.metadata.annotations
        assert not [each for each in node.metadata.labels if each.startswith("nvidia.com/gpu.product")]
        assert await complaints(lab) == []
        found = await explain(lab.client, lab.clock, parse_query(f"node/{NODE}"), "default")
        assert (found.answers[0].case, f"{name}={value}" in found.answers[0].verdict) == ("kept-off", True)
        # The pod keeps its slice, and the record of it stays; no other pod gets one.
        assert (lab.existing_pod(here).status.phase, await has_object(lab)) == ("Running", True)
        await lab.create("waits", CARD)
        await lab.delete(here)
        await lab.clock.sleep(180)
        assert not await has_object(lab)
        node = await lab.client.get(NODES, NODE)
        assert QUOTA_RESOURCE not in {**node.status.capacity, **node.status.allocatable}
        assert lab.existing_pod("waits").status.phase == "Pending"
        await label(lab, name, None)
        await lab.running("waits")
        assert lab.existing_pod("waits").spec.node_name == NODE
        assert await complaints(lab) == []

    in_lab(scenario, nodes="A100-40GB,A100-40GB", pages=True)
