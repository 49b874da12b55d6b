"""The map shows cards of every kind truly: who holds what, and what has room."""

from typing import Any

import msgspec
import pytest
from tests.cli.base.test_tiles import GPU
from tests.cli.base.test_tiles import node as sliced

from tessera.api.instaslice import Instaslice
from tessera.api.nodes.card_faults import CARDS_ANNOTATION, CardFault, ListedCard, encode_cards
from tessera.api.nodes.health import CardHealth
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.api.nodes.silence import SilentNode
from tessera.api.nodes.usage import CardUsage, DeviceUsage, LeaseUsage, NodeUsage
from tessera.cli.base.tiles import draw
from tessera.explain.card_map import NodeCards
from tessera.explain.fleet_map import CardFilter, count_waiting, map_fleet, select, summarize
from tessera.kube.resources import Node, Pod
from tessera.kube.resources.meta import ObjectMeta

A100 = "NVIDIA A100-SXM4-40GB"


def lease(pod: str, device: str, kind: str, share: float, namespace: str = "default") -> LeaseUsage:
    return LeaseUsage(namespace=namespace, pod=pod, uid=f"uid-{pod}", device=device, kind=kind, share=share)


def page(*cards: CardUsage, leases: tuple[LeaseUsage, ...] = (), node: str = "n1") -> NodeUsage:
    return NodeUsage(node=node, cards=cards, leases=leases)


def whole(uuid: str = "w", **more: Any) -> CardUsage:
    return CardUsage(uuid=uuid, model="Tesla T4", kind="whole", **more)


def shared(uuid: str = "s", kind: str = "time-slicing", replicas: int = 4) -> CardUsage:
    return CardUsage(uuid=uuid, index=1, model="Tesla T4", kind=kind, replicas=replicas)


FIXED = CardUsage(
    uuid="m",
    index=2,
    model=A100,
    mig=True,
    slots=8,
    kind="mig",
    devices=(
        DeviceUsage(uuid="MIG-2", profile="3g.20gb", start=4, size=4, share=0.5),
        DeviceUsage(uuid="MIG-1", profile="1g.5gb", start=0, size=1, share=0.125),
    ),
)


SHARED_MIG = msgspec.structs.replace(FIXED, replicas=3)


def only(nodes: list[NodeCards]) -> NodeCards:
    (found,) = nodes
    return found


@pytest.mark.parametrize(
    ("card", "leases", "possible"),
    [
        (whole(), (), {"gpu": 1}),
        (whole(), (lease("a", "w", "whole", 1.0),), {"gpu": 0}),
        (whole(health=CardHealth(state="needs_reset")), (), {}),
        (whole(health=CardHealth(state="degraded")), (), {"gpu": 1}),
        (shared(), (), {"share": 4}),
        (shared(), (lease("a", "s", "time-slicing", 0.25), lease("b", "s", "time-slicing", 0.5)), {"share": 1}),
        (shared(kind="mps", replicas=10), (lease("a", "s", "mps", 0.1),), {"share": 9}),
        (FIXED, (), {"1g.5gb": 1, "3g.20gb": 1}),
        (FIXED, (lease("a", "MIG-2", "mig", 0.5),), {"1g.5gb": 1, "3g.20gb": 0}),
        (SHARED_MIG, (lease("a", "MIG-2", "time-slicing", 1 / 6),), {"1g.5gb.shared": 3, "3g.20gb.shared": 2}),
        (SHARED_MIG, (lease("a", "MIG-2", "time-slicing", 1 / 3),), {"1g.5gb.shared": 3, "3g.20gb.shared": 1}),
        (CardUsage(uuid="x", model=A100), (), {}),
    ],
)
def test_what_has_room_is_counted(card: CardUsage, leases: tuple[LeaseUsage, ...], possible: dict[str, int]) -> None:
    (found,) = only(map_fleet([], [page(card, leases=leases)])).cards
    assert found.possible == possible


@pytest.mark.parametrize(
    ("spec", "ready", "closed"),
    [({}, "True", False), ({"unschedulable": True}, "True", True), ({}, "False", True), ({}, "Unknown", True)],
)
def test_nothing_is_possible_on_a_closed_node(spec: dict[str, Any], ready: str, *, closed: bool) -> None:
    body = {"metadata": {"name": "n1"}, "spec": spec, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
    on_demand = CardUsage(uuid=GPU, index=3, model=A100, mig=True, slots=8)
    pages = [page(on_demand, whole(), shared(), FIXED, node="n1")]
    found = only(map_fleet([sliced()], pages, nodes=iter([msgspec.convert(body, Node)])))
    assert found.closed is closed
    assert all(card.possible for card in found.cards)
    assert all(any(card.possible.values()) is not closed for card in found.cards)
    assert ("  takes no new pods now: the node is cordoned, or not ready" in draw([found], colour=False)) is closed


@pytest.mark.parametrize(("user", "shown"), [("web", "default/web-slice; used by default/web"), ("web-slice", "")])
def test_a_slice_that_another_pod_has_is_shown_with_its_user(user: str, shown: str) -> None:
    made = DeviceUsage(uuid="MIG-1", profile="3g.20gb", start=4, size=4, share=0.5)
    on_demand = CardUsage(uuid=GPU, index=3, model=A100, mig=True, slots=8, devices=(made,))
    usage = page(on_demand, leases=(lease(user, "MIG-1", "mig", 0.5),))
    found = map_fleet([sliced(("web-slice", "3g.20gb", 4, 4))], [usage])
    assert "\n".join(draw(found, colour=False)).endswith(shown or "default/web-slice")
    assert bool(select(found, CardFilter(pods=frozenset({"default/web"})))) is bool(shown)


def test_cards_on_demand_are_shown_as_recorded_beside_the_others() -> None:
    on_demand = CardUsage(uuid=GPU, index=3, model=A100, mig=True, slots=8)
    found = only(map_fleet([sliced(("vllm", "3g.20gb", 4, 4))], [page(on_demand, whole(), FIXED, node="n1")]))
    assert [(card.index, card.kind) for card in found.cards] == [(0, "whole"), (2, "mig"), (3, "slice")]
    assert [(tile.start, tile.pod, tile.state) for tile in found.cards[2].tiles] == [(4, "default/vllm", "created")]
    assert [(tile.start, tile.state) for tile in found.cards[1].tiles] == [(0, "free"), (4, "free")]


def test_a_node_without_a_page_shows_its_offers_and_their_use() -> None:
    offer = NodeOffer(
        resource="nvidia.com/gpu.shared",
        kind=OfferKind.SHARE,
        product="Tesla T4",
        card_memory_mib=15360,
        memory_mib=3840,
        compute_capability="7.5",
        count=16,
        replicas=4,
    )
    annotations = {OFFERS_ANNOTATION: encode_offers([offer])}
    node = msgspec.convert({"metadata": {"name": "n1", "annotations": annotations}}, Node)
    broken = msgspec.convert({"metadata": {"name": "n2", "annotations": {OFFERS_ANNOTATION: "{"}}}, Node)
    pods = [pod("a", node="n1"), pod("b", node="n1", phase="Succeeded"), pod("c", node="n3"), pod("d")]
    found = map_fleet([], [], {"n1": SilentNode(node="n1", reason="its agent does not answer")}, [node, broken], pods)
    (resource,) = only(found).resources
    assert (resource.used, resource.count, resource.pods) == (1, 16, ("default/a",))
    assert only(found).unread == "its agent does not answer"
    assert count_waiting(pods) == 1


def pod(name: str, *, node: str = "", phase: str = "Pending") -> Pod:
    containers = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu.shared": "1"}}}]
    spec = {"containers": containers, **({"nodeName": node} if node else {})}
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": {"phase": phase}}, Pod
    )


LEASES = (lease("a", "w", "whole", 1.0, namespace="team-a"), lease("b", "s", "time-slicing", 0.25))


@pytest.mark.parametrize(
    ("chosen", "indexes"),
    [
        (CardFilter(), [0, 1, 2]),
        (CardFilter(namespace="team-a"), [0]),
        (CardFilter(namespace="team"), []),
        (CardFilter(model="a100"), [2]),
        (CardFilter(free="3g.20gb"), [2]),
        (CardFilter(free="gpu"), []),
        (CardFilter(free="share"), [1]),
        (CardFilter(held_by="default/b"), [1]),
        (CardFilter(held_by="a", model="T4"), [0, 1]),
    ],
)
def test_cards_are_chosen(chosen: CardFilter, indexes: list[int]) -> None:
    nodes = map_fleet([], [page(whole(), shared(), FIXED, leases=LEASES)])
    assert [card.index for node in select(nodes, chosen) for card in node.cards] == indexes


def test_the_sums_by_model_weigh_slices_by_their_memory() -> None:
    leases = (*LEASES, lease("c", "MIG-2", "mig", 0.5))
    t4, a100 = summarize(map_fleet([], [page(whole(), shared(), FIXED, leases=leases)]))
    assert (t4.model, t4.cards, t4.kinds, t4.held) == ("Tesla T4", 2, {"whole": 1, "time-slicing": 1}, 1.25)
    assert t4.possible == {"share": 3}
    assert (a100.held, a100.possible) == (0.5, {"1g.5gb": 1})


def without_its_card(record: Instaslice) -> Instaslice:
    """The record after the agent withheld its only card and listed two others of the node."""
    (gpu,) = record.status.node_resources.node_gpus
    others = tuple(
        msgspec.structs.replace(gpu, gpu_uuid=uuid, index=index) for uuid, index in (("GPU-b", 1), ("GPU-c", 2))
    )
    resources = msgspec.structs.replace(record.status.node_resources, node_gpus=others)
    return msgspec.structs.replace(record, status=msgspec.structs.replace(record.status, node_resources=resources))


@pytest.mark.parametrize("read", [True, False])
def test_a_lost_card_stays_on_the_map_with_its_pods(*, read: bool) -> None:
    record = without_its_card(sliced(("vllm", "3g.20gb", 4, 4)))
    lost = CardUsage(uuid=GPU, index=0, model=A100, mig=True, slots=8, health=CardHealth(state="lost"))
    nodes = map_fleet([record], [page(lost)] if read else [])
    found = only(nodes).cards
    assert [(card.index, card.uuid, card.slots, card.used) for card in found if card.used] == [(0, GPU, 8, 4)]
    assert sorted(card.index for card in found) == [0, 1, 2]
    held = next(card for card in found if card.uuid == GPU)
    assert (held.kind, held.possible, held.model, held.health) == (
        ("slice", {}, A100, "lost") if read else ("slice", {}, "", "")
    )
    assert [card.uuid for card in only(select(nodes, CardFilter(held_by="vllm"))).cards] == [GPU]


def test_a_lost_card_of_a_node_that_reboots_is_drawn_as_its_agent_last_wrote_it() -> None:
    record = without_its_card(sliced(("vllm", "3g.20gb", 4, 4)))
    fault = CardFault(gpu=GPU, rule="XID 79", index=0, asks="reboot", lost=True)
    cards = [ListedCard(0, GPU), ListedCard(1, "GPU-b"), ListedCard(2, "GPU-c")]
    node = Node(
        metadata=ObjectMeta(name=record.metadata.name, annotations={CARDS_ANNOTATION: encode_cards(cards, [fault])})
    )
    found = only(map_fleet([record], nodes=[node])).cards
    assert [(card.index, card.uuid, card.model, card.health) for card in found] == [
        (0, GPU, "NVIDIA A100-SXM4-40GB", "lost"),
        (1, "GPU-b", "NVIDIA A100-SXM4-40GB", ""),
        (2, "GPU-c", "NVIDIA A100-SXM4-40GB", ""),
    ]


@pytest.mark.parametrize(
    ("start", "size", "profile"), [(4, 4, "3g.20gb"), (6, 1, "1g.5gb"), (0, 8, "7g.40gb"), (1, 3, "")]
)
def test_a_slice_whose_pod_is_gone_has_the_profile_of_its_place(start: int, size: int, profile: str) -> None:
    record = sliced(("vllm", "3g.20gb", start, size))
    gone = msgspec.structs.replace(record, spec=msgspec.structs.replace(record.spec, pod_allocation_requests={}))
    (card,) = only(map_fleet([gone])).cards
    assert [(tile.profile, tile.pod, tile.state) for tile in card.tiles] == [(profile, "", "deleting")]
