"""What a sample adds to a card's health: holders of a card to reset, and slow-downs by the hardware."""

from collections.abc import Mapping

import msgspec
import pytest
from tests.agent.monitoring.test_lease_states import GPU, INFO, POD

from tessera.agent.monitoring.card_states import HARDWARE_THROTTLES, CardStates, find_errors
from tessera.agent.monitoring.exporter import report_usage
from tessera.agent.monitoring.exposition import ExpositionOptions
from tessera.agent.monitoring.lease_states import GRACE, LeaseStates
from tessera.agent.monitoring.sample import (
    CardOffer,
    DeviceSample,
    GpuSample,
    Lease,
    NodeSample,
    ProcessUse,
    silent_gpu,
)
from tessera.api.nodes.health import (
    FABRIC,
    MEASURED_ERRORS,
    NO_SPARE_ROW,
    NVLINK_ERRORS,
    ROW_REMAPPING,
    SRAM_ECC,
    CardHealth,
    CardState,
    Holder,
)
from tessera.explain.fleet_map import map_fleet, pods_of
from tessera.limits import CARD_HOLDERS
from tessera.nvml.measurements import Absence, Measurements, Quantity
from tessera.observe.health_terms import explain_term
from tessera.observe.usage_rows import card_rows

LEASE = Lease(namespace="team", pod="a", uid=POD, container="main", device=GPU, kind="whole")
HW_THERMAL = 0x40


class Faults:
    """The health of one card."""

    def __init__(self, state: CardState = CardState.HEALTHY) -> None:
        self.state = state
        self.errors: list[dict[str, str]] = []
        self.unmeasured: list[str] = []

    def describe(self, gpu: str) -> CardHealth:
        return CardHealth(state=self.state, next="" if self.state is CardState.HEALTHY else "reset it")

    def describe_part(self, gpu: str, gi_id: int) -> str:
        return ""

    def note_measured(self, gpu: str, errors: Mapping[str, str]) -> None:
        self.errors.append(dict(errors))

    def note_unmeasured(self, gpu: str) -> None:
        self.unmeasured.append(gpu)

    def gpus_to_empty(self) -> frozenset[str]:
        return frozenset({GPU})


def sample(*processes: ProcessUse, throttle: int = 0) -> NodeSample:
    measured = Measurements({Quantity.THROTTLE_REASONS: float(throttle)})
    card = DeviceSample(uuid=GPU, measured=measured, processes=processes)
    return NodeSample(taken=0, gpus=(GpuSample(info=INFO, card=card),), leases=(LEASE,))


def test_pods_and_processes_of_the_host_that_hold_a_card_to_reset_are_named() -> None:
    states = CardStates(Faults(CardState.NEEDS_RESET))
    own = ProcessUse(POD, 1, pid=7)
    other = ProcessUse(None, 1, pid=9, name="Xorg\x1b[2J")
    found = states.handle(sample(own, other))[GPU]
    assert found.holders == (Holder(namespace="team", pod="a"), Holder(pid=9, process=r"Xorg\x1b[2J"))
    assert found.next == "reset it"


def test_a_card_that_nobody_holds_says_so() -> None:
    free = msgspec.structs.replace(sample(), leases=())
    assert CardStates(Faults(CardState.NEEDS_RESET)).handle(free)[GPU].next == "reset it; nobody holds it"


def test_holders_are_bounded() -> None:
    others = [ProcessUse(None, 1, pid=pid, name="x") for pid in range(CARD_HOLDERS + 10)]
    found = CardStates(Faults(CardState.NEEDS_RESET)).handle(sample(*others))[GPU]
    assert (len(found.holders), found.cut) == (CARD_HOLDERS, 11)


def test_holders_of_a_card_that_is_allocated_are_not_listed() -> None:
    assert CardStates(Faults()).handle(sample(ProcessUse(POD, 1, pid=7)))[GPU].holders == ()


@pytest.mark.parametrize(
    ("bits", "sources"),
    [
        (0x4, set()),  # the cap of its power
        (HW_THERMAL, {"hw-thermal"}),
        (0x8, {"hw-slowdown"}),
        (0x8 | 0x80, {"hw-power-brake"}),  # the cause of a slow-down stands for it
        (0x20, {"sw-thermal"}),
    ],
)
def test_a_slowdown_by_heat_or_power_supply_is_an_error(bits: int, sources: set[str]) -> None:
    found = find_errors(Measurements({Quantity.THROTTLE_REASONS: float(bits)}), {}, 0.0)
    assert {source for source, text in found.items() if text} == sources
    assert found.keys() <= MEASURED_ERRORS
    assert len(found) == len(HARDWARE_THROTTLES), "sources that show nothing say so"


@pytest.mark.parametrize(
    ("flag", "source"),
    [
        (Quantity.ROW_REMAP_PENDING, ROW_REMAPPING),
        (Quantity.ROW_REMAP_FAILED, NO_SPARE_ROW),
        (Quantity.SRAM_THRESHOLD_EXCEEDED, SRAM_ECC),
    ],
)
def test_what_is_wrong_with_its_memory_is_an_error(flag: Quantity, source: str) -> None:
    assert find_errors(Measurements({flag: 0.0}), {}, 10.0) == {source: ""}
    assert find_errors(Measurements({flag: 1.0}), {}, 10.0)[source]


def test_what_a_card_does_not_measure_is_not_over() -> None:
    assert find_errors(Measurements({}), {}, 10.0) == {}
    assert find_errors(Measurements({}, {Quantity.FABRIC_HEALTH: Absence.FAILED}), {}, 10.0) == {}
    gone = Measurements({}, {Quantity.FABRIC_HEALTH: Absence.NOT_SUPPORTED})
    assert find_errors(gone, {}, 10.0) == {FABRIC: ""}


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x0, ""),  # nothing is supported
        (0x1AA, ""),
        (0x1A9, "its bandwidth is degraded"),
        (0x1A6, "a route is being recovered"),
        (0x19A, "a route is unhealthy"),
        (0x16A, "it recovers from an access that timed out"),
        (0x5AA, "it has too few NVLinks"),
        (0x199, "its bandwidth is degraded, a route is unhealthy"),
    ],
)
def test_the_health_of_a_fabric_is_told_in_words(mask: int, words: str) -> None:
    (text,) = find_errors(Measurements({Quantity.FABRIC_HEALTH: float(mask)}), {}, 10.0).values()
    assert text.rpartition(": ")[2] == words


@pytest.mark.parametrize(
    ("counter", "before", "after", "is_error"),
    [
        (Quantity.NVLINK_REPLAYS, 5.0, 5.0, False),
        (Quantity.NVLINK_REPLAYS, 5.0, 6.0, True),
        (Quantity.NVLINK_RECOVERIES, 0.0, 1.0, True),
        (Quantity.NVLINK_RECOVERIES, 7.0, 0.0, False),  # the driver was loaded again
        (Quantity.NVLINK_CRC_FLIT_ERRORS, 0.0, 999.0, False),
        (Quantity.NVLINK_CRC_FLIT_ERRORS, 0.0, 1000.0, True),
        (Quantity.NVLINK_CRC_DATA_ERRORS, 1.0, 1002.0, True),
    ],
)
def test_errors_of_nvlinks_that_grow_are_an_error(
    counter: Quantity, before: float, after: float, is_error: bool
) -> None:
    assert NVLINK_ERRORS not in find_errors(Measurements({counter: after}), {}, 0.0), "one sample shows no growth"
    assert bool(find_errors(Measurements({counter: after}), {counter: before}, 10.0)[NVLINK_ERRORS]) is is_error


def test_growth_is_against_the_sample_before() -> None:
    faults = Faults()
    states = CardStates(faults)
    for taken, replays in ((0.0, 3.0), (10.0, 3.0), (20.0, 4.0), (30.0, 4.0)):
        card = DeviceSample(uuid=GPU, measured=Measurements({Quantity.NVLINK_REPLAYS: replays}))
        states.handle(NodeSample(taken=taken, gpus=(GpuSample(info=INFO, card=card),)))
    assert [bool(errors.get(NVLINK_ERRORS)) for errors in faults.errors] == [False, False, True, False]


def test_each_source_of_a_measured_error_is_explained() -> None:
    assert all(explain_term(source).reaction for source in MEASURED_ERRORS)


def test_measured_errors_are_passed_on_to_the_faults_of_the_card() -> None:
    faults = Faults()
    CardStates(faults).handle(sample(throttle=HW_THERMAL))
    assert [errors["hw-thermal"] for errors in faults.errors] == [HARDWARE_THROTTLES["hw_thermal"]]


def test_a_silent_card_is_reported_with_those_who_hold_it() -> None:
    silent = NodeSample(taken=0, silent=(silent_gpu(INFO, (LEASE,)),))
    faults = Faults(CardState.LOST)
    health = CardStates(faults).handle(silent)
    assert faults.unmeasured == [GPU]
    page = report_usage(
        silent, ExpositionOptions(node="n"), unix_time=5.0, judged=(), health=health, states=LeaseStates()
    )
    read = msgspec.json.decode(msgspec.json.encode(page), type=type(page))
    assert [(card.uuid, card.values, card.health.state) for card in read.cards] == [(GPU, {}, "lost")]
    assert [(each.namespace, each.pod) for each in read.cards[0].health.holders] == [("team", "a")]


@pytest.mark.parametrize(
    ("device", "kind", "ratio", "share"),
    [
        (GPU, "whole", 1.0, 1.0),
        (GPU, "time-slicing", 0.25, 0.25),
        ("MIG-1", "mig", 1.0, 0.5),
        ("MIG-1", "mps", 0.5, 0.25),
    ],
)
def test_leases_of_a_lost_card_stay_on_the_page_and_count_as_no_waste(
    device: str, kind: str, ratio: float, share: float
) -> None:
    held = msgspec.structs.replace(LEASE, device=device, kind=kind, ratio=ratio)
    mig = DeviceSample(uuid="MIG-1", size=4, share=0.5, measured=Measurements({}))
    card = DeviceSample(uuid=GPU, measured=Measurements({}))
    states, taken = LeaseStates(), 2 * GRACE
    states.handle(NodeSample(taken=0, gpus=(GpuSample(info=INFO, card=card, mig_devices=(mig,)),), leases=(held,)))
    lost = NodeSample(taken=taken, silent=(silent_gpu(INFO, (held,), 8, (mig,)),), offers={GPU: CardOffer(kind, 4)})
    judged = states.handle(lost)
    page = report_usage(lost, ExpositionOptions(node="n"), unix_time=5.0, judged=judged, health={}, states=states)
    (lease,) = page.leases
    assert (lease.device, lease.kind, lease.share, lease.held) == (device, kind, share, taken)
    assert (lease.state, lease.wasted, lease.memory, lease.busy) == ("unknown", 0.0, None, None)
    assert (page.cards[0].kind, page.cards[0].replicas, page.ended) == (kind, 4, ())
    assert (card_rows([page])[0].held, card_rows([page])[0].pods) == (share, 1)
    after = [*map_fleet([], [page])[0].cards]
    assert pods_of(after[0]) == ["team/a"]
