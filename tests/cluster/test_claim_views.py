"""What people look at knows pods with ResourceClaims: while they wait, also without a gate, and where they run."""

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.test_resource_claims import claiming, play, profile, template
from tests.support.virtual_lab import VirtualLab

from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardDocument, WaitingDocument
from tessera.dashboard.view.objects import make_map
from tessera.doctor.examination import examine
from tessera.doctor.findings import Verdict
from tessera.dra.node_devices import DRIVER
from tessera.explain.query import explain, parse_query
from tessera.kube.resources import PODS, Pod
from tessera.observe.cluster_reading import read_cluster
from tessera.observe.queue_reading import told_rows
from tessera.usage.agent_pages import FleetUsage
from tessera_lab.simulation.virtual_time import run_virtual


async def why(lab: VirtualLab, what: str) -> Any:
    (found,) = (await explain(lab.client, lab.clock, parse_query(what), "default")).answers
    return found


def is_told(pod: Pod | None) -> bool:
    return pod is not None and pod.status.condition(SLICE_PROMISED_CONDITION) is not None


@pytest.mark.parametrize("gated", [True, False])
def test_every_view_shows_a_pod_with_claims_as_one_with_limits(tmp_path: Path, *, gated: bool) -> None:
    async def scenario(lab: VirtualLab) -> None:
        if not gated:
            lab.cluster.server.parts.webhooks = None
        await template(lab, "big", profile("7g.40gb"))
        await claiming(lab, "holder", "big")
        await lab.running("holder")
        await claiming(lab, "late", "big")
        await lab.until(lambda: is_told(lab.pod("late")), "it is told")
        pods = (await lab.client.list(PODS)).items

        (told,) = told_rows(pods)
        assert (told.key, told.reason) == ("default/late", "full")

        found = await why(lab, "late")
        assert found.case == "full", found
        assert "it requests 7g.40gb" in found.facts
        assert any("the controller told it" in each for each in found.facts)
        assert any("pod default/holder" in each for each in (*found.facts, *found.help)), found
        found = await why(lab, "holder")
        assert (found.case, found.facts[0]) == ("runs", "it has 7g.40gb on GPU 0, memory slots 0-7")
        names = {
            each.metadata.name: each.status.resource_claim_statuses[0].resource_claim_name
            for each in pods
            if each.spec.resource_claims
        }
        assert (await why(lab, f"claim/{names['holder']}")).case == "claim-used"
        waiting = await why(lab, f"claim/{names['late']}")
        assert (waiting.case, waiting.verdict[:22]) == ("full", "waits with pod late, w")

        shown = make_map(await read_cluster(lab.client))
        (card,) = shown.nodes[0].cards
        assert [(tile.pod, tile.profile) for tile in card.tiles] == [("default/holder", "7g.40gb")]
        assert shown.waiting == 1
        documents = make_documents(FleetUsage(), pods, [lab.instaslice()])
        document = documents["waiting/default/late"]
        assert isinstance(document, WaitingDocument)
        assert document.gated == gated
        tiles = [each.tiles for each in documents.values() if isinstance(each, CardDocument)]
        assert [(tile.profile, tile.promise and tile.promise.pod) for tile in tiles[0]] == [("7g.40gb", "holder")]

        judged = {each.check: each for each in await examine(lab.client, lab.clock) if each.check.startswith("claim")}
        assert {name: each.verdict for name, each in judged.items()} == {
            "claim-classes": Verdict.OK,
            "claim-devices": Verdict.OK,
        }, judged

    run_virtual(play(scenario, "1xA100-40GB", tmp_path / "cdi", DRIVER))
