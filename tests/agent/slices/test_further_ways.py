"""Who may borrow which slice, and how a loan ends: a slice has one user."""

from typing import Any

import msgspec
import pytest
from tests.support.slice_instructions import next_instruction

from tessera.agent.base.device_plugin import NO_DEVICE
from tessera.agent.inventory.sliceable_gpus import SliceLease, SlicePosition
from tessera.agent.slices.container_finder import unbound_positions
from tessera.agent.slices.events import (
    CreateGpuInstance,
    DestroyComputeInstance,
    DevicesBound,
    GpuRead,
    InitialSyncDone,
    InstasliceChanged,
    ObservedInstance,
    PodChanged,
    PodDeleted,
    PromisedSlice,
    SliceJournal,
    SlicePromise,
)
from tessera.agent.slices.further_ways import find_lent, is_lender, recall_loans
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import LENDS_ANNOTATION, PodUid
from tessera.api.pod_annotations import MEMORY
from tessera.kube.resources import Pod, PodSpec, PodStatus

GPU = "GPU-a"
SMALL, BIG = SlicePosition(GPU, "1g.5gb", 0), SlicePosition(GPU, "3g.20gb", 4)
SIZES = {SMALL: 1, BIG: 4}
WEB, LENDER, NEXT = PodUid("web"), PodUid("web-slice"), PodUid("next")


def pod(name: str, *, phase: str = "Running", **meta: Any) -> Pod:
    return msgspec.convert(
        {"metadata": {"name": name, "namespace": "ns", "uid": name, **meta}, "status": {"phase": phase}}, Pod
    )


def lender(name: str = "web-slice", *, to: str = "web", owner: str = "web", phase: str = "Running", **meta: Any) -> Pod:
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner}]
    return pod(name, phase=phase, annotations={LENDS_ANNOTATION: to}, ownerReferences=owners, **meta)


BORROWER = pod("web", annotations={MEMORY: "5Gi"})


def promises(**slices: SlicePosition) -> InstasliceChanged:
    found = {
        PodUid(name.replace("_", "-")): SlicePromise(
            pod=PodUid(name), namespace="ns", name=name, slices=(PromisedSlice(each, SIZES[each]),)
        )
        for name, each in slices.items()
    }
    return InstasliceChanged(found, {})


def card(*there: SlicePosition) -> GpuRead:
    made = tuple(
        ObservedInstance(gi_id=each.start, position=each, size=SIZES[each], computes=((0, f"MIG-{each.profile}"),))
        for each in there
    )
    return GpuRead(GPU, {"1g.5gb": (0, 1, 2), "3g.20gb": (0, 4)}, made)


@pytest.fixture
def machine() -> SliceStateMachine:
    """A pod and its lender run, and their slices exist."""
    journal = SliceJournal(
        owners={SMALL.device_id: WEB, BIG.device_id: LENDER}, bindings={WEB: {"token": SMALL.device_id}}
    )
    found = SliceStateMachine(journal)
    runs = (PodChanged(WEB, ended=False), PodChanged(LENDER, ended=False))
    for event in (*runs, promises(web=SMALL, web_slice=BIG), card(SMALL, BIG), InitialSyncDone()):
        found.handle(event)
    return found


def lend(machine: SliceStateMachine) -> None:
    machine.handle(DevicesBound(WEB, {"token": BIG}))


def test_a_pod_borrows_the_slice_of_its_lender(machine: SliceStateMachine) -> None:
    found = find_lent(machine.table, [BORROWER, lender()], BORROWER)
    assert found is not None
    assert (found[0].metadata.name, found[1]) == ("web-slice", BIG)
    lend(machine)
    assert find_lent(machine.table, [BORROWER, lender()], BORROWER) is not None, "again at the next start"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lender(to="db"), id="it names another pod"),
        pytest.param(lender(owner="former"), id="it is of a former pod of the name"),
        pytest.param(lender(phase="Pending"), id="it does not run"),
        pytest.param(lender(namespace="other"), id="it is of another namespace"),
        pytest.param(lender(deletionTimestamp="2026-11-30T12:00:00Z"), id="it is being deleted"),
        pytest.param(pod("web-slice"), id="it lends nothing"),
    ],
)
def test_who_lends_nothing(machine: SliceStateMachine, other: Pod) -> None:
    assert find_lent(machine.table, [BORROWER, other], BORROWER) is None


def test_only_a_pod_that_states_its_memory_borrows(machine: SliceStateMachine) -> None:
    assert find_lent(machine.table, [lender()], pod("web")) is None


def test_a_slice_that_its_own_container_or_another_pod_has_is_not_lent(machine: SliceStateMachine) -> None:
    machine.handle(DevicesBound(LENDER, {"its": BIG}))
    assert find_lent(machine.table, [BORROWER, lender()], BORROWER) is None
    machine.handle(DevicesBound(LENDER, {}))
    machine.handle(DevicesBound(NEXT, {"another": BIG}))
    assert find_lent(machine.table, [BORROWER, lender()], BORROWER) is None


def test_a_claim_that_uses_a_slice_of_another_promise_has_not_borrowed_it(machine: SliceStateMachine) -> None:
    """Its pods are not ended with the slice's owner."""
    machine.handle(DevicesBound(NEXT, {f"{BIG.device_id}@claim": BIG}))
    assert machine.table.borrower_of(BIG) is None


def test_no_other_pods_container_is_taken_for_one_of_a_borrower(machine: SliceStateMachine) -> None:
    """Kubelet does not say which pod an init container is of; it is one of a pod with a slice that no container has."""
    assert unbound_positions(machine.table, NEXT) == []
    lend(machine)
    assert unbound_positions(machine.table, WEB) == []
    machine.handle(DevicesBound(WEB, {}))
    assert unbound_positions(machine.table, WEB) == [SMALL]


def test_a_pod_whose_init_container_has_slices_lends_nothing(machine: SliceStateMachine) -> None:
    inits = {"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/mig-3g.20gb": "1"}}}]}
    other = msgspec.structs.replace(lender(), spec=msgspec.convert(inits, PodSpec))
    assert not is_lender(other)
    assert find_lent(machine.table, [BORROWER, other], BORROWER) is None


def test_the_borrower_counts_as_the_user(machine: SliceStateMachine) -> None:
    lend(machine)
    assert machine.table.borrower_of(BIG) == WEB
    assert set(machine.table.leases()) == {
        SliceLease(WEB, "MIG-3g.20gb", "token"),
        SliceLease(WEB, "MIG-1g.5gb", exchanged=True),
    }
    assert machine.table.ready_slice(WEB, BIG) is not None


def test_a_restarted_agent_knows_the_loan(machine: SliceStateMachine) -> None:
    lend(machine)
    again = SliceStateMachine(machine.table.journal())
    assert again.table.borrower_of(BIG) == WEB


@pytest.mark.parametrize("pods", [[BORROWER, lender()], [BORROWER]], ids=["the lender runs", "the lender is gone"])
def test_the_cdi_files_tell_a_loan_that_a_lost_journal_forgot(machine: SliceStateMachine, pods: list[Pod]) -> None:
    """The borrower's container has the slice, whatever is written; so it ends before the next pod gets the slice."""
    machine.handle(DevicesBound(WEB, {}))
    written = {SMALL.device_id: "MIG-3g.20gb", BIG.device_id: NO_DEVICE, "no device": "MIG-3g.20gb"}
    for loan in list(recall_loans(machine.table, written, pods)):
        machine.handle(loan)
    assert machine.table.borrower_of(BIG) == WEB
    assert machine.table.bindings_of(WEB) == {SMALL.device_id: BIG}


def test_a_pod_that_has_its_own_slice_is_not_taken_for_the_borrower() -> None:
    """Kubelet may choose another device than that of the promised place."""
    other = SlicePosition(GPU, "1g.5gb", 1)
    found = SliceStateMachine(SliceJournal(owners={other.device_id: NEXT, SMALL.device_id: WEB, BIG.device_id: LENDER}))
    for name in (NEXT, WEB):
        found.handle(PodChanged(name, ended=False))
    made = [(0, SMALL, "MIG-web"), (1, other, "MIG-next"), (4, BIG, "MIG-big")]
    instances = tuple(
        ObservedInstance(gi_id=number, position=each, size=SIZES.get(each, 1), computes=((0, uuid),))
        for number, each, uuid in made
    )
    found.handle(GpuRead(GPU, {"1g.5gb": (0, 1, 2), "3g.20gb": (0, 4)}, instances))
    found.handle(InitialSyncDone())
    written = {SMALL.device_id: "MIG-next", other.device_id: "MIG-big"}
    assert list(recall_loans(found.table, written, [BORROWER])) == [DevicesBound(WEB, {other.device_id: BIG})]


@pytest.mark.parametrize(
    "written",
    [
        pytest.param({SMALL.device_id: "MIG-1g.5gb"}, id="its own slice"),
        pytest.param({SMALL.device_id: "MIG-of-old"}, id="a slice that is gone"),
        pytest.param({SMALL.device_id: NO_DEVICE}, id="no slice"),
        pytest.param({"GPU-a:3g.20gb:0": "MIG-3g.20gb"}, id="a device of the same size is one that kubelet chose"),
    ],
)
def test_what_is_no_loan_is_not_recalled(machine: SliceStateMachine, written: dict[str, str]) -> None:
    machine.handle(DevicesBound(WEB, {}))
    assert not list(recall_loans(machine.table, written, [BORROWER, lender()]))


def runs_since(made: Pod, when: str) -> Pod:
    state = {"name": "c", "containerID": "containerd://1", "state": {"running": {"startedAt": when}}}
    return msgspec.structs.replace(
        made, status=msgspec.convert({"phase": "Running", "containerStatuses": [state]}, PodStatus)
    )


def test_a_loan_of_an_equal_slice_is_recalled_by_the_pod_that_lends_it() -> None:
    own, lent = SlicePosition(GPU, "3g.20gb", 0), BIG
    found = SliceStateMachine(SliceJournal(owners={own.device_id: WEB, lent.device_id: LENDER}))
    for name in (WEB, LENDER):
        found.handle(PodChanged(name, ended=False))
    instances = tuple(
        ObservedInstance(gi_id=each.start, position=each, size=4, computes=((0, f"MIG-{each.start}"),))
        for each in (own, lent)
    )
    found.handle(GpuRead(GPU, {"3g.20gb": (0, 4)}, instances))
    found.handle(InitialSyncDone())
    written = {own.device_id: "MIG-4", lent.device_id: NO_DEVICE}
    assert list(recall_loans(found.table, written, [BORROWER, lender()])) == [DevicesBound(WEB, {own.device_id: lent})]
    assert list(recall_loans(found.table, written, [BORROWER, pod("web-slice")])) == [], "it is its own device"


@pytest.mark.parametrize(("since", "loans"), [("2026-11-30T12:00:05Z", 1), ("2026-11-30T11:59:59Z", 0)])
def test_without_journal_and_files_a_container_that_started_after_its_lender_counts_as_borrower(
    machine: SliceStateMachine, since: str, loans: int
) -> None:
    machine.handle(DevicesBound(WEB, {}))
    pods = [runs_since(BORROWER, since), runs_since(lender(), "2026-11-30T12:00:00Z")]
    found = list(recall_loans(machine.table, {}, pods))
    assert found == [DevicesBound(WEB, {SMALL.device_id: BIG})] * loans
    own = {SMALL.device_id: "MIG-1g.5gb"}
    assert not list(recall_loans(machine.table, own, pods)), "its file says that it has its own"


@pytest.mark.parametrize("is_told", [True, False], ids=["the files tell the older one", "nothing tells"])
def test_of_two_lenders_one_loan_is_recalled(is_told: bool) -> None:
    """That of which the files tell; else the newer one, as when the container started."""
    newer = SlicePosition(GPU, "2g.10gb", 2)
    found = SliceStateMachine(SliceJournal(owners={SMALL.device_id: WEB, BIG.device_id: LENDER, newer.device_id: NEXT}))
    for name in (WEB, LENDER, NEXT):
        found.handle(PodChanged(name, ended=False))
    instances = tuple(
        ObservedInstance(gi_id=each.start, position=each, size=size, computes=((0, f"MIG-{each.profile}"),))
        for each, size in ((SMALL, 1), (newer, 2), (BIG, 4))
    )
    found.handle(GpuRead(GPU, {"1g.5gb": (0, 1), "2g.10gb": (2,), "3g.20gb": (4,)}, instances))
    found.handle(InitialSyncDone())
    when = "2026-11-30T12:00:00Z"
    pods = [
        runs_since(BORROWER, when),
        runs_since(lender("next", creationTimestamp="2026-11-30T11:00:02Z"), when),
        runs_since(lender(creationTimestamp="2026-11-30T11:00:01Z"), when),
    ]
    written = {SMALL.device_id: f"MIG-{BIG.profile}"} if is_told else {}
    lent = BIG if is_told else newer
    assert list(recall_loans(found.table, written, pods)) == [DevicesBound(WEB, {SMALL.device_id: lent})]


def test_the_journal_knows_better_than_the_files(machine: SliceStateMachine) -> None:
    machine.handle(DevicesBound(WEB, {SMALL.device_id: SMALL}))
    assert not list(recall_loans(machine.table, {SMALL.device_id: "MIG-3g.20gb"}, [BORROWER, lender()]))


def test_the_lenders_end_destroys_its_slice_and_keeps_the_borrowers_own(machine: SliceStateMachine) -> None:
    lend(machine)
    machine.handle(promises(web=SMALL))
    machine.handle(PodDeleted(LENDER))
    call = next_instruction(machine, GPU, 0.0)
    assert isinstance(call, DestroyComputeInstance)
    assert call.position == BIG
    assert machine.table.borrower_of(BIG) == WEB, "so that its processes end"
    assert machine.table.ready_slice(WEB, BIG) is None
    assert find_lent(machine.table, [BORROWER, lender()], BORROWER) is None


def test_the_next_owner_of_the_place_lends_nothing(machine: SliceStateMachine) -> None:
    lend(machine)
    machine.handle(PodDeleted(LENDER))
    machine.handle(promises(web=SMALL, next=BIG))
    machine.handle(card(SMALL))
    assert next_instruction(machine, GPU, 0.0) == CreateGpuInstance(BIG, NEXT)
    machine.handle(card(SMALL, BIG))
    assert machine.table.borrower_of(BIG) is None
    assert machine.table.ready_slice(WEB, BIG) is None
    assert machine.table.ready_slice(NEXT, BIG) is not None
