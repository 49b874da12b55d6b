"""The plan of moves names pods that may move, places that fit, and why others stay without room."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.explain.test_pods import NOW, answer, bound, cards, node, pod

from tessera.api.instaslice import Instaslice
from tessera.api.names import HOSTNAME_LABEL, MOVABLE_ANNOTATION, PodUid
from tessera.cli.defrag import plan_lines
from tessera.clock import rfc3339
from tessera.controller.slicing.state.node_records import MOVES_ANNOTATION, RecordedMove, format_moves
from tessera.explain.room_moves import MovesPlan, plan_moves
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.kube.resources import Node, Pod

MOVABLE = {MOVABLE_ANNOTATION: "true"}
OWNED = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}]

#: It has run for ten minutes.
RUNNING = {
    "phase": "Running",
    "startTime": rfc3339(NOW - 600),
    "containerStatuses": [{"name": "c", "state": {"running": {}}}],
}


def movable(name: str, profile: str, on: str, **more: Any) -> Pod:
    more = {"annotations": MOVABLE, "ownerReferences": OWNED, **more}
    more = {"status": RUNNING, **more}
    spec = {"nodeName": on, **more.pop("spec", {})}
    return bound(name, profile, spec=spec, **more)


def objects(**held: tuple[str, str, int, int, str]) -> list[Instaslice]:
    """One card for each node, with one slice."""
    return [cards(slices, name=name) for name, slices in held.items()]


def planned(pods: list[Pod], items: list[Instaslice], nodes: list[Node] | None = None) -> MovesPlan:
    known = nodes or [node(item.metadata.name) for item in items]
    return plan_moves(ClusterView(Snapshot(now=NOW, pods=pods, nodes=known, instaslices=items)))


def test_one_small_pod_moves_so_that_a_whole_card_is_free() -> None:
    found = planned(
        [pod("large", "7g.40gb"), movable("small", "1g.5gb", "n1"), movable("half", "3g.20gb", "n2")],
        objects(n1=("small", "1g.5gb", 0, 1, "created"), n2=("half", "3g.20gb", 0, 4, "created")),
    )
    (room,) = found.rooms
    (move,) = room.moves
    assert (room.pod, room.slots, room.place.node) == ("team/large", 8, "n1")
    assert (move.pod, move.slots, move.from_.node, move.to.node) == ("team/small", 1, "n1", "n2")
    assert (found.stuck, found.movable) == ((), 2)
    lines = list(plan_lines(found))
    assert lines == [
        "team/large gets 7g.40gb on GPU 0, memory slots 0-7 of node n1 if 1 pod moves:",
        "  team/small from 1g.5gb on GPU 0, memory slot 0 of node n1 to 1g.5gb on GPU 0, memory slot 6 of node n2",
        "  gain 76m, price 11m (time of one memory slot): worth it",
        "1 pod would end and start anew; 1 waiting pod would get 8 memory slots.",
        "Nothing was changed. To carry out a move: kubectl delete pod POD -n NAMESPACE",
    ]
    page = (Path(__file__).parents[2] / "docs" / "moves.md").read_text(encoding="utf-8")
    assert "\n".join(["$ tessera defrag --plan", *lines]) in page, "the page shows another output"


def test_the_pin_to_its_node_does_not_keep_a_pod_there() -> None:
    pinned = movable("small", "1g.5gb", "n1")
    pinned = msgspec.structs.replace(
        pinned, spec=msgspec.structs.replace(pinned.spec, node_selector={HOSTNAME_LABEL: "n1"})
    )
    found = planned(
        [pod("large", "7g.40gb"), pinned, movable("half", "3g.20gb", "n2")],
        objects(n1=("small", "1g.5gb", 0, 1, "created"), n2=("half", "3g.20gb", 0, 4, "created")),
    )
    assert [[move.to.node for move in room.moves] for room in found.rooms] == [["n2"]]


@pytest.mark.parametrize(("annotations", "told"), [(MOVABLE, True), ({}, False)], ids=["movable", "not"])
def test_why_names_the_moves_that_would_make_room(annotations: dict[str, str], told: bool) -> None:
    large = pod("large", "7g.40gb")
    items = objects(n1=("small", "1g.5gb", 0, 1, "created"), n2=("half", "3g.20gb", 0, 4, "created"))
    small = movable("small", "1g.5gb", "n1", annotations=annotations)
    half = movable("half", "3g.20gb", "n2", annotations={})
    found = answer(large, small, half, nodes=[node("n1"), node("n2")], instaslices=items)
    assert found.case == "fragmented"
    assert ("it fits on node n1 if team/small moves: tessera defrag --plan" in found.help) is told


def test_moves_that_are_not_worth_it_are_marked_and_no_later_pod_counts_on_them() -> None:
    ending = movable("half", "3g.20gb", "n1", spec={"activeDeadlineSeconds": 660})
    first, second = (pod(name, "7g.40gb", creationTimestamp=f"2026-01-01T00:0{name}:00Z") for name in "12")
    found = planned(
        [first, second, ending, movable("other", "3g.20gb", "n2")],
        objects(n1=("half", "3g.20gb", 0, 4, "created"), n2=("other", "3g.20gb", 0, 4, "created")),
    )
    lines = list(plan_lines(found))
    assert lines.count("  gain 12m, price 44m (time of one memory slot): not worth it") == 2
    assert not any("would end and start anew" in line for line in lines)


def test_a_later_pod_gets_what_the_moves_before_it_leave() -> None:
    lasting = {"activeDeadlineSeconds": 86_400}
    here = {"nodeSelector": {HOSTNAME_LABEL: "n1"}}
    found = planned(
        [
            pod("first", "1g.5gb", creationTimestamp="2026-01-01T00:00:00Z", spec=here),
            pod("second", "2g.10gb", creationTimestamp="2026-01-01T00:01:00Z", spec=here),
            movable("half", "3g.20gb", "n1", spec=lasting),
            movable("most", "4g.20gb", "n1", spec=lasting, annotations={}),
        ],
        [cards(("most", "4g.20gb", 0, 4, "created"), ("half", "3g.20gb", 4, 4, "created")), cards(name="n2")],
    )
    first, second = found.rooms
    assert [move.pod for move in first.moves] == ["team/half"]
    assert (second.place.node, second.moves) == ("n1", ())
    assert any(line.endswith("in the room of the moves above") for line in plan_lines(found))


def test_pods_without_the_annotation_or_without_an_owner_stay() -> None:
    found = planned(
        [
            pod("large", "7g.40gb"),
            movable("plain", "1g.5gb", "n1", annotations={}),
            movable("alone", "1g.5gb", "n2", ownerReferences=[]),
        ],
        objects(n1=("plain", "1g.5gb", 0, 1, "created"), n2=("alone", "1g.5gb", 0, 1, "created")),
    )
    assert (found.rooms, found.movable, found.unowned) == ((), 0, ("team/alone",))
    assert list(plan_lines(found)) == [
        "team/large stays without room: no running pod may move",
        'Pods that may move have the annotation tessera.dev/movable: "true" and an owner that makes them anew.',
        "These pods have the annotation and no owner, so they stay: team/alone",
    ]


def test_a_pod_moves_only_to_a_node_that_takes_it() -> None:
    pods = [pod("large", "7g.40gb"), movable("small", "1g.5gb", "n1"), movable("half", "3g.20gb", "n2")]
    items = objects(n1=("small", "1g.5gb", 0, 1, "created"), n2=("half", "3g.20gb", 0, 4, "created"))
    closed = [node("n1"), node("n2", unschedulable=True)]
    found = planned(pods, items, closed)
    assert found.rooms == ()
    assert found.stuck == (("team/large", "no 3 moves of pods that may move make room for 7g.40gb"),)


def test_the_next_pod_counts_on_the_moves_before_it() -> None:
    found = planned(
        [
            pod("first", "7g.40gb", creationTimestamp="2026-01-01T00:00:00Z"),
            pod("second", "7g.40gb", creationTimestamp="2026-01-01T00:01:00Z"),
            movable("small", "1g.5gb", "n1"),
            movable("half", "3g.20gb", "n2"),
            movable("tiny", "1g.5gb", "n3"),
        ],
        objects(
            n1=("small", "1g.5gb", 0, 1, "created"),
            n2=("half", "3g.20gb", 0, 4, "created"),
            n3=("tiny", "1g.5gb", 0, 1, "created"),
        ),
    )
    assert [room.pod for room in found.rooms] == ["team/first", "team/second"]
    first, second = ([(move.pod, move.to.node) for move in room.moves] for room in found.rooms)
    assert first == [("team/small", "n3")]
    assert second == [("team/half", "n3")], "the pod that moved already does not move again"


def test_several_slices_are_not_planned_and_nothing_waits_in_an_idle_cluster() -> None:
    several = pod("several", "4g.20gb", limits={"nvidia.com/mig-3g.20gb": "1"})
    found = planned([several, movable("small", "1g.5gb", "n1")], objects(n1=("small", "1g.5gb", 0, 1, "created")))
    assert found.stuck == (("team/several", "it requests several slices, and moves make room for one"),)
    idle = planned([movable("small", "1g.5gb", "n1")], objects(n1=("small", "1g.5gb", 0, 1, "created")))
    assert list(plan_lines(idle)) == ["No pod waits for room on cards."]


def test_a_pod_whose_move_was_refused_is_named_as_resting() -> None:
    """Else the plan says "no moves" a moment after it has named one, and nothing says why."""
    items = objects(n1=("small", "1g.5gb", 0, 1, "created"), n2=("half", "3g.20gb", 0, 4, "created"))
    entry = RecordedMove(uid=PodUid("uid-small"), owner="uid-web", date=NOW - 60)
    items[0].metadata.annotations[MOVES_ANNOTATION] = format_moves([entry]) or ""
    small, half = movable("small", "1g.5gb", "n1"), bound("half", "3g.20gb", spec={"nodeName": "n2"}, status=RUNNING)
    assert small.metadata.uid == "uid-small"
    ((_, why),) = planned([pod("large", "7g.40gb"), small, half], items).stuck
    assert why == (
        "no 3 moves of pods that may move make room for 7g.40gb; team/small rests: a pod that was moved, or whose"
        " eviction was refused, does not move for an hour"
    )
