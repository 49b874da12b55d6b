"""The agents' pages for readers with few rights: no hidden name is left in them, and the numbers stay."""

from typing import Any

import msgspec
import pytest

from tessera.access.agent_pages import FleetUsage
from tessera.api.nodes.health import CardHealth, Evidence, Finding, Holder
from tessera.api.nodes.silence import SilentNode
from tessera.api.nodes.usage import CardUsage, DeviceUsage, EndedLease, JoinedCard, LeaseUsage, NodeTopology, NodeUsage
from tessera.api.queues import Queue
from tessera.controller.cluster.volumes import NodeModels
from tessera.dashboard.aliases import Aliases
from tessera.explain.claim_objects import ClaimObjects
from tessera.explain.snapshot import OrderObjects, Snapshot
from tessera.forecast.queue_page import ExpectedStart, QueuedPod, QueuePage
from tessera.kube.resources import CoreEvent, Deployment, Lease, ReplicaSet, ResourceQuota
from tessera.reasons.reason import Blocker, Full
from tessera.visibility import FULL, Redactor, Visibility

REDACTOR = Redactor(b"key")
#: Texts that nobody without a right to nodes, or to the pods of team-b, may see.
OF_NODES = (
    "node-secret",
    "GPU-secret",
    "MIG-secret",
    "evidence-secret",
    "next-secret",
    "absent-secret",
    "failure-secret",
)
OF_TEAM_B = ("team-b", "beta", "uid-beta", "container-beta", "finding-beta")


def lease(team: str, pod: str, device: str) -> LeaseUsage:
    return LeaseUsage(
        namespace=team,
        pod=pod,
        uid=f"uid-{pod}",
        container=f"container-{pod}",
        device=device,
        kind="mig",
        share=0.5,
        state="idle",
        evidence=f"evidence of {pod}",
        held=7.0,
        wasted=3.0,
        memory=5.0,
        findings=(Finding(kind="slow", text=f"finding-{pod}"),),
    )


HEALTH = CardHealth(
    state="needs_reset",
    evidence=(Evidence(source="XID 79", text="evidence-secret"),),
    next="next-secret",
    holders=(Holder(namespace="team-b", pod="beta"), Holder(namespace="team-a", pod="alpha")),
)
CARD = CardUsage(
    uuid="GPU-secret",
    model="H100",
    values={"power": 9.0},
    absent={"sm": "absent-secret"},
    devices=(DeviceUsage(uuid="MIG-secret", profile="1g.10gb"),),
    health=HEALTH,
)
FLEET = FleetUsage(
    nodes=(
        NodeUsage(
            node="node-secret",
            driver="550",
            cards=(CARD,),
            leases=(lease("team-a", "alpha", "MIG-secret"), lease("team-b", "beta", "GPU-secret")),
            ended=(EndedLease(namespace="team-b", pod="beta"),),
            cut=2,
            topology=NodeTopology(
                cards=(JoinedCard(index=0, uuid="GPU-secret"), JoinedCard(index=1, uuid="GPU-secret-too", cpus="0-7")),
                rows=("NV18", ""),
            ),
        ),
    ),
    failures=(SilentNode(node="node-secret", reason="failure-secret"),),
)
TEAM_A = frozenset({"team-a"})


def shown(visibility: Visibility) -> tuple[FleetUsage, str]:
    found = Aliases(visibility, REDACTOR).hide_fleet(FLEET)
    return found, msgspec.json.encode(found).decode()


@pytest.mark.parametrize(
    ("visibility", "hidden"),
    [
        (Visibility(), (*OF_NODES, *OF_TEAM_B, "team-a", "alpha")),
        (Visibility(namespaces=TEAM_A), (*OF_NODES, *OF_TEAM_B)),
        (Visibility(nodes=True, namespaces=TEAM_A), (*OF_TEAM_B, "failure-secret")),
        (Visibility(namespaces=None), OF_NODES),
    ],
)
def test_no_hidden_name_is_left(visibility: Visibility, hidden: tuple[str, ...]) -> None:
    _, text = shown(visibility)
    assert [name for name in hidden if name in text] == []


def test_numbers_and_states_stay() -> None:
    found, _ = shown(Visibility())
    (page,) = found.nodes
    (card,) = page.cards
    assert (card.values, card.model, card.health.state, page.cut) == ({"power": 9.0}, "H100", "needs_reset", 2)
    assert [(each.share, each.held, each.wasted, each.memory) for each in page.leases] == [(0.5, 7.0, 3.0, 5.0)] * 2


def test_an_alias_joins_what_its_name_joined() -> None:
    found, _ = shown(Visibility())
    (page,) = found.nodes
    (card,) = page.cards
    assert [each.device for each in page.leases] == [card.devices[0].uuid, card.uuid]
    assert len({each.uid for each in page.leases}) == 2
    assert page.node == found.failures[0].node


def test_own_pods_are_shown_whole() -> None:
    found, text = shown(Visibility(nodes=True, namespaces=TEAM_A))
    assert found.nodes[0].leases[0] == FLEET.nodes[0].leases[0]
    assert [each.pod for each in found.nodes[0].cards[0].health.holders] == ["alpha"]
    assert "evidence-secret" in text


def test_one_who_may_see_everything_sees_what_is_there_now() -> None:
    found, _ = shown(FULL)
    assert msgspec.structs.replace(found.nodes[0], ended=FLEET.nodes[0].ended) == FLEET.nodes[0]


def values(kind: type[Any]) -> set[str]:
    return {each.name for each in msgspec.structs.fields(kind)}


def test_a_new_field_of_a_page_is_hidden_until_somebody_decides() -> None:
    """If this fails, decide in aliases.py who may see the new field, and add it here."""
    assert values(NodeUsage) - {"ended", "ended_window", "services"} == {
        "node",
        "taken",
        "age",
        "driver",
        "cards",
        "leases",
        "cut",
        "simulated",
        "topology",
    }


def test_a_tenant_sees_how_the_cards_of_its_own_pods_are_joined() -> None:
    (page,) = shown(Visibility(namespaces=TEAM_A))[0].nodes
    assert page.topology is not None
    assert [each.uuid for each in page.topology.cards] == [page.cards[0].uuid]
    assert page.topology.of_cards(page.cards_of("team-a", "alpha")) == page.topology
    assert shown(Visibility(namespaces=frozenset({"team-c"})))[0].nodes[0].topology is None
    assert shown(Visibility(nodes=True))[0].nodes[0].topology == FLEET.nodes[0].topology


QUEUE = QueuePage(
    leads=True,
    taken=100.0,
    pods=(
        QueuedPod(
            namespace="team-a",
            name="mine",
            position=2,
            of=2,
            reason="full",
            why=Full(
                ("7g.40gb",),
                frees=(
                    Blocker("team-b/beta", "node-secret", "7g.40gb", "GPU-secret"),
                    Blocker("team-a/alpha", "node-secret", "3g.20gb", "GPU-secret"),
                    Blocker("GPU-secret has it", "node-secret"),
                ),
            ),
            start=ExpectedStart(p50=200.0, p90=300.0, basis="history"),
        ),
        QueuedPod(namespace="team-b", name="beta-waits", position=1, of=2),
    ),
    omitted=3,
)


def test_a_tenant_sees_its_own_pods_in_the_queue_and_aliases_for_those_before_them() -> None:
    shown = Aliases(Visibility(namespaces=frozenset({"team-a"})), REDACTOR).hide_queue(QUEUE)
    (row,) = shown.pods
    assert (row.name, row.position, row.of, row.start) == ("mine", 2, 2, QUEUE.pods[0].start)
    assert [each.pod for each in row.blockers] == [f"~/{REDACTOR.pod('team-b', 'beta')}", "team-a/alpha", "~"]
    assert {each.node for each in row.blockers} == {REDACTOR.node("node-secret")}
    text = msgspec.json.encode(shown).decode()
    assert not [name for name in (*OF_NODES, *OF_TEAM_B) if name in text]
    assert shown.omitted == 0, "the number of others says how many wait"


def test_who_sees_everything_sees_the_queue_as_it_is() -> None:
    assert Aliases(FULL, REDACTOR).hide_queue(QUEUE) is QUEUE


def test_the_models_of_nodes_name_no_node_and_namespace_that_the_reader_may_not_see() -> None:
    order = OrderObjects(models=[NodeModels("n1", frozenset({"llama", "team-a/own", "team-b/secret"}))])
    objects = Snapshot(now=0.0, order=order)
    (shown,) = Aliases(Visibility(namespaces=frozenset({"team-a"})), REDACTOR).hide(objects).order.models
    assert shown == NodeModels(REDACTOR.node("n1"), frozenset({"llama", "team-a/own"}))
    assert list(Aliases(FULL, REDACTOR).hide(objects).order.models) == list(order.models)


def test_a_queue_names_no_namespace_that_the_reader_may_not_see() -> None:
    def queue(name: str, *namespaces: str) -> Queue:
        return Queue(name=name, namespaces=frozenset(namespaces))

    order = OrderObjects(queues=[queue("gold", "team-a", "team-b"), queue("open", "*"), queue("none")])
    objects = Snapshot(now=0.0, order=order)
    shown = Aliases(Visibility(namespaces=frozenset({"team-a"})), REDACTOR).hide(objects).order.queues
    assert list(shown) == [queue("gold", "team-a"), queue("open", "*"), queue("none")]
    assert list(Aliases(FULL, REDACTOR).hide(objects).order.queues) == list(order.queues)


def test_nothing_of_a_snapshot_that_the_page_does_not_mirror_reaches_a_reader() -> None:
    given = Snapshot(
        now=1.0,
        events=[CoreEvent(message="secret")],
        leases=[Lease()],
        quotas=[ResourceQuota()],
        deployments=[Deployment()],
        replica_sets=[ReplicaSet()],
        claims=ClaimObjects(),
        pages=[NodeUsage(node="node-secret")],
        hides_labels=True,
        forbidden=frozenset({"pods"}),
        failed={"pods": "secret"},
        page=QUEUE,
        unanswered=[SilentNode(node="node-secret", reason="secret")],
    )
    assert Aliases(Visibility(namespaces=frozenset({"team-a"})), REDACTOR).hide(given) == Snapshot(
        now=1.0,
        pods=[],
        nodes=[],
        instaslices=[],
        order=OrderObjects(namespaces=[], queues=[], models=[]),
        hides_labels=True,
        forbidden=frozenset({"pods"}),
    )
