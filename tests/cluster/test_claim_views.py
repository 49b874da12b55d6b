"""What people look at knows pods with ResourceClaims: while they wait, also without a gate, and where they run."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.cluster.test_pod_notices import break_card
from tests.cluster.test_queues import page_source
from tests.cluster.test_resource_claims import claiming, in_lab, profile, template
from tests.support.device_claims import claim, exactly
from tests.support.virtual_lab import VirtualLab

from tessera.access.agent_pages import FleetUsage
from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.api.nodes.usage import NodeUsage
from tessera.dashboard.card_documents import make_documents
from tessera.dashboard.documents import CardDocument, WaitingDocument
from tessera.dashboard.explainer import explain_privately
from tessera.dashboard.view.cluster_map import make_map
from tessera.doctor.examination import examine
from tessera.doctor.facts import Verdict
from tessera.dra.claims import RESOURCE_CLAIMS
from tessera.explain.explanation import parse_query
from tessera.explain.query import explain
from tessera.kube.resources import PODS, Pod
from tessera.observe.cluster_reading import read_cluster
from tessera.observe.queue_reading import told_rows
from tessera.visibility import Redactor, Visibility

__all__ = ["in_lab"]


async def why(lab: VirtualLab, what: str) -> Any:
    (found,) = (await explain(lab.client, lab.clock, parse_query(what), "default")).answers
    return found


def is_told(pod: Pod | None) -> bool:
    return pod is not None and pod.status.condition(SLICE_PROMISED_CONDITION) is not None


@pytest.mark.parametrize("gated", [True, False])
def test_every_view_shows_a_pod_with_claims_as_one_with_limits(in_lab: Callable[..., Any], *, gated: bool) -> None:
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

        (entry,) = lab.instaslice().spec.pod_allocation_requests.values()
        assert (entry.pod_ref.name, [each.profile for each in entry.slices]) == ("holder", ["7g.40gb"])
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

    in_lab(scenario)


def test_all_users_of_a_claim_have_leases_and_are_told_of_a_fault(in_lab: Callable[..., Any]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("both", profile("3g.20gb")), "default")
        await template(lab, "one", profile("1g.5gb"))
        for name in ("first", "second"):
            await claiming(lab, name, "both", shared=True)
        await claiming(lab, "alone", "one")
        await lab.running("first", "second", "alone")
        await lab.clock.sleep(30.0)
        (pages,) = lab.cluster.documents.values()
        leases = msgspec.json.decode(pages["/usage"](), type=NodeUsage).leases
        assert sorted((each.pod, each.container, each.share) for each in leases) == [
            ("alone", "main", 1 / 8),
            ("first", "main", 2 / 8),  # half of four slots
            ("second", "main", 2 / 8),
        ]
        assert {each.device for each in leases if each.pod != "alone"} == set(lab.devices("second", "main"))
        for xid in (63, 79):
            break_card(lab, xid=xid)
            await lab.clock.sleep(60.0)
            told = {name: [each.message for each in lab.events_of(name, REASONS[xid])] for name in ("first", "second")}
            assert told["first"] == told["second"]
            assert all(f"XID {xid}" in each for each in told["second"])
            assert told["second"]

    in_lab(scenario, pages=True)


#: The Events of pods by the error of their card.
REASONS = {63: "GpuDegraded", 79: "GpuNeedsReboot"}


def test_each_user_of_a_shared_claim_that_waits_is_in_the_queue(in_lab: Callable[..., Any]) -> None:
    """Only the first had a row, so the others looked as if nobody knew them."""

    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "big", profile("7g.40gb"))
        await claiming(lab, "holder", "big")
        await lab.running("holder")
        await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim("shared", profile("3g.20gb")), "default")
        for name in ("first", "second", "third"):
            await claiming(lab, name, "shared", shared=True)
            await lab.clock.sleep(2.0)
        await lab.until(lambda: all(is_told(lab.pod(name)) for name in ("first", "second", "third")), "all are told")
        rows = told_rows((await lab.client.list(PODS)).items)
        assert [(row.name, row.reason) for row in rows] == [
            ("first", "full"),
            ("second", "shared-claim"),
            ("third", "shared-claim"),
        ]
        assert rows[1].detail.startswith("Another pod asks for its ResourceClaim first. Its start is unknown")
        found = await why(lab, "second")
        assert (found.case, found.verdict) == ("shared-claim", "waits; another pod asks for its ResourceClaim first")
        assert "pod first asks first for 1 x 3g.20gb of claim default/shared" in found.facts[0]
        await lab.delete("holder")
        await lab.running("first", "second", "third")
        await lab.clock.sleep(60.0)
        conditions = [lab.existing_pod(name).status.condition(SLICE_PROMISED_CONDITION) for name in ("second", "third")]
        assert [each and each.status for each in conditions] == ["True", "True"]

    in_lab(scenario)


def test_a_tenants_view_knows_pods_with_claims_though_the_page_reads_no_claim(in_lab: Callable[..., Any]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        await template(lab, "bad", exactly("r0", "mig.tessera.dev", allocationMode="All"))
        for name, of in (("runs", "3g.20gb"), ("waits", "7g.40gb")):
            await lab.client.create(RESOURCE_CLAIMS.as_dicts(), claim(name, profile(of)), "default")
            for user in ("first", "second"):
                await claiming(lab, f"{name}-{user}", name, shared=True)
                await lab.clock.sleep(2.0)
        await claiming(lab, "bad", "bad")
        await claiming(lab, "unmade", "absent")
        await lab.running("runs-first", "runs-second")
        await lab.until(lambda: is_told(lab.pod("waits-first")), "it is told")
        async with page_source(lab) as source:
            tenant = Visibility(namespaces=frozenset({"default"}))
            told = {}
            for name in ("runs-second", "waits-second", "unmade", "bad"):
                (private,) = explain_privately(source.objects, [lab.existing_pod(name)], tenant, Redactor(b"key"))
                told[name] = (private, await why(lab, name))
        for name in ("runs-second", "waits-second", "unmade"):
            private, own = told[name]
            assert (private.case, private.verdict) == (own.case, own.verdict), name
        assert told["runs-second"][0].facts[0] == (
            "it shares claim runs with pod runs-first: 3g.20gb on GPU 0, memory slots 4-7"
        )
        assert told["waits-second"][0].case == "shared-claim"
        assert told["bad"][1].case == "claim-refused"
        assert "see its events: kubectl describe pod -n default bad" in told["bad"][0].help

    in_lab(scenario)
