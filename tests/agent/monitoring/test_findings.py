"""Findings about leases: each rule fires on what it names, is silent otherwise, and never speaks unmeasured."""

from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.agent.monitoring.test_lease_states import GIB, GPU, INFO, POD

from tessera.agent.monitoring.exposition import ExpositionOptions, render
from tessera.agent.monitoring.findings import MEMORY_OVER_LIMIT, RULES, WINDOW, LeaseFindings, find_excess
from tessera.agent.monitoring.lease_states import JudgedLease, LeaseKey, LeaseState
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample, ProcessUse
from tessera.api.nodes.health import Finding
from tessera.nvml.measurements import Measurements, Quantity

PERIOD = 10.0
PCIE = 64e9
Values = Mapping[Quantity, float]

#: A card that works well.
WELL: Values = {
    Quantity.GPU_UTILIZATION: 0.9,
    Quantity.ENGINE_ACTIVE: 0.9,
    Quantity.SM_ACTIVE: 0.8,
    Quantity.SM_OCCUPANCY: 0.5,
    Quantity.DRAM_ACTIVE: 0.4,
    Quantity.PCIE_TRANSMITTED: 1e9,
    Quantity.PCIE_RECEIVED: 1e9,
    Quantity.POWER: 500.0,
    Quantity.POWER_LIMIT: 700.0,
    Quantity.MEMORY_TOTAL: 80.0 * GIB,
    Quantity.MEMORY_USED: 40.0 * GIB,
    Quantity.THROTTLE_REASONS: 0.0,
}


def lease(ratio: float = 1.0) -> Lease:
    return Lease(namespace="team", pod="a", uid=POD, container="main", device=GPU, kind="whole", ratio=ratio)


def sample(taken: float, values: Values, *, ratio: float = 1.0, cpu: float | None = None) -> NodeSample:
    process = ProcessUse(POD, int(values.get(Quantity.MEMORY_USED, 0)), 0.5, pid=7, cpu_seconds=cpu)
    card = DeviceSample(uuid=GPU, measured=Measurements(values), processes=(process,))
    gpu = GpuSample(info=INFO, card=card, pcie_bandwidth=PCIE)
    return NodeSample(taken=taken, gpus=(gpu,), leases=(lease(ratio),))


def judge(samples: Iterable[NodeSample]) -> tuple[Finding, ...]:
    findings = LeaseFindings()
    found: dict[LeaseKey, tuple[Finding, ...]] = {}
    for each in samples:
        found = findings.handle(each)
    return next(iter(found.values()), ())


def steady(
    values: Values, *, ratio: float = 1.0, cores: float | None = None, until: float = WINDOW
) -> list[NodeSample]:
    """Samples of a lease that does the same all the time."""
    times = [PERIOD * number for number in range(int(until / PERIOD) + 1)]
    return [sample(at, values, ratio=ratio, cpu=None if cores is None else cores * at) for at in times]


#: One block keeps the card awake: it is busy all the time, on one of its SMs.
ONE_BLOCK = {Quantity.SM_ACTIVE: 0.01}

CASES: Mapping[str, Values] = {
    "memory_nearly_full": {Quantity.MEMORY_USED: 78.0 * GIB},
    "throttled": {Quantity.THROTTLE_REASONS: float(0x40)},
    "power_capped": {Quantity.THROTTLE_REASONS: float(0x4)},
    "power_wasted": {Quantity.ENGINE_ACTIVE: 0.02, Quantity.GPU_UTILIZATION: 0.02},
    "pcie_bound": {Quantity.PCIE_RECEIVED: 50e9, Quantity.SM_ACTIVE: 0.2},
    "memory_bound": {Quantity.DRAM_ACTIVE: 0.9},
    "low_occupancy": {Quantity.SM_OCCUPANCY: 0.05},
}


@pytest.mark.parametrize("kind", CASES)
def test_each_problem_is_found_and_no_other(kind: str) -> None:
    (finding,) = judge(steady({**WELL, **CASES[kind]}))
    assert (finding.kind, finding.window) == (kind, WINDOW)
    assert "100% of the samples" in finding.text
    assert finding.advice


def test_a_card_that_waits_for_the_cpu_is_found() -> None:
    (finding,) = judge(steady({**WELL, Quantity.ENGINE_ACTIVE: 0.15}, cores=1.0))
    assert (finding.kind, "15% of the time" in finding.text, "1.0 CPU cores" in finding.text) == (
        "cpu_bound",
        True,
        True,
    )
    assert judge(steady({**WELL, Quantity.ENGINE_ACTIVE: 0.15}, cores=0.1)) == ()


def test_power_is_wasted_by_a_busy_card_that_uses_few_of_its_sms() -> None:
    (finding,) = judge(steady({**WELL, **ONE_BLOCK}))
    assert (finding.kind, finding.text) == (
        "power_wasted",
        "draws 500 of 700 W while it uses 1% of the card, in 100% of the samples",
    )


def test_a_finding_says_since_when_and_begins_anew_after_a_pause() -> None:
    findings, hot = LeaseFindings(), {**WELL, **CASES["throttled"]}
    lasts = []
    looks = [hot] * 90 + [WELL] * 60 + [hot] * 62
    for number, values in enumerate(looks):
        found = next(iter(findings.handle(sample(PERIOD * number, values)).values()), ())
        lasts.append(found[0].lasts if found else None)
    assert lasts[60:63] == [WINDOW, WINDOW + PERIOD, WINDOW + 2 * PERIOD]
    assert None in lasts[95:150]
    assert lasts[-1] is not None
    assert lasts[-1] < WINDOW + 20 * PERIOD
    assert Finding(kind="x_y", text="it", advice="Do.", lasts=1500).sentence == "x y for 25m: it. Do."
    assert Finding(kind="x_y", text="it", advice="Do.", lasts=59).sentence == "x y: it. Do."


def test_memory_over_the_part_is_said_at_once_and_for_how_long() -> None:
    findings, excess = LeaseFindings(), find_excess(6 * GIB, 4 * GIB)
    assert excess is not None
    key = LeaseKey(POD, "main", GPU)
    seen = [findings.handle(sample(PERIOD * n, WELL), {key: excess})[key][0].lasts for n in range(3)]
    assert seen == [0.0, PERIOD, 2 * PERIOD]


def test_memory_over_the_part_is_not_said_to_be_nearly_full_too() -> None:
    findings, excess = LeaseFindings(), find_excess(6 * GIB, 4 * GIB)
    assert excess is not None
    key = LeaseKey(POD, "main", GPU)
    seen = [findings.handle(each, {key: excess})[key] for each in steady({**WELL, **CASES["memory_nearly_full"]})]
    assert [each.kind for each in seen[-1]] == [MEMORY_OVER_LIMIT]


def test_every_rule_has_a_case() -> None:
    assert {*CASES, "cpu_bound"} == set(RULES)


def test_a_card_that_works_well_has_none() -> None:
    assert judge(steady(WELL, cores=4.0)) == ()


def test_a_short_time_is_no_finding() -> None:
    hot = {**WELL, **CASES["throttled"]}
    assert judge(steady(hot, until=WINDOW - PERIOD)) == ()
    later = [sample(WINDOW + PERIOD * number, hot) for number in range(1, 10)]
    assert judge([*steady(WELL), *later]) == ()


def test_a_finding_ends_when_the_problem_does() -> None:
    findings = LeaseFindings()
    for each in steady({**WELL, **CASES["throttled"]}):
        findings.handle(each)
    for number in range(1, 20):
        found = findings.handle(sample(WINDOW + PERIOD * number, WELL))
    assert found == {}


@pytest.mark.parametrize("kind", CASES)
def test_what_is_not_measured_is_no_finding(kind: str) -> None:
    for missing in CASES[kind]:
        values = {name: value for name, value in {**WELL, **CASES[kind]}.items() if name is not missing}
        if missing is Quantity.ENGINE_ACTIVE:
            values.pop(Quantity.GPU_UTILIZATION)
        if missing is not Quantity.GPU_UTILIZATION:  # the engine's activity counts first
            assert judge(steady(values)) == ()


def test_only_memory_and_the_card_itself_are_blamed_on_one_of_several_sharers() -> None:
    bad = {**WELL, **CASES["low_occupancy"], **CASES["memory_bound"], **CASES["pcie_bound"], **CASES["power_capped"]}
    assert [each.kind for each in judge(steady(bad, ratio=0.5))] == ["memory_nearly_full", "power_capped"]


def test_a_slice_is_judged_by_its_own_activity_and_not_by_the_power_of_its_card() -> None:
    bad = {**WELL, **CASES["low_occupancy"], **CASES["pcie_bound"]}
    idle = {Quantity.POWER: 600.0, Quantity.POWER_LIMIT: 700.0, Quantity.THROTTLE_REASONS: 0.0}
    found: dict[LeaseKey, tuple[Finding, ...]] = {}
    findings = LeaseFindings()
    for number in range(int(WINDOW / PERIOD) + 1):
        slice_ = DeviceSample(uuid=GPU, gi_id=1, size=1, measured=Measurements(bad), processes=(ProcessUse(POD, 1),))
        whole = DeviceSample(uuid="GPU-whole", measured=Measurements(idle))
        gpu = GpuSample(info=INFO, card=whole, mig_devices=(slice_,), pcie_bandwidth=PCIE)
        found = findings.handle(NodeSample(taken=PERIOD * number, gpus=(gpu,), leases=(lease(),)))
    assert [each.kind for each in next(iter(found.values()))] == ["low_occupancy"]


def test_a_lease_that_ended_is_forgotten() -> None:
    findings = LeaseFindings()
    for each in steady({**WELL, **CASES["throttled"]}):
        findings.handle(each)
    findings.handle(NodeSample(taken=WINDOW + PERIOD))
    assert findings.handle(sample(WINDOW + 2 * PERIOD, {**WELL, **CASES["throttled"]})) == {}


NUMBERS = st.one_of(st.just(0.0), st.floats(0, 1e12))


@given(st.lists(st.dictionaries(st.sampled_from(Quantity), NUMBERS), min_size=1, max_size=12))
def test_no_values_break_a_rule(values: list[dict[Quantity, float]]) -> None:
    for finding in judge(sample(60.0 * number, each, cpu=0.0) for number, each in enumerate(values)):
        assert finding.kind in RULES
        assert finding.text


def test_findings_are_series_and_count_for_the_limit() -> None:
    one = sample(0.0, WELL)
    judged = JudgedLease(
        lease=one.leases[0],
        state=LeaseState.BUSY,
        evidence="",
        held=0.0,
        wasted=0.0,
        findings=(Finding(kind="throttled"),),
    )
    text = render(one, ExpositionOptions(), judged=[judged]).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (row,) = families["tessera_pod_gpu_finding"].samples
    assert (row.labels["pod"], row.labels["finding"], row.value) == ("a", "throttled", 1)
    enough = next(most for most in range(500) if b"series_cut 0" in render(one, _options(most), judged=[judged]))
    without = msgspec.structs.replace(judged, findings=())
    assert b"tessera_pod_series_cut 0" in render(one, _options(enough - 1), judged=[without])


def _options(most: int) -> ExpositionOptions:
    return ExpositionOptions(max_series=most)


@pytest.mark.parametrize(("used", "limit", "said"), [(3, 4, ""), (4, 4, ""), (6, 4, "holds 6.0 GiB"), (6, 0, "")])
def test_a_pod_that_holds_more_than_its_part_of_a_shared_card_is_found_at_once(
    used: float, limit: float, said: str
) -> None:
    found = find_excess(used * GIB, limit * GIB)
    assert (found.text if found is not None else "").startswith(said)
    if found is not None:
        assert (found.kind, found.window) == (MEMORY_OVER_LIMIT, 0.0)
        assert "its part of the shared card is 4.0 GiB" in found.text
    else:
        assert not said
