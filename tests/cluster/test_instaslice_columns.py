"""``kubectl get instaslice``: cards, model, slots, pods and health of each node, without a write of their own."""

import json
from typing import Any

from tests.support.virtual_lab import InLab, VirtualLab

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.kube.resources import CRDS

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
ONE, HALF = {"nvidia.com/mig-1g.5gb": 1}, {"nvidia.com/mig-3g.20gb": 2}


async def columns(lab: VirtualLab) -> dict[str, Any]:
    """The row of the lab's node, by column."""
    path = f"/apis/inference.redhat.com/v1alpha1/namespaces/{INSTASLICE_NAMESPACE}/instaslices"
    table = json.loads((await lab.client.request("GET", path, accept=TABLE)).body)
    (row,) = table["rows"]
    shown = [each["name"] for each in table["columnDefinitions"] if not each["priority"]]
    return dict(zip(shown, row["cells"], strict=False))


def test_a_row_follows_pods_and_cards(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        for name, limits in (("small", ONE), ("pair", HALF)):
            await lab.create(name, limits)
            await lab.running(name)
        row = await columns(lab)
        del row["Age"], row["Name"]
        assert row == {
            "Cards": 2,
            "Model": "NVIDIA A100-SXM4-40GB",
            "Used": 9,
            "Free": 7,
            "Pods": 2,
            "Health": "healthy",
        }
        await lab.delete("pair")
        await lab.until(lambda: len(lab.results()) == 1, "its slices are gone")
        assert (await columns(lab))["Free"] == 15
        lab.machine().lose(lab.machine().uuids()[1])
        await lab.until(lambda: len(lab.instaslice().status.node_resources.node_gpus) == 1, "a card is withheld")
        row = await columns(lab)
        assert (row["Cards"], row["Health"], row["Free"]) == (2, "1 of 2 withheld", 7)

    in_lab(scenario, nodes="2xA100-40GB", own=True)


def test_a_definition_of_an_earlier_version_costs_no_second_write(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        definition = await lab.client.get(CRDS.as_dicts(), "instaslices.inference.redhat.com")
        (version,) = definition["spec"]["versions"]
        del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["summary"]
        await lab.client.merge_patch(CRDS, "instaslices.inference.redhat.com", {"spec": {"versions": [version]}})
        await lab.clock.sleep(5.0)
        await lab.create("small", ONE)
        await lab.running("small")
        await lab.clock.sleep(10.0)
        found = await lab.client.get(INSTASLICES, "node-1", INSTASLICE_NAMESPACE)
        assert found.status.summary is None
        await lab.clock.sleep(30.0)
        later = await lab.client.get(INSTASLICES, "node-1", INSTASLICE_NAMESPACE)
        assert later.metadata.resource_version == found.metadata.resource_version

    in_lab(scenario, nodes="2xA100-40GB", own=True)
