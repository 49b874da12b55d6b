"""Documents of the live page: every card with what is on it, pods that wait, nodes that fail, and true sums."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from tests.explain.test_pods import cards
from tests.observe.conftest import GIB, card, lease, mig_card
from tests.provisioning.conftest import make_node, offering

from tessera.access.agent_pages import FleetUsage
from tessera.api.instaslice import ForeignSlice, Position, ProfilePlacements
from tessera.api.nodes.health import CardHealth, Evidence, Holder
from tessera.api.nodes.silence import SilentNode
from tessera.api.nodes.usage import DeviceUsage, JoinedCard, NodeTopology, NodeUsage
from tessera.dashboard.answers import NOT_MIRRORED, explain_waiting, waiting_pods
from tessera.dashboard.card_documents import make_documents, waiting_pod
from tessera.dashboard.documents import (
    CardDocument,
    Document,
    FailureDocument,
    OfferDocument,
    SummaryDocument,
    WaitingDocument,
)
from tessera.explain.fleet_map import count_waiting
from tessera.explain.snapshot import Snapshot
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage
from tessera.kube.resources import Pod
from tessera.mig.names import CLAIMED_SHARE
from tessera.observe.queue_reading import told_rows

#: A slice that others made, as the record and as the agent have it.
FOREIGN = ForeignSlice(gpu_uuid="GPU-0", start=4, size=4)
OTHERS = DeviceUsage(uuid="MIG-9", profile="3g.20gb", start=4, size=4, share=0.5)
SLICE = DeviceUsage(uuid="MIG-1", profile="3g.40gb", start=4, size=4, share=0.5, values={"memory_used": 2 * GIB})


def pod(name: str = "a", limits: dict[str, Any] | None = None, **spec: Any) -> Pod:
    body = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:10Z",
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits or {}}}], **spec},
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(body, Pod, strict=False)


def test_a_slice_is_a_tile_at_its_place_with_its_pod() -> None:
    usage = NodeUsage(node="n1", cards=(mig_card(SLICE),), leases=(lease("a", "MIG-1", kind="slice", share=0.5),))
    document = make_documents(FleetUsage(nodes=(usage,)), [], [])["card/n1/GPU-1"]
    assert isinstance(document, CardDocument)
    (tile,) = document.tiles
    assert (tile.start, tile.size, tile.profile, tile.memory) == (4, 4, "3g.40gb", 2 * GIB)
    assert [(each.pod, each.state) for each in tile.leases] == [("a", "busy")]
    assert (document.held, document.leases) == (0.5, ())


def test_values_that_were_not_measured_are_not_in_the_document() -> None:
    usage = NodeUsage(node="n1", cards=(card(),))
    document = msgspec.to_builtins(make_documents(FleetUsage(nodes=(usage,)), [], [])["card/n1/GPU-1"])
    assert {"busy", "power", "temperature"}.isdisjoint(document)


def test_a_card_tells_why_its_activity_is_not_known() -> None:
    blind = msgspec.structs.replace(card(), absent={"gpu_utilization": "mig_mode"})
    seen = msgspec.structs.replace(card("GPU-2", 1, engine_active=0.5), absent={"gpu_utilization": "mig_mode"})
    documents = make_documents(FleetUsage(nodes=(NodeUsage(node="n1", cards=(blind, seen)),)), [], [])
    assert [card_of(documents, f"card/n1/GPU-{n}").busy_absent for n in (1, 2)] == ["mig_mode", ""]


def test_a_pod_with_several_cards_says_how_they_are_joined() -> None:
    ends = tuple(JoinedCard(index=n, uuid=f"GPU-{n}") for n in (1, 2))
    usage = NodeUsage(
        node="n1",
        cards=(card(), card("GPU-2", 1)),
        leases=(lease("pair", "GPU-1"), lease("pair", "GPU-2"), lease("single", "GPU-1")),
        topology=NodeTopology(cards=ends, rows=("NV18", "")),
    )
    found = card_of(make_documents(FleetUsage(nodes=(usage,)), [], []), "card/n1/GPU-1")
    told = "its 2 cards are joined by 18 NVLinks (NV18)"
    assert [(each.pod, each.joined) for each in found.leases] == [("pair", told), ("single", "")]


HAS_WHOLE = NodeUsage(node="n1", cards=(msgspec.structs.replace(card(), kind="whole"),))


@pytest.mark.parametrize(
    ("changes", "starting"),
    [
        ({"nodeName": "n1"}, 1),
        ({"nodeName": "of a silent agent"}, 0),
        ({}, 0),
        ({"pinned": True}, 1),
        ({"nodeName": "n1", "phase": "Running"}, 0),
        ({"nodeName": "n1", "limits": {"nvidia.com/mig-1g.5gb": "1"}}, 0),
    ],
)
def test_pods_that_take_their_whole_cards_now_are_counted(changes: dict[str, Any], starting: int) -> None:
    """A card is free for the page until the agent lists who holds it."""
    given = dict(changes)
    limits, phase = given.pop("limits", {"nvidia.com/gpu": "1"}), given.pop("phase", "Pending")
    mark = {"tessera.dev/pinned": "uid-a"} if given.pop("pinned", False) else {}
    body = msgspec.to_builtins(pod("a", limits, **given))
    body["metadata"]["annotations"], body["status"]["phase"] = mark, phase
    pods = [msgspec.convert(body, Pod)]
    summary = make_documents(FleetUsage(nodes=(HAS_WHOLE,)), pods, [])["summary"]
    assert isinstance(summary, SummaryDocument)
    assert summary.starting == starting
    held = msgspec.structs.replace(HAS_WHOLE, leases=(msgspec.structs.replace(lease("a"), uid="uid-a"),))
    summary = make_documents(FleetUsage(nodes=(held,)), pods, [])["summary"]
    assert isinstance(summary, SummaryDocument)
    assert summary.starting == 0


def test_the_summary_says_why_the_queue_cannot_be_read() -> None:
    lost = make_documents(FleetUsage(), [], [], queue="no controller runs in tessera-system")["summary"]
    assert isinstance(lost, SummaryDocument)
    assert (lost.unqueued, lost.unqueued_detail) == (True, "no controller runs in tessera-system")
    for queue in (None, QueuePage(leads=True)):
        summary = make_documents(FleetUsage(), [], [], queue=queue)["summary"]
        assert isinstance(summary, SummaryDocument)
        assert not summary.unqueued


def test_the_card_of_a_cordoned_node_has_no_room() -> None:
    closed = make_node("n1")
    closed = msgspec.structs.replace(closed, spec=msgspec.structs.replace(closed.spec, unschedulable=True))
    found = card_of(make_documents(FleetUsage(nodes=(HAS_WHOLE,)), [], [], nodes=[closed]), "card/n1/GPU-1")
    assert (found.closed, found.free) == (True, {"gpu": 0})


def test_the_summary_counts_only_cards_that_measure() -> None:
    usage = NodeUsage(
        node="n1",
        simulated=True,
        cards=(card(gpu_utilization=0.5, power=10.0), card("GPU-2", 1)),
        leases=(lease("a", state="idle"), lease("b", "GPU-2", share=0.25)),
    )
    fleet = FleetUsage(nodes=(usage,), failures=(SilentNode(node="n2", reason="gone"),))
    documents = make_documents(fleet, [pod("w", {"nvidia.com/gpu": "1"})], [])
    assert documents["failure/n2"] == FailureDocument(node="n2", reason="gone")
    assert documents["summary"] == SummaryDocument(
        nodes=1,
        cards=2,
        pods=2,
        waiting=1,
        held=1.25,
        measured=1,
        busy=0.5,
        power=10.0,
        simulated=True,
    )


CREATED = "2026-01-01T00:00:10Z"
GATED = {"schedulingGates": [{"name": "instaslice.redhat.com/accelerator"}]}


@pytest.mark.parametrize(
    ("limits", "spec", "requests"),
    [
        ({"nvidia.com/gpu": "2"}, {}, "2 x gpu"),
        ({"nvidia.com/mig-3g.20gb": "1"}, GATED, "1 x mig-3g.20gb"),
        ({}, GATED, ""),
        ({"nvidia.com/gpu": "1e9"}, GATED, ""),
        ({"cpu": "2"}, {}, None),
        ({"nvidia.com/gpu": "2"}, {"nodeName": "n1"}, None),
    ],
)
def test_a_pod_waits_that_asks_for_cards_and_has_no_node(
    limits: dict[str, Any], spec: dict[str, Any], requests: str | None
) -> None:
    found = waiting_pod(pod("a", limits, **spec))
    assert (None if found is None else found.requests) == requests
    assert found is None or found.since == 1767225610.0


TOLD = {"type": "tessera.dev/SlicePromised", "status": "False", "reason": "Full", "message": "waits for room"}


def by_claims(*conditions: Mapping[str, str], **spec: Any) -> Pod:
    """A pod with a ResourceClaim and no gate."""
    entries = [{"name": "x", "resourceClaimName": "c"}]
    body = {"phase": "Pending", "conditions": list(conditions)}
    return msgspec.structs.replace(
        pod("w", resourceClaims=entries, **spec), status=msgspec.convert(body, type(pod().status))
    )


def mirrored(*pods: Pod) -> Snapshot:
    return Snapshot(now=100.0, pods=pods, forbidden=NOT_MIRRORED)


def test_a_pod_with_claims_waits_if_the_controller_says_so_and_its_slices_are_those_of_the_queue() -> None:
    row = QueuedPod(namespace="team", name="w", uid="uid-w", profiles=("1g.5gb", "1g.5gb"), position=1, of=1)
    told, foreign, bound = by_claims(TOLD), by_claims(), by_claims(TOLD, nodeName="n1")
    assert waiting_pod(foreign) is None, "its claims may be for other devices"
    assert count_waiting([told, foreign, bound]) == 1
    asked = [waiting_pod(each, found) for each, found in ((foreign, row), (told, row), (told, None))]
    assert [each and each.requests for each in asked] == ["2 x mig-1g.5gb", "2 x mig-1g.5gb", ""]
    documents = make_documents(FleetUsage(), [told], [], queue=QueuePage(pods=(row,)))
    document = documents["waiting/team/w"]
    assert isinstance(document, WaitingDocument)
    assert (document.requests, document.position, document.gated) == ("2 x mig-1g.5gb", 1, False)
    found = explain_waiting(waiting_pods([told]), mirrored(told))
    assert (found["team/w"].case, found["team/w"].verdict) == (
        "full",
        "waits; the controller told it some time ago: waits for room",
    )


def test_what_a_pod_with_claims_was_told_is_its_row_of_the_queue() -> None:
    (row,) = told_rows([by_claims(TOLD), by_claims(), by_claims(TOLD, nodeName="n1")])
    assert (row.key, row.reason, row.detail) == ("team/w", "full", "waits for room")


def test_a_card_tells_its_kind_its_room_and_what_is_wrong() -> None:
    sick = CardHealth(
        state="needs_reset",
        since=5.0,
        evidence=(Evidence(source="XID 48", text="an error", asks="reset", count=2),),
        next="it is reset when nobody holds it",
        holders=(Holder(namespace="team", pod="a"), Holder(pid=7, process="python")),
    )
    shared = msgspec.structs.replace(card(), kind="time-slicing", replicas=4)
    broken = msgspec.structs.replace(card("GPU-2", 1), kind="whole", health=sick)
    usage = NodeUsage(node="n1", cards=(shared, broken), leases=(lease("a", share=0.25),))
    documents = make_documents(FleetUsage(nodes=(usage,)), [], [])
    first, second = documents["card/n1/GPU-1"], documents["card/n1/GPU-2"]
    assert isinstance(first, CardDocument)
    assert isinstance(second, CardDocument)
    assert (first.kind, first.replicas, first.free, first.health) == ("time-slicing", 4, {"share": 3}, None)
    assert second.free == {}
    assert second.health is not None
    assert (second.health.state, second.health.evidence[0].count, second.health.evidence[0].asks) == (
        "needs_reset",
        2,
        "reset",
    )
    assert [(each.pod, each.process) for each in second.health.holders] == [("a", ""), ("", "python")]
    summary = documents["summary"]
    assert isinstance(summary, SummaryDocument)
    assert summary.unwell == 1


def test_a_pod_that_waits_tells_why() -> None:
    waits = pod("w", {"nvidia.com/mig-3g.20gb": "1"}, **GATED)
    found = explain_waiting([waits], mirrored(waits))
    documents = make_documents(FleetUsage(), [waits], [], found)
    document = documents["waiting/team/w"]
    assert isinstance(document, WaitingDocument)
    assert (document.case, document.reason) == (found["team/w"].case, found["team/w"].verdict)
    assert document.case == "no-card-reported"
    assert waiting_pods([]) == []


@pytest.mark.parametrize(("waits", "basis"), [(False, "history"), (True, "waits")])
def test_a_pod_that_waits_has_its_place_and_its_start_in_whole_minutes(waits: bool, basis: str) -> None:
    pods = [pod(name, {"nvidia.com/mig-3g.20gb": "1"}, **GATED) for name in ("w", "held", "unknown")]
    start = ExpectedStart(p50=1_000_031.0, p90=1_000_300.0, basis="history", starts=4, waits=waits)
    rows = (
        QueuedPod(namespace="team", name="w", position=2, of=5, start=start),
        QueuedPod(namespace="team", name="held", reason="other-gate"),
    )
    documents = make_documents(FleetUsage(), pods, [], queue=QueuePage(pods=rows))
    found, held, unknown = (documents[f"waiting/team/{name}"] for name in ("w", "held", "unknown"))
    assert isinstance(found, WaitingDocument)
    assert (found.position, found.of, found.p50, found.p90, found.basis) == (2, 5, 1_000_080, 1_000_320, basis)
    for each in (held, unknown):
        assert isinstance(each, WaitingDocument)
        assert (each.position, each.p50, each.basis) == (0, None, "")


def card_of(documents: Mapping[str, Document], key: str) -> CardDocument:
    document = documents[key]
    assert isinstance(document, CardDocument)
    return document


def test_a_promised_slice_is_drawn_before_it_exists_and_a_foreign_one_is_named() -> None:
    known = cards(("new", "2g.10gb", 0, 2, "creating"), ("late", "1g.5gb", 2, 1, "created"), foreign=[FOREIGN])
    usage = NodeUsage(node="n1", cards=(msgspec.structs.replace(mig_card(OTHERS), uuid="GPU-0", slots=8),))
    tiles = card_of(make_documents(FleetUsage(nodes=(usage,)), [], [known]), "card/n1/GPU-0").tiles
    assert [(tile.start, tile.state, tile.promise and tile.promise.pod) for tile in tiles] == [
        (0, "creating", "new"),
        (2, "creating", "late"),
        (4, "foreign", None),
    ]
    assert tiles[2].profile == "3g.20gb"


def test_a_card_whose_agent_is_silent_is_drawn_from_the_records() -> None:
    fleet = FleetUsage(failures=(SilentNode(node="n1", reason="gone"),))
    documents = make_documents(fleet, [], [cards(("a", "3g.20gb", 4, 4, "created"))])
    card = card_of(documents, "card/n1/GPU-0")
    assert (card.silent, card.kind, card.slots, card.held, card.free) == (True, "slice", 8, 0.5, {})
    assert [(tile.start, tile.state, tile.promise and tile.promise.pod) for tile in card.tiles] == [(4, "", "a")]
    summary = documents["summary"]
    assert isinstance(summary, SummaryDocument)
    assert (summary.nodes, summary.cards, summary.silent, summary.held) == (1, 1, 1, 0.5)


def test_a_card_in_shares_whose_agent_is_silent_is_a_card_in_shares() -> None:
    """The record does not tell time slices from MPS, so the page does not either."""
    places = tuple(Position(size=1, start=start) for start in range(4))
    table = {CLAIMED_SHARE: ProfilePlacements(placements=places, gi_profile_id=-1, ci_profile_id=-1)}
    known = cards(("a", CLAIMED_SHARE, 1, 1, "created"))
    resources = msgspec.structs.replace(known.status.node_resources, mig_placement=table)
    known = msgspec.structs.replace(known, status=msgspec.structs.replace(known.status, node_resources=resources))
    fleet = FleetUsage(failures=(SilentNode(node="n1", reason="gone"),))
    card = card_of(make_documents(fleet, [], [known]), "card/n1/GPU-0")
    assert (card.silent, card.kind, card.replicas, card.held) == (True, "shares", 4, 0.25)


def test_simulated_cards_stay_so_while_their_agent_is_silent() -> None:
    fleet = FleetUsage(failures=(SilentNode(node="n1", reason="gone"),))
    summary = make_documents(fleet, [], [], simulated=True)["summary"]
    assert isinstance(summary, SummaryDocument)
    assert summary.simulated


def test_a_promised_slice_is_not_drawn_over_one_that_is_still_there() -> None:
    known = cards(("new", "2g.10gb", 0, 2, "creating"), ("next", "1g.5gb", 2, 1, "creating"))
    there = DeviceUsage(uuid="MIG-2", profile="1g.5gb", start=1, size=1, share=0.125)
    usage = NodeUsage(node="n1", cards=(msgspec.structs.replace(mig_card(there), uuid="GPU-0", slots=8),))
    tiles = card_of(make_documents(FleetUsage(nodes=(usage,)), [], [known]), "card/n1/GPU-0").tiles
    assert [(tile.start, tile.state) for tile in tiles] == [(1, ""), (2, "creating")]


@pytest.mark.parametrize(
    ("absence", "processes", "held", "blind"),
    [
        ("mig_mode", 1, 600.0, True),
        ("mig_mode", 1, 10.0, False),
        ("mig_mode", 0, 600.0, False),
        ("first_sample", 1, 600.0, False),
    ],
)
def test_a_lease_tells_that_it_cannot_be_measured(absence: str, processes: int, held: float, blind: bool) -> None:
    part = DeviceUsage(uuid="MIG-1", profile="3g.40gb", start=0, size=4, share=0.5, processes=processes)
    on = msgspec.structs.replace(mig_card(part), absent={"gpu_utilization": absence})
    usage = NodeUsage(node="n1", cards=(on,), leases=(lease("a", "MIG-1", state="unknown", held=held, busy=None),))
    (tile,) = card_of(make_documents(FleetUsage(nodes=(usage,)), [], []), "card/n1/GPU-1").tiles
    assert [each.blind for each in tile.leases] == [blind]


def test_a_node_without_a_page_tells_its_offers() -> None:
    node = make_node("n1", annotations=offering())
    fleet = FleetUsage(failures=(SilentNode(node="n1", reason="gone"),))
    failure = make_documents(fleet, [pod("a", {"nvidia.com/gpu": "1"}, nodeName="n1")], [], nodes=[node])["failure/n1"]
    assert failure == FailureDocument(
        node="n1",
        reason="gone",
        offers=(OfferDocument(resource="nvidia.com/gpu", model="Tesla T4", count=1, used=1),),
    )


@pytest.mark.parametrize(
    ("device", "share", "limit"),
    [("GPU-1", 1.0, 80), ("GPU-1", 0.25, 20), ("MIG-1", 0.5, 40), ("MIG-1", 0.125, 10), ("gone", 1.0, None)],
)
def test_the_memory_of_a_lease_has_a_limit(device: str, share: float, limit: int | None) -> None:
    values = {"memory_total": 40 * GIB}
    part = DeviceUsage(uuid="MIG-1", profile="3g.40gb", start=0, size=4, share=0.5, values=values)
    usage = NodeUsage(node="n1", cards=(mig_card(part),), leases=(lease("a", device, share=share),))
    card = card_of(make_documents(FleetUsage(nodes=(usage,)), [], []), "card/n1/GPU-1")
    found = [*card.leases, *(each for tile in card.tiles for each in tile.leases)]
    assert [each.limit for each in found] == ([] if limit is None else [limit * GIB])
