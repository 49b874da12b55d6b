"""A kind of request that the product does not have joins from outside: looms, of which claims have one each.

A node has some looms, as a pool says. A pod names a claim by a label; several pods may name one claim. The record of a
place is the claim's, so a pod at the gate goes once its claim is written, and one without a gate is bound by its
scheduler then. No step of the cycle knows of looms.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tests.support.slicer_cluster import CheckedSlicer, merge

from tessera.api.instaslice import Slice
from tessera.api.names import GATE, HOSTNAME_LABEL, NodeName, PodUid, device_id
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import KindOfRequest, PodInfo, Record
from tessera.controller.slicing.kinds import RequestKind
from tessera.controller.slicing.slicer import KINDS
from tessera.controller.slicing.state.allocation import Allocation, AllocationStep, will_never_run
from tessera.controller.slicing.state.events import (
    NodeObserved,
    PodDeleted,
    PodObserved,
    RecordObserved,
    RetryDue,
    TimePassed,
    WriteDone,
    WriteRefused,
)
from tessera.controller.slicing.state.instructions import Evict, PatchRecord, RecordEvent, Ungate
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.placement.devices import device_geometry
from tessera.reasons.reason import Full

LOOM = "example.com/loom"
LOOMS = KindOfRequest("looms", "looms", Record.OTHER, needs_gate=False)


class Looms(RequestKind):
    """The looms of nodes."""

    kind = LOOMS

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._pools: dict[NodeName, int] = {}
        self._claims: dict[str, dict[str, Any]] = {}
        self._changed: set[NodeName] = set()
        #: By pod, also one that is gone, its claim.
        self._claim_of: dict[PodUid, str] = {}

    def read(self, pod: PodInfo) -> PodInfo:
        if not claim_of(pod):
            return pod
        self._claim_of[pod.uid] = claim_of(pod)
        constraints = replace(pod.constraints, devices=frozenset({LOOM}))
        return replace(pod, profiles=(LOOM,), other_kind=LOOMS, shares=claim_of(pod), constraints=constraints)

    def observe(self, item: Any, *, deleted: bool) -> None:
        if "pool" in item:
            node = NodeName(item["pool"])
            self._pools[node] = 0 if deleted else item["looms"]
            self._state.cluster.offer(node, "looms", frozenset({LOOM} if self._pools[node] else ()))
            self._state.cluster.changed_nodes.add(node)
            self._changed.add(node)
            return
        self._claims[item["claim"]] = {} if deleted else item
        for pod in self._pods_of(item["claim"]):
            for allocation in self._state.allocations.of(pod):
                self._note(allocation, item["claim"])
            self._state.cluster.changed_pods.add(pod)

    def _note(self, allocation: Allocation, claim: str) -> None:
        allocation.requested = self._place(claim) == (allocation.node, allocation.slices or self._slices(claim))
        allocation.sent = allocation.sent and not allocation.requested
        self._state.dirty_nodes.add(allocation.node)

    def _pods_of(self, claim: str) -> list[PodUid]:
        return [uid for uid, each in self._claim_of.items() if each == claim]

    def _place(self, claim: str) -> tuple[NodeName, tuple[Slice, ...]] | None:
        found = self._claims.get(claim, {}).get("place")
        return None if found is None else (NodeName(found["node"]), (loom_at(found["loom"]),))

    def _slices(self, claim: str) -> tuple[Slice, ...]:
        found = self._place(claim)
        return () if found is None else found[1]

    def absorb_node(self, node: NodeName, *, renewed: bool) -> Sequence[Allocation]:
        if node not in self._changed:
            return ()
        self._changed.discard(node)
        cards = {f"loom-{number}": device_geometry("loom", LOOM, 1, 0) for number in range(self._pools[node])}
        self._state.inventory.put_cards(LOOMS, node, cards)
        self._state.cluster.capacity_changes.room_may_have_grown(node)
        held = [each for each in self._state.allocations.on(node) if each.kind is LOOMS and not each.freed]
        return [each for each in held if not self._state.inventory.occupy(each)]

    def profiles(self, node: NodeName) -> frozenset[str]:
        return frozenset({LOOM} if self._pools.get(node) else ())

    def adopt(self, pod: PodInfo) -> Allocation | None:
        claim = claim_of(pod)
        if not claim or will_never_run(pod) or self._state.allocations.of(pod.uid):
            return None
        other, place = self._sharer(claim, pod.uid), self._place(claim)
        if other is not None:
            found = self._allocation(other.node, pod, ())
        elif place is not None:
            found = self._allocation(place[0], pod, place[1])
            if not self._state.inventory.occupy(found):
                return None
        else:
            return None
        found.requested = place is not None
        return found

    def _allocation(self, node: NodeName, pod: PodInfo, slices: tuple[Slice, ...]) -> Allocation:
        return Allocation(node, pod.uid, pod.namespace, pod.name, slices, pod.amounts, kind=LOOMS)

    def _sharer(self, claim: str, uid: PodUid) -> Allocation | None:
        """A pod that has the claim's loom too."""
        others = (self._state.allocations.current_of(each) for each in self._pods_of(claim) if each != uid)
        return next((each for each in others if each is not None), None)

    def freed(self, allocation: Allocation) -> None:
        other = self._sharer(self._claim_of[allocation.uid], allocation.uid)
        if other is not None and not other.slices:
            other.slices = allocation.slices
            assert self._state.inventory.occupy(other)

    def record(self, allocation: Allocation, step: AllocationStep) -> PatchRecord | None:
        drop = step is not AllocationStep.REQUEST
        if step in {AllocationStep.WAIT, AllocationStep.SETTLED}:
            return None
        claim = self._claim_of[allocation.uid]
        if drop and (self._sharer(claim, allocation.uid) or self._place(claim) is None):
            allocation.requested = allocation.sent = False
            self._state.dirty_nodes.add(allocation.node)
            return None
        if not drop and not allocation.slices:
            return None  # the pod that shares its loom writes
        place = None if drop else {"node": allocation.node, "loom": allocation.slices[0].gpu_uuid}
        return PatchRecord(
            kind="looms",
            node=allocation.node,
            uid=allocation.uid,
            namespace=allocation.namespace,
            name=claim,
            object_uid=f"uid-{claim}",
            patch={"place": place},
            drop=drop,
        )

    def count(self, uid: PodUid, pod: PodInfo | None, home: NodeName | None, left: NodeName | None) -> None:
        if pod is not None and home is not None and claim_of(pod):  # those that share its loom have a place too now
            others = set(self._pods_of(claim_of(pod))) - {uid}
            self._state.cluster.changed_pods |= others & self._state.waiting.keys()


def claim_of(pod: PodInfo) -> str:
    """The claim that a pod names; empty for another pod."""
    return dict(pod.labels).get("loom", "")


def loom_at(name: str) -> Slice:
    return Slice(id=device_id(name, LOOM, 0), profile=LOOM, gpu_uuid=name, start=0, size=1)


class Town:
    """Nodes with looms, and an API server that is one dict of claims."""

    def __init__(self) -> None:
        self.slicer = CheckedSlicer(kinds=(*KINDS, Looms))
        self.claims: dict[str, dict[str, Any]] = {}
        self.pools: dict[str, int] = {}
        self.nodes: list[NodeInfo] = []
        self.pods: dict[str, PodInfo] = {}
        self.writes: list[Any] = []
        #: Answers the next write of a record.
        self.refuses = False

    def node(self, name: str, looms: int) -> None:
        labels = {HOSTNAME_LABEL: name}
        amounts = {"cpu": 8000, "memory": 2**36, "pods": 110}
        self.nodes.append(NodeInfo(name=NodeName(name), hostname=name, labels=labels, allocatable=amounts))
        self.pools[name] = looms
        self.tell(self.slicer)

    def tell(self, slicer: CheckedSlicer) -> None:
        """Shows everything to a slicer, as a list does."""
        slicer.handle(TimePassed(1.0, 1_800_000_000.0))
        for node in self.nodes:
            slicer.handle(NodeObserved(node))
            slicer.handle(RecordObserved("looms", {"pool": node.name, "looms": self.pools[node.name]}))
        for claim in self.claims.values():
            slicer.handle(RecordObserved("looms", dict(claim)))
        for pod in self.pods.values():
            slicer.handle(PodObserved(pod))

    def pod(self, name: str, claim: str = "", *, gated: bool = True) -> PodInfo:
        claim = claim or f"claim-of-{name}"
        if claim not in self.claims:
            self.claims[claim] = {"claim": claim}
            self.slicer.handle(RecordObserved("looms", dict(self.claims[claim])))
        created = f"2026-01-01T00:00:{len(self.pods):02d}Z"
        self.pods[name] = PodInfo(
            PodUid(f"uid-{name}"),
            "default",
            name,
            gates=(GATE,) if gated else (),
            created=created,
            labels=(("loom", claim),),
        )
        self.slicer.handle(PodObserved(self.pods[name]))
        return self.pods[name]

    def remove(self, name: str) -> None:
        self.slicer.handle(PodDeleted(self.pods.pop(name).uid))

    def settle(self) -> None:
        """Lets the slicer decide and the server answer until nothing is due."""
        for _ in range(30):
            self.slicer.decide()
            found = self.slicer.pop_writes()
            if not found and not self.slicer.has_work:
                return
            for write in found:
                self._answer(write)
        raise AssertionError(f"no end of writes: {self.writes[-6:]}")

    def _answer(self, write: Any) -> None:
        self.writes.append(write)
        match write:
            case PatchRecord() if self.refuses:
                self.refuses = False
                self.slicer.handle(WriteRefused(write, "try again"))
                self.slicer.handle(RetryDue(write))
            case PatchRecord():
                self.claims[write.name] = merge(self.claims[write.name], write.patch)
                self.slicer.handle(RecordObserved("looms", dict(self.claims[write.name])))
                self.slicer.handle(WriteDone(write))
            case Ungate():
                pod = self.pods[write.name]
                self.pods[write.name] = replace(pod, gates=(), hostname=write.hostname, version=pod.version + 1)
                self.slicer.handle(PodObserved(self.pods[write.name]))
                self.slicer.handle(WriteDone(write))
            case RecordEvent():
                pass
            case _:
                raise AssertionError(f"unexpected write {write}")

    def kinds_of_writes(self) -> list[type]:
        return [type(each) for each in self.writes if not isinstance(each, RecordEvent | Evict)]

    def places(self) -> dict[str, tuple[str, str]]:
        """By claim with a loom, its node and the loom."""
        found = {name: claim["place"] for name, claim in self.claims.items() if "place" in claim}
        return {name: (place["node"], place["loom"]) for name, place in found.items()}


def test_a_claim_is_written_before_its_pod_leaves_the_gate() -> None:
    town = Town()
    town.node("n1", 1)
    town.pod("one")
    town.settle()
    assert town.kinds_of_writes() == [PatchRecord, Ungate]
    assert town.places() == {"claim-of-one": ("n1", "loom-0")}
    assert (town.pods["one"].gates, town.pods["one"].hostname) == ((), "")  # the claim names the node


def test_a_pod_without_a_gate_is_placed_by_its_claim_alone() -> None:
    town = Town()
    town.node("n1", 1)
    town.pod("one", gated=False)
    town.settle()
    assert town.kinds_of_writes() == [PatchRecord]
    assert town.places() == {"claim-of-one": ("n1", "loom-0")}


def test_pods_wait_in_order_and_the_next_one_gets_what_the_first_gives_back() -> None:
    town = Town()
    town.node("n1", 1)
    for number, gated in enumerate((True, False, True)):
        town.pod(f"pod-{number}", gated=gated)
    town.settle()
    assert set(town.places()) == {"claim-of-pod-0"}
    assert isinstance(town.slicer.state.pods.reason_of(PodUid("uid-pod-1")), Full)
    for number in (0, 1):
        town.remove(f"pod-{number}")
        town.settle()
        assert set(town.places()) == {f"claim-of-pod-{number + 1}"}


def test_pods_that_share_a_claim_share_its_loom_until_the_last_is_gone() -> None:
    town = Town()
    town.node("n1", 1)
    town.node("n2", 1)
    first, second = town.pod("first", "shared"), town.pod("second", "shared")
    town.settle()
    (place,) = town.places().values()
    assert [town.pods[each.name].gates for each in (first, second)] == [(), ()]
    other, waiting = town.pod("other"), town.pod("waiting")
    town.settle()
    town.remove("first")
    town.settle()
    assert set(town.places()) == {"shared", "claim-of-other"}
    assert town.slicer.state.pods.get(waiting.uid).waits  # type: ignore[union-attr]
    town.remove("second")
    town.settle()
    assert town.places()["claim-of-waiting"] == place
    assert town.pods[other.name].hostname != place[0]


def test_a_new_process_takes_over_what_claims_record() -> None:
    town = Town()
    town.node("n1", 1)
    town.pod("first", "shared")
    town.pod("second", "shared")
    town.settle()
    before, town.writes = town.places(), []
    town.slicer = CheckedSlicer(kinds=(*KINDS, Looms))
    town.tell(town.slicer)
    town.pod("next")
    town.settle()
    assert (town.places(), town.kinds_of_writes()) == (before, [])


def test_a_refused_record_is_written_again_and_its_pod_stays_at_the_gate() -> None:
    town = Town()
    town.node("n1", 1)
    town.refuses = True
    town.pod("one")
    town.settle()
    assert town.kinds_of_writes() == [PatchRecord, PatchRecord, Ungate]


def test_without_the_kind_nobody_knows_of_looms() -> None:
    made: list[Callable[[SlicerState], RequestKind]] = list(KINDS)
    assert LOOMS.name not in CheckedSlicer(kinds=made).kinds.by_name
