"""Every reason with its words, for each reader."""

from collections.abc import Mapping
from typing import NamedTuple, get_args

import msgspec
import pytest

from tessera.reasons.node_rules import NodeRule, RuleKind, name_rule, remedy, rule_fact, shortage
from tessera.reasons.reason import (
    Blocker,
    CardsAway,
    Fragmented,
    Full,
    GangIncomplete,
    GangNoRoom,
    GangTooLarge,
    NeverFits,
    NoNode,
    OldPods,
    OtherGate,
    Planning,
    QueueFull,
    Reason,
    Reserved,
    RuleCount,
    SharedClaim,
    UnknownProfile,
    UpdateStep,
)
from tessera.reasons.words import for_namespace, name_blockers, sentence, steps, verdict
from tessera.visibility import Redactor, Visibility

HALF = ("3g.20gb",)
ENDS = (Blocker("team-a/web", "node-1", "7g.40gb", "GPU-1", 0, 8), Blocker("team-b/api", "node-1", "1g.5gb", "GPU-2"))
CORDON = RuleCount(NodeRule(RuleKind.UNSCHEDULABLE), 2)
CPU = RuleCount(shortage("cpu"), 1)
CLAIM = RuleCount(NodeRule(RuleKind.CLAIM, '"data" not found'), 3)
AWAY = RuleCount(NodeRule(RuleKind.NO_AGENT), 1)
FULL = Full(HALF, frees=ENDS, total=2, needed=4)
#: What a reader of all pods, and one of the pods of team-a, is told of the pods in the way.
EVERYBODY = (
    "room comes when team-a/web (7g.40gb, memory slots 0-7) and team-b/api (1g.5gb, memory slot 0) on node node-1 end"
)
TEAM_A = EVERYBODY.replace("team-b/api", "a pod of another namespace")


class Words(NamedTuple):
    """The words of a reason.

    Attributes:
        case: one word for scripts.
        opening: the verdict up to the sentence.
        sentence: the sentence, for every reader.
        all: what stands before the pod, for readers of all pods.
        team: the same for the readers of team-a's pods.
    """

    case: str
    opening: str
    sentence: str
    all: str = ""
    team: str = ""


NEVER, ROOM, WAITS = "cannot run in this cluster; ", "waits for room; ", "waits; "
GANG = "its pods get their slices together, and hold none until then"
WORDS: Mapping[Reason, Words] = {
    UnknownProfile("3g.20g", ("3g.20gb",), "3g.20gb"): Words(
        "no-such-profile", NEVER, 'no card has a profile "3g.20g"; did you mean "3g.20gb"? the cards have 3g.20gb'
    ),
    UnknownProfile("3g.20gb"): Words(
        "no-card-reported", WAITS, 'no card can make "3g.20gb": no node has reported a card that is cut on demand'
    ),
    UnknownProfile("3g.20gb", missing_kind="instaslices.example.com"): Words(
        "kind-missing",
        WAITS,
        'no card is known that can make "3g.20gb": the cluster lacks the kind instaslices.example.com,'
        " which `tessera install --reuse` or `helm upgrade` brings back",
    ),
    UnknownProfile("nvidia.com/gpu", ("3g.20gb",)): Words("not-offered", WAITS, "no node has nvidia.com/gpu"),
    NeverFits(("7g.40gb",) * 3): Words(
        "never-fits",
        NEVER,
        "no node could hold 3 x 7g.40gb, even empty; all slices of a pod are on one node: ask for fewer",
    ),
    NeverFits(("7g.40gb", "1g.5gb"), "a node with 1 card A100-40GB", ("7g.40gb",), selected=True): Words(
        "never-fits",
        NEVER,
        "no node that it selects could hold 7g.40gb + 1g.5gb, even empty; all slices of a pod are on one node, and a"
        " node with 1 card A100-40GB holds 7g.40gb: ask for no more, or divide the work among pods",
    ),
    NoNode((CORDON,), 1): Words(
        "no-node",
        WAITS,
        "0 of 3 nodes can take it: 2 node(s) were unschedulable, 1 without a card that can make it",
    ),
    NoNode((CORDON, CPU)): Words(
        "node-full", ROOM, "0 of 3 nodes can take it: 2 node(s) were unschedulable, 1 Insufficient cpu"
    ),
    NoNode((CLAIM,)): Words("volume", WAITS, '0 of 3 nodes can take it: 3 persistentvolumeclaim "data" not found'),
    NoNode((AWAY,)): Words("node-not-ready", WAITS, "0 of 1 nodes can take it: 1 node(s) had no agent that is ready"),
    NoNode((CPU,), too_small="9 CPUs, and the largest node has 8 CPUs"): Words(
        "never-fits", NEVER, "no node could ever take it: it requests 9 CPUs, and the largest node has 8 CPUs"
    ),
    FULL: Words("full", ROOM, "not enough free memory slots for 3g.20gb: 2 free, 4 needed", all=EVERYBODY, team=TEAM_A),
    Full(HALF): Words(
        "full",
        ROOM,
        "every card that it may use is full for 3g.20gb",
        all="no small set of pods was found whose end makes room",
        team="no small set of pods was found whose end makes room",
    ),
    Fragmented(HALF, 3, ENDS, 6, 4): Words(
        "fragmented",
        ROOM,
        "6 memory slots free, at most 3 on one card, and 3g.20gb needs 4",
        all=EVERYBODY,
        team=TEAM_A,
    ),
    Reserved(HALF, ("team-a/web", "team-b/api")): Words(
        "reserved",
        ROOM,
        "the free memory slots that would do for 3g.20gb are reserved for 2 pods that go first",
        all="first go team-a/web, team-b/api",
        team="first go team-a/web, a pod of another namespace",
    ),
    Reserved(HALF, (), spare=("serving",)): Words(
        "reserved",
        ROOM,
        "the free memory slots that would do for 3g.20gb are kept spare for services of queue serving",
    ),
    Reserved(HALF, ("team-a/web",), spare=("serving",)): Words(
        "reserved",
        ROOM,
        "the free memory slots that would do for 3g.20gb are reserved for 1 pod that goes first or kept spare for"
        " services of queue serving",
        all="first goes team-a/web",
        team="first goes team-a/web",
    ),
    QueueFull(HALF, "team-a", "40Gi", "30Gi"): Words(
        "queue-full",
        WAITS,
        "queue team-a may hold 40Gi (spec.maximum), and holds 30Gi: 3g.20gb waits until pods of the queue end",
    ),
    QueueFull(HALF, "team-a", "10Gi", "0Gi", never=True): Words(
        "never-fits",
        NEVER,
        "3g.20gb is more than queue team-a may hold at all (spec.maximum 10Gi): ask for less, or have the Queue's"
        " maximum raised",
    ),
    GangIncomplete("train", 4, 3): Words("gang-incomplete", WAITS, f"gang train: 3 of 4 pods exist; {GANG}"),
    GangIncomplete("train", 0, 3): Words(
        "gang-incomplete",
        WAITS,
        f"gang train: no PodGroup of this name says how many pods, at most 256, start together; {GANG}",
    ),
    GangTooLarge("train", 4, "4 x 7g.40gb", "2 x 7g.40gb"): Words(
        "never-fits",
        NEVER,
        "gang train: its 4 pods request 4 x 7g.40gb together; all cards of the cluster hold at most 2 x 7g.40gb, even"
        " empty. Ask for a smaller gang or smaller slices, or add nodes",
    ),
    GangNoRoom("train", 4, 2, "team-a/train-2", FULL): Words(
        "gang-no-room",
        WAITS,
        "gang train starts as a whole, and 2 of its 4 pods have a place now: not enough free memory slots for 3g.20gb:"
        " 2 free, 4 needed",
        all=f"team-a/train-2 finds no place beside the others; {EVERYBODY}",
        team=f"team-a/train-2 finds no place beside the others; {TEAM_A}",
    ),
    CardsAway(2, FULL, ("XID 48", "probe")): Words(
        "card-held-back",
        ROOM,
        "2 cards that might serve it are held back for a fault (XID 48, probe); not enough free memory slots for"
        " 3g.20gb: 2 free, 4 needed",
        all=EVERYBODY,
        team=TEAM_A,
    ),
    OldPods("team-a", "svc", ("team-a/svc-1-x",), reason=FULL): Words(
        "own-rollout",
        ROOM,
        "an old pod of its own Deployment holds what it needs, and ends only when this one is ready (maxUnavailable 0):"
        " neither goes on by itself",
        all="the old pod is team-a/svc-1-x",
        team="the old pod is team-a/svc-1-x",
    ),
    OldPods("team-a", "svc", ("team-a/svc-1-x",), UpdateStep.REFUSED, "it would violate the budget."): Words(
        "hand-over",
        ROOM,
        "it gets the slots of an old pod of its own Deployment, and its eviction is refused",
        all="the old pod is team-a/svc-1-x; the server says: it would violate the budget",
        team="the old pod is team-a/svc-1-x; the server says: it would violate the budget",
    ),
    OldPods("team-a", "svc", ("team-a/svc-1-x",), UpdateStep.SHORT): Words(
        "hand-over",
        ROOM,
        "it gets the slots of an old pod once as many pods are ready as its Deployment wants, or once this pod is"
        " progressDeadlineSeconds old",
        all="the old pod is team-a/svc-1-x",
        team="the old pod is team-a/svc-1-x",
    ),
    OldPods("team-a", "svc", ("team-a/svc-1-x",), UpdateStep.IMAGE, "manifest unknown."): Words(
        "hand-over",
        ROOM,
        "an old pod of its own Deployment holds what it needs, and serves on: its node does not get an image of this"
        " pod",
        all="the old pod is team-a/svc-1-x; kubelet says: manifest unknown",
        team="the old pod is team-a/svc-1-x; kubelet says: manifest unknown",
    ),
    OldPods("team-a", "svc", (), UpdateStep.FAILED): Words(
        "hand-over",
        ROOM,
        "a pod of this revision did not become ready, and its slots went back to the old revision; this revision gets"
        " no further try",
    ),
    OtherGate(("example.com/hold",)): Words(
        "other-gate", WAITS, "it has the gate example.com/hold, not Tessera's: its owner removes it"
    ),
    OtherGate(("kueue.x-k8s.io/admission",)): Words(
        "other-gate", WAITS, "Kueue holds it by the gate kueue.x-k8s.io/admission"
    ),
    SharedClaim("team-a/first"): Words(
        "shared-claim",
        WAITS,
        "another pod asks for its ResourceClaim first",
        all="team-a/first asks for it",
        team="team-a/first asks for it",
    ),
    Planning(): Words("planning", WAITS, "the controller has not planned it yet"),
}


def test_every_reason_is_in_the_table() -> None:
    assert {type(each) for each in WORDS} == set(get_args(Reason))


@pytest.mark.parametrize("reason", WORDS, ids=lambda each: type(each).__name__)
def test_a_reason_has_one_sentence_for_every_reader_and_names_pods_to_those_who_may_see_them(reason: Reason) -> None:
    words = WORDS[reason]
    assert (reason.case, verdict(reason)) == (words.case, f"{words.opening}{words.sentence}")
    team, nobody = for_namespace(reason, "team-a"), Redactor(b"key").redact(reason, Visibility())
    assert sentence(reason) == sentence(team) == sentence(nobody) == words.sentence
    assert (name_blockers(reason), name_blockers(team)) == (words.all, words.team)
    shown = msgspec.json.encode(nobody).decode() + name_blockers(nobody)
    assert not [name for name in ("team-a/", "team-b/", "node-1", "GPU-") if name in shown]


@pytest.mark.parametrize("reason", WORDS, ids=lambda each: type(each).__name__)
def test_a_reason_travels_as_data(reason: Reason) -> None:
    assert msgspec.json.decode(msgspec.json.encode(reason), type=Reason) == reason


@pytest.mark.parametrize("reason", WORDS, ids=lambda each: type(each).__name__)
def test_what_a_reason_asks_for_is_told_unless_others_or_a_plan_say_it(reason: Reason) -> None:
    found = steps(reason, "team-a")
    by_a_plan = isinstance(reason, UnknownProfile | NoNode | Full | Fragmented | CardsAway | GangNoRoom)
    assert bool(found) or by_a_plan or isinstance(reason, OtherGate)
    assert not [each for each in found if each.endswith((".", ":")) or "  " in each]


@pytest.mark.parametrize("kind", RuleKind)
def test_every_rule_has_words(kind: RuleKind) -> None:
    rule = NodeRule(kind, "x")
    step, command = remedy(rule, "n1")
    for text in (name_rule(rule), rule_fact(rule, ["n1"]), step, command):
        assert "ABOUT" not in text
        assert "NODE" not in text
    assert rule_fact(rule, ["n1", "n2"]).endswith(": n1, n2")
