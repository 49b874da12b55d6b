"""Decisions of the simulated cluster autoscaler in one scan, as tables; and invariants under random events."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.searching import examples

from tessera_lab.cloud.autoscaler.rules import (
    ActionKind,
    AutoscalerMemory,
    AutoscalerSnapshot,
    AutoscalerTimers,
    GroupNode,
    GroupView,
    PendingView,
    ScalingAction,
    count_upcoming,
    is_starting,
    scan,
)
from tessera_lab.cloud.node_groups import NodeGroup
from tessera_lab.cluster.options import LabNodeSpec

GROUP = NodeGroup(name="gpu", template=LabNodeSpec(name="", cards=("T4",)), maximum=3)
TIMERS = AutoscalerTimers()
NEW = GroupNode(name="n1", group="gpu", created=0, ready=True, labelled=True, cards=0, free=0, empty=True)
PENDING = PendingView(created=0, cards=1)


def world(
    now: float,
    *nodes: GroupNode,
    target: int | None = None,
    pending: Sequence[PendingView] = (),
    unregistered: dict[str, float] | None = None,
    group: NodeGroup = GROUP,
) -> AutoscalerSnapshot:
    """The input of a scan, with one node group."""
    asked = unregistered or {}
    view = GroupView(group=group, target=len(nodes) + len(asked) if target is None else target, unregistered=asked)
    return AutoscalerSnapshot(now=now, groups=[view], nodes=nodes, pending=pending)


def asked(now: float, memory: AutoscalerMemory, timers: AutoscalerTimers = TIMERS) -> None:
    """Has the autoscaler make its first request, at ``now``."""
    (deed,) = scan(world(now, pending=[msgspec.structs.replace(PENDING, created=now - 30)]), memory, timers)
    assert (deed.kind, deed.count) == (ActionKind.INCREASE, 1)


@pytest.mark.parametrize(
    ("changes", "now", "starting"),
    [
        ({}, 899, True),  # labelled, Ready, no card: on its way
        ({}, 900, False),  # until maxNodeStartupTime
        ({"labelled": False}, 10, False),  # without the label it is Ready and empty
        ({"cards": 1}, 10, False),
        ({"ready": False, "labelled": False}, 10, True),
        ({"ready": False, "cards": 1}, 10, True),
    ],
)
def test_a_node_on_its_way(changes: dict[str, object], now: float, starting: bool) -> None:
    assert is_starting(msgspec.structs.replace(NEW, **changes), now, TIMERS) is starting


@pytest.mark.parametrize(
    ("pending", "now", "count"),
    [
        ([PENDING], 29, 0),  # pods that ask for cards are gathered for 30 s
        ([PENDING], 30, 1),
        ([PENDING, PendingView(created=29, cards=1)], 30, 2),  # the oldest decides
        ([PENDING] * 5, 30, 3),  # never more than the group's maximum
        ([PendingView(created=0, cards=1, priority=-10)], 30, 1),
        ([PendingView(created=0, cards=1, priority=-11)], 30, 0),  # expendable
        ([PendingView(created=0, cards=0)], 30, 0),
        ([PendingView(created=0, cards=2)], 30, 0),  # no machine has two
    ],
)
def test_pending_pods_cause_a_scale_up(pending: list[PendingView], now: float, count: int) -> None:
    deeds = scan(world(now, pending=pending), AutoscalerMemory(), TIMERS)
    assert sum(deed.count for deed in deeds) == count


def test_a_labelled_node_without_its_card_has_room_for_the_pod_and_one_without_a_label_has_none() -> None:
    def more(labelled: bool) -> list[ScalingAction]:
        memory = AutoscalerMemory()
        asked(0, memory)
        node = msgspec.structs.replace(NEW, labelled=labelled, created=100)
        return scan(world(110, node, pending=[PENDING]), memory, TIMERS)

    assert more(True) == []
    assert [deed.kind for deed in more(False)] == [ActionKind.INCREASE]


def test_a_request_that_takes_too_long_is_dropped_and_another_is_made_after_the_backoff() -> None:
    timers, memory = AutoscalerTimers(max_node_provision=300), AutoscalerMemory()
    asked(0, memory, timers)
    node = msgspec.structs.replace(NEW, created=150)
    assert scan(world(300, node, pending=[PENDING]), memory, timers) == []
    (late,) = scan(world(301, node, pending=[PENDING]), memory, timers)
    assert (late.kind, late.why) == (
        ActionKind.TIMED_OUT,
        "nodes added to group gpu failed to register within their time",
    )
    assert count_upcoming(world(301, node).groups[0], world(301, node), memory, timers) == 0
    assert scan(world(600, node, pending=[PENDING]), memory, timers) == []
    (more,) = scan(world(601, node, pending=[PENDING]), memory, timers)
    assert (more.kind, more.count) == (ActionKind.INCREASE, 1)


def test_the_backoff_doubles_to_its_bound_and_a_request_that_ends_well_ends_it() -> None:
    timers, memory, now, lengths = AutoscalerTimers(max_node_provision=60), AutoscalerMemory(), 0.0, []
    for _ in range(5):
        asked(now, memory, timers)
        scan(world(now + 61, target=1), memory, timers)
        lengths.append(memory.backoff["gpu"][1])
        now = memory.backoff["gpu"][0]
    assert lengths == [300, 600, 1200, 1800, 1800]
    asked(now, memory, timers)
    scan(world(now + 30, msgspec.structs.replace(NEW, cards=1, free=1)), memory, timers)
    assert (memory.backoff, memory.requests) == ({}, {})


def test_another_group_is_asked_while_one_is_backed_off() -> None:
    timers, memory = AutoscalerTimers(max_node_provision=300), AutoscalerMemory()
    other = NodeGroup(name="other", template=GROUP.template, maximum=1)
    asked(0, memory, timers)
    seen = world(301, msgspec.structs.replace(NEW, created=150), pending=[PENDING])
    views = [*seen.groups, GroupView(group=other, target=0, unregistered={})]
    deeds = scan(msgspec.structs.replace(seen, groups=views), memory, timers)
    assert [(deed.kind, deed.group) for deed in deeds] == [
        (ActionKind.TIMED_OUT, "gpu"),
        (ActionKind.INCREASE, "other"),
    ]


def test_a_machine_that_never_registers_goes_but_for_the_minimum() -> None:
    seen = {"m1": 0.0, "m2": 0.0, "m3": 500.0}
    assert [deed.node for deed in scan(world(901, unregistered=seen), AutoscalerMemory(), TIMERS)] == ["m1", "m2"]
    least = NodeGroup(name="gpu", template=GROUP.template, minimum=2)
    assert [deed.node for deed in scan(world(901, unregistered=seen, group=least), AutoscalerMemory(), TIMERS)] == [
        "m1"
    ]


@pytest.mark.parametrize(
    ("changes", "timers", "gone"),
    [
        ({"labelled": False}, AutoscalerTimers(unneeded=300, delay_after_add=0), 300),
        ({"labelled": False}, AutoscalerTimers(unneeded=300, delay_after_add=500), 500),
        ({"labelled": False, "empty": False}, AutoscalerTimers(unneeded=300, delay_after_add=0), None),
        ({"cards": 1, "free": 1}, AutoscalerTimers(unneeded=300, delay_after_add=0), 300),
        ({}, AutoscalerTimers(max_node_provision=300, unready=1200), 1510),  # its request timed out in the scan at 310
        ({}, AutoscalerTimers(max_node_startup=100, unready=1200), 1300),
        ({}, AutoscalerTimers(unready=1200), 2100),
    ],
)
def test_when_an_empty_node_goes(changes: dict[str, object], timers: AutoscalerTimers, gone: float | None) -> None:
    memory = AutoscalerMemory()
    asked(0, memory, timers)
    node = msgspec.structs.replace(NEW, **changes)
    found = (now for now in range(0, 3000, 10) if _removes(scan(world(now, node), memory, timers)))
    assert next(found, None) == gone


def _removes(deeds: list[ScalingAction]) -> bool:
    return any(deed.kind is ActionKind.REMOVE for deed in deeds)


class SimulatedCloud:
    """A cloud in a few lines: machines that register, get cards, and go; pods that take cards."""

    def __init__(self, group: NodeGroup, timers: AutoscalerTimers, *, labelled: bool) -> None:
        self.group, self.timers, self.labelled, self.memory = group, timers, labelled, AutoscalerMemory()
        self.machines: dict[str, tuple[float, float, float]] = {
            f"first-{n}": (0.0, 0.0, 0.0) for n in range(group.minimum)
        }
        self.removed: list[tuple[float, GroupNode | None]] = []
        self.now = 0.0

    def view(self, pods: int) -> AutoscalerSnapshot:
        """The input of a scan; waiting pods take the cards that are usable."""
        nodes, waiting = [], pods
        for name, (_, joined, usable) in self.machines.items():
            if self.now >= joined:
                cards = int(self.now >= usable)
                used = min(cards, waiting)
                waiting -= used
                nodes.append(
                    GroupNode(
                        name=name,
                        group="gpu",
                        created=joined,
                        ready=True,
                        labelled=self.labelled,
                        cards=cards,
                        free=cards - used,
                        empty=not used,
                    )
                )
        late = {name: asked for name, (asked, joined, _) in self.machines.items() if self.now < joined}
        view = GroupView(group=self.group, target=len(self.machines), unregistered=late)
        return AutoscalerSnapshot(
            now=self.now,
            groups=[view],
            nodes=nodes,
            pending=[PendingView(created=self.now - 60, cards=1)] * waiting,
        )

    def step(self, pods: int, joins: float, becomes_usable: float) -> None:
        """One scan."""
        self.now += 10
        seen = self.view(pods)
        for deed in scan(seen, self.memory, self.timers):
            for _ in range(deed.count):
                joined = self.now + joins
                self.machines[f"{self.now}-{len(self.machines)}"] = (self.now, joined, joined + becomes_usable)
            if deed.kind is ActionKind.REMOVE:
                del self.machines[deed.node]
                self.removed.append((self.now, next((node for node in seen.nodes if node.name == deed.node), None)))


@settings(max_examples=examples(60), deadline=None)
@given(
    labelled=st.booleans(),
    bounds=st.tuples(st.integers(0, 2), st.integers(0, 3)),
    timers=st.builds(
        AutoscalerTimers,
        max_node_provision=st.sampled_from([60.0, 300.0, 900.0]),
        max_node_startup=st.sampled_from([100.0, 900.0]),
        unneeded=st.sampled_from([0.0, 60.0, 300.0]),
        delay_after_add=st.sampled_from([0.0, 300.0]),
    ),
    days=st.lists(
        st.tuples(st.integers(0, 4), st.floats(0, 1000), st.floats(0, 1000), st.integers(1, 60)), min_size=1, max_size=6
    ),
)
def test_whatever_happens_bounds_hold_and_nothing_goes_too_early(
    labelled: bool, bounds: tuple[int, int], timers: AutoscalerTimers, days: list[tuple[int, float, float, int]]
) -> None:
    minimum, more = bounds
    group = NodeGroup(name="gpu", template=GROUP.template, minimum=minimum, maximum=minimum + more)
    story = SimulatedCloud(group, timers, labelled=labelled)
    for pods, joins, usable, scans in days:
        for _ in range(scans):
            story.step(pods, joins, usable)
            assert minimum <= len(story.machines) <= group.maximum
            assert all(timers.first_backoff <= each <= timers.longest_backoff for _, each in _backoffs(story))
    for at, node in story.removed:
        if node is not None:
            assert node.empty
        if node is not None and labelled and not node.cards:
            assert at - node.created >= timers.max_node_startup  # the timeout of unready nodes is longer than that


def _backoffs(story: SimulatedCloud) -> list[tuple[float, float]]:
    return list(story.memory.backoff.values())
