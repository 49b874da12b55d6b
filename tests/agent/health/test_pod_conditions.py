"""What pods are told about their cards: plain faults and holdings in, notices out."""

from itertools import pairwise
from typing import Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.agent.health.card_health import describe_card
from tessera.agent.health.fault import CORDON, EVENT_WATCH, Fault
from tessera.agent.health.history import PastFault
from tessera.agent.health.pod_conditions import PAUSE, Holdings, PodConditions, PodNotice
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.names import FAULT_TOLERATION, GPU_CONDITION, PodUid
from tessera.api.nodes.health import FELL_TOO_OFTEN, describe_fault, describe_xid
from tessera.api.nodes.repairs import RebootWay, Repairs
from tessera.clock import rfc3339
from tessera.kube.resources import Condition, Pod
from tessera.kube.resources.meta import OwnerReference, Uid

EPOCH = 1_700_000_000
INDEXES = {"GPU-a": 0, "GPU-b": 1}
CARD, INSTANCE = DeviceScope("GPU-a"), DeviceScope("GPU-a", 7, 0)


def pod(name: str = "p", namespace: str = "team", told: Condition | None = None) -> Pod:
    conditions = [] if told is None else [msgspec.to_builtins(told)]
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": namespace, "uid": name}, "status": {"conditions": conditions}}, Pod
    )


def fault(xid: int = 48, reaction: Reaction = Reaction.RESET, scope: DeviceScope = CARD, since: float = 0) -> Fault:
    return Fault(scope=scope, source=f"XID {xid}", reaction=reaction, text=describe_xid(xid), since=since, last=since)


def follow(notice: PodNotice) -> Pod:
    """The pod once the API server has the notice."""
    seen = Condition(type=GPU_CONDITION, status=notice.status, reason=notice.reason, message=notice.message)
    return pod(notice.pod.metadata.name, notice.pod.metadata.namespace, seen)


class Node:
    """The decider with the pods as the API server has them."""

    def __init__(self, **holdings: DeviceScope) -> None:
        self.conditions = PodConditions()
        self.pods = {name: pod(name) for name in holdings}
        self.holdings: Holdings = {PodUid(name): frozenset({part}) for name, part in holdings.items()}
        self.now = 0.0
        self.repairs = Repairs()
        self.past: tuple[PastFault, ...] = ()

    def tell(self, *faults: Fault, spared: tuple[Fault, ...] = ()) -> list[tuple[str, str, str]]:
        """Name, reason and status of each notice; the server takes all of them."""
        due, _ = self.conditions.decide(
            self.pods.values(),
            self.holdings,
            faults,
            spared=spared,
            indexes=INDEXES,
            repairs=self.repairs,
            now=self.now,
            past=self.past,
        )
        for notice in due:
            self.pods[notice.pod.metadata.name] = follow(notice)
            self.conditions.note_told(notice, self.now)
        return [(notice.pod.metadata.name, notice.reason, notice.status) for notice in due]

    def message(self, name: str) -> str:
        return self.pods[name].status.conditions[0].message


@pytest.mark.parametrize(
    ("scope", "told"),
    [
        (CARD, ["share", "slice"]),
        (DeviceScope("GPU-a", 7), ["slice"]),
        (DeviceScope("GPU-a", 7, 1), []),
        (DeviceScope("GPU-a", 8), []),
        (DeviceScope("GPU-b"), ["other"]),
    ],
)
def test_a_fault_is_told_to_the_pods_in_its_part_and_to_no_others(scope: DeviceScope, told: list[str]) -> None:
    node = Node(share=CARD, slice=INSTANCE, other=DeviceScope("GPU-b"))
    assert node.tell(fault(94, Reaction.WITHHOLD, scope)) == [(name, "GpuUnhealthy", "False") for name in told]


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ([fault(94, Reaction.WITHHOLD)], "GpuUnhealthy"),
        ([fault()], "GpuNeedsReset"),
        ([msgspec.structs.replace(fault(), reset=True)], "GpuUnhealthy"),
        ([fault(79, Reaction.REBOOT)], "GpuNeedsReboot"),
        ([fault(), msgspec.structs.replace(fault(), source=CORDON, reaction=Reaction.WITHHOLD)], "GpuUnhealthy"),
    ],
    ids=["withhold", "reset", "was reset", "reboot", "cordoned"],
)
def test_the_reason_says_whether_the_card_must_be_empty(faults: list[Fault], reason: str) -> None:
    assert [found[1] for found in Node(p=CARD).tell(*faults)] == [reason]


def test_a_program_that_lost_data_is_told_so_when_its_card_is_well_again() -> None:
    node = Node(p=CARD, late=CARD)
    began = {"p": EPOCH, "late": EPOCH + 200}
    for name, each in node.pods.items():
        status = msgspec.structs.replace(each.status, start_time=rfc3339(began[name]))
        node.pods[name] = msgspec.structs.replace(each, status=status)
    started = dict(node.pods)
    node.tell(fault(94, Reaction.WITHHOLD))
    for name, each in node.pods.items():  # the API server keeps when a pod started
        status = msgspec.structs.replace(each.status, start_time=started[name].status.start_time)
        node.pods[name] = msgspec.structs.replace(each, status=status)
    node.now += PAUSE
    node.past = (PastFault(scope=CARD, source="XID 94", falls=False, since=EPOCH + 100, ended=EPOCH + 160),)
    node.tell()
    assert node.message("p") == (
        "nothing is wrong with GPU 0 any more; its program may have lost data by XID 94 of 2023-11-14T22:15:00Z:"
        " restart it, unless it began later"
    )
    assert node.message("late") == "nothing is wrong with GPU 0 any more"


EVICTS = Repairs(evict=True, toleration_seconds=600, reboot=RebootWay.SYSTEMCTL)


@pytest.mark.parametrize(
    ("faults", "owner", "toleration", "step"),
    [
        ([fault(since=EPOCH)], "ReplicaSet", "", "Tessera evicts pods with an owner from 2023-11-14T22:14:20Z on"),
        ([fault(since=EPOCH)], "ReplicaSet", "300", "Tessera evicts pods with an owner from 2023-11-14T22:18:20Z on"),
        ([fault(since=EPOCH)], "ReplicaSet", "9999999", "from 2023-11-14T22:23:20Z on; delete the others"),
        ([fault(since=EPOCH)], "", "", "delete the pods on it, so that their owners start them on other cards"),
        ([fault(since=EPOCH)], "DaemonSet", "", "delete the pods on it"),
        (
            [fault(79, Reaction.REBOOT, since=EPOCH)],
            "Job",
            "",
            "until the node is rebooted, which Tessera does once no pod holds any card of it: Tessera evicts",
        ),
        (
            [fault(since=EPOCH), msgspec.structs.replace(fault(), source=CORDON, reaction=Reaction.WITHHOLD)],
            "ReplicaSet",
            "",
            "which needs it empty: delete the pods on it",
        ),
    ],
    ids=["owned", "tolerates", "tolerates too long", "alone", "of a DaemonSet", "reboot", "cordoned"],
)
def test_the_next_step_is_the_one_that_the_administrator_chose(
    faults: list[Fault], owner: str, toleration: str, step: str
) -> None:
    node = Node(p=CARD)
    node.repairs = EVICTS
    owners = [OwnerReference(kind=owner, name="o", uid=Uid("o"), controller=True)] if owner else []
    meta = msgspec.structs.replace(
        node.pods["p"].metadata, owner_references=owners, annotations={FAULT_TOLERATION: toleration}
    )
    node.pods["p"] = msgspec.structs.replace(node.pods["p"], metadata=meta)
    node.tell(*faults)
    assert step in node.message("p")


def test_a_pod_is_told_once_and_once_more_when_all_is_well() -> None:
    node = Node(p=CARD)
    assert node.tell() == []
    assert node.tell(fault()) == [("p", "GpuNeedsReset", "False")]
    node.now = 60
    assert node.tell(fault()) == []
    assert node.tell(msgspec.structs.replace(fault(), count=9, last=60.0)) == [], "a repeat is no news"
    assert node.tell() == [("p", "GpuRecovered", "True")]
    assert node.message("p") == "nothing is wrong with GPU 0 any more"
    assert node.tell() == []


def test_what_is_worse_is_told_at_once_and_anything_else_after_a_pause() -> None:
    node = Node(p=CARD)
    degraded = fault(63, Reaction.DEGRADE)
    assert node.tell(degraded) == [("p", "GpuDegraded", "True")]
    node.now = 1
    assert node.tell(degraded, fault()) == [("p", "GpuNeedsReset", "False")]
    node.now = 2
    assert node.tell(fault(95)) == []
    _, pause = node.conditions.decide(
        node.pods.values(), node.holdings, [fault(95)], spared=(), indexes=INDEXES, repairs=Repairs(), now=2.0
    )
    assert pause == 1 + PAUSE - 2
    node.now = 1 + PAUSE
    assert node.tell(fault(95)) == [("p", "GpuNeedsReset", "False")]


def test_a_spared_fault_leaves_the_condition_true_and_says_why() -> None:
    node = Node(p=CARD)
    assert node.tell(fault(), spared=(fault(),)) == [("p", "GpuDegraded", "True")]
    assert "spared by the breaker" in node.message("p")


@pytest.mark.parametrize(
    "quiet",
    [
        msgspec.structs.replace(fault(), source=EVENT_WATCH, reaction=Reaction.DEGRADE),
        msgspec.structs.replace(fault(), source=CORDON, reaction=Reaction.WITHHOLD),
        msgspec.structs.replace(fault(), source=FELL_TOO_OFTEN, reaction=Reaction.DEGRADE),
        fault(scope=DeviceScope("GPU-of-nobody")),
    ],
    ids=["a broken event watch", "a cordon", "many falls", "a card that no pod holds"],
)
def test_what_is_no_fault_of_a_pods_card_is_not_told(quiet: Fault) -> None:
    assert Node(p=CARD).tell(quiet) == []


def test_a_pod_whose_holdings_are_not_known_keeps_what_it_was_told() -> None:
    node = Node(p=CARD)
    node.tell(fault())
    node.now, node.holdings = 60, {}
    assert node.tell() == []
    assert node.tell(fault(95)) == []


def test_pods_of_the_system_are_left_alone() -> None:
    node = Node(p=CARD)
    node.pods["p"] = pod("p", "kube-system")
    assert node.tell(fault()) == []
    node.pods["p"] = pod("p", "kube-team")
    assert node.tell(fault()), "a name that a tenant can choose"


def test_a_pod_with_several_cards_is_told_of_each_with_a_fault_and_never_of_a_uuid() -> None:
    node = Node(p=CARD)
    node.holdings = {PodUid("p"): frozenset({CARD, DeviceScope("GPU-b")})}
    node.tell(fault(), fault(79, Reaction.REBOOT, DeviceScope("GPU-b")))
    assert node.message("p").startswith("GPU 0: XID 48, ")
    assert "; GPU 1: XID 79, " in node.message("p")
    assert "GPU-" not in node.message("p")


XIDS: st.SearchStrategy[Literal[48, 63, 79, 94]] = st.sampled_from([48, 63, 79, 94])
FAULTS = st.lists(
    st.builds(
        fault,
        xid=XIDS,
        reaction=st.sampled_from([Reaction.DEGRADE, Reaction.WITHHOLD, Reaction.RESET, Reaction.REBOOT]),
        scope=st.sampled_from([CARD, DeviceScope("GPU-a", 7), DeviceScope("GPU-b")]),
    ),
    max_size=3,
)


@given(st.lists(st.tuples(FAULTS, st.floats(0, 30)), max_size=30))
def test_however_faults_come_and_go_a_pod_is_told_the_truth_in_time_and_not_too_often(
    rounds: list[tuple[list[Fault], float]],
) -> None:
    node, told = Node(p=INSTANCE), [(-PAUSE, 0)]
    for faults, passed in rounds:
        node.now += passed
        for _, reason, status in node.tell(*faults):
            told.append((node.now, 2 if status == "False" else int(reason != "GpuRecovered")))
    for (before, rank), (at, next_rank) in pairwise(told):
        assert at - before >= PAUSE or next_rank > rank
    lasting = rounds[-1][0] if rounds else []
    node.now += PAUSE
    node.tell(*lasting)
    withheld = any(each.reaction >= Reaction.WITHHOLD for each in lasting if each.scope.covers(INSTANCE))
    shown = [each.status for each in node.pods["p"].status.conditions]
    assert shown in ([["False"]] if withheld else [[], ["True"]])
    assert node.tell(*lasting) == [], "and nothing twice"


FAULTS = st.lists(
    st.builds(
        lambda source, reaction, since: Fault(
            scope=CARD, source=source, reaction=reaction, text=f"{source} in words", since=since, last=since
        ),
        st.sampled_from(["XID 48", "XID 79", "probe", "driver"]),
        st.sampled_from(list(Reaction)[1:]),
        st.integers(0, 3).map(float),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda each: each.source,
)


LOST = [fault(79, Reaction.REBOOT), msgspec.structs.replace(fault(79, Reaction.REBOOT, since=1), source="probe")]


@given(FAULTS, st.booleans())
@example(LOST, False)
def test_a_pod_is_told_the_fault_that_stands_first_everywhere_else(faults: list[Fault], spare: bool) -> None:
    """A card with an XID that is lost as well was told by two sentences."""
    spared = [each for each in faults if spare and not each.lost and each.source == "XID 48"]
    first = describe_card(faults, spared).evidence[0]
    node = Node(p=CARD)
    node.tell(*faults, spared=tuple(spared))
    assert node.message("p").startswith(f"GPU 0: {describe_fault(first)}")
