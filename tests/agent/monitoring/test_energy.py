"""Energy of leases: by size and work, never more than the card's, and unknown where nothing measures it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.monitoring.test_lease_states import GPU, INFO

from tessera.agent.monitoring.exporter import LeaseEnergy
from tessera.agent.monitoring.lease_states import EnergyUse, LeaseKey
from tessera.agent.monitoring.sample import DeviceSample, GpuSample, Lease, NodeSample, ProcessUse, silent_gpu
from tessera.api.names import PodUid
from tessera.nvml.measurements import Measurements, Quantity

PERIOD = 10.0


class Holder(NamedTuple):
    """A pod's MIG device or share: its size, its part of the device, and how busy it is; None if that is not known."""

    size: float
    busy: float | None
    ratio: float = 1.0


def sample(
    at: float, watts: float | None, holders: Mapping[str, Holder], *, joules: float | None = None, foreign: float = 0.0
) -> NodeSample:
    """A card with a MIG device for each holder, or with shares of the card for those with a ratio."""
    values = {Quantity.POWER: watts, Quantity.ENERGY: joules}
    devices, leases, processes = [], [], [ProcessUse(None, 0, foreign)] if foreign else []
    for name, (size, busy, ratio) in holders.items():
        uuid = f"MIG-{name}" if ratio == 1 else GPU
        if ratio == 1:
            measured = Measurements({} if busy is None else {Quantity.ENGINE_ACTIVE: busy})
            devices.append(DeviceSample(uuid=uuid, gi_id=1, share=size, measured=measured))
        else:
            processes.append(ProcessUse(PodUid(name), 0, busy))
        leases.append(
            Lease(namespace="team", pod=name, uid=PodUid(name), container="c", device=uuid, kind="mig", ratio=ratio)
        )
    known = Measurements({quantity: value for quantity, value in values.items() if value is not None})
    card = DeviceSample(uuid=GPU, measured=known, processes=tuple(processes))
    gpu = GpuSample(info=INFO, card=card, mig_devices=tuple(devices))
    return NodeSample(taken=at, gpus=(gpu,), leases=tuple(leases))


def meter(samples: Sequence[NodeSample]) -> Mapping[str, EnergyUse]:
    """By pod, what is known after the last sample."""
    energy = LeaseEnergy()
    found: Mapping[str, EnergyUse] = {}
    for each in samples:
        found = {str(key.pod): use for key, use in energy.handle(each).items()}
    return found


CASES: Mapping[str, tuple[Mapping[str, Holder], float, Mapping[str, float]]] = {
    "the idle part goes by size, and that of free parts to nobody": (
        {"a": Holder(0.5, 0.0), "b": Holder(0.125, 0.0)},
        100.0,
        {"a": 50, "b": 12.5},
    ),
    "the rest goes by work": (
        {"a": Holder(0.5, 0.9), "b": Holder(0.5, 0.3)},
        500.0,
        {"a": 50 + 300, "b": 50 + 100},
    ),
    "one that idles beside one that works pays its place alone": (
        {"a": Holder(0.5, 1.0), "b": Holder(0.5, 0.0)},
        500.0,
        {"a": 50 + 400, "b": 50},
    ),
    "by size where an activity is not known": (
        {"a": Holder(0.5, None), "b": Holder(0.25, 0.9)},
        400.0,
        {"a": 50 + 200, "b": 25 + 100},
    ),
    "shares of a card by the time of their processes": (
        {"a": Holder(1.0, 0.6, 0.5), "b": Holder(1.0, 0.2, 0.5)},
        500.0,
        {"a": 50 + 300, "b": 50 + 100},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_card_s_power_is_apportioned(case: str) -> None:
    holders, watts, expected = CASES[case]
    quiet = {name: each._replace(busy=None if each.busy is None else 0.0) for name, each in holders.items()}
    energy = LeaseEnergy()
    before = [energy.handle(sample(at, 100.0, quiet)) for at in (0.0, PERIOD)][-1]
    after = energy.handle(sample(2 * PERIOD, watts, holders))
    found = {str(key.pod): (use.energy - before[key].energy) / PERIOD for key, use in after.items()}
    assert found == pytest.approx(expected)


def test_processes_that_no_lease_explains_keep_their_part() -> None:
    holders = {"a": Holder(1.0, 0.2, 0.5), "b": Holder(1.0, 0.0, 0.5)}
    energy = LeaseEnergy()
    before = [energy.handle(sample(at, 100.0, holders)) for at in (0.0, PERIOD)][-1]
    after = energy.handle(sample(2 * PERIOD, 500.0, holders, foreign=0.6))
    given = {str(key.pod): (use.energy - before[key].energy) / PERIOD for key, use in after.items()}
    assert given == pytest.approx({"a": 50 + 100, "b": 50})


def test_the_counter_of_the_card_goes_before_its_power() -> None:
    holder = {"a": Holder(1.0, 0.5)}
    used = meter([sample(0, 999.0, holder, joules=7000.0), sample(PERIOD, 999.0, holder, joules=9000.0)])
    assert used["a"] == EnergyUse(200.0, 2000.0, PERIOD)
    reset = meter([sample(0, 300.0, holder, joules=7000.0), sample(PERIOD, 300.0, holder, joules=5.0)])
    assert reset["a"] == EnergyUse(300.0, 3000.0, PERIOD), "the driver was loaded anew"


def test_power_is_a_mean_over_a_minute() -> None:
    holder = {"a": Holder(1.0, 0.5)}
    watts = [100.0] * 20 + [400.0] * 3
    used = meter([sample(PERIOD * n, each, holder) for n, each in enumerate(watts)])
    assert used["a"].power == pytest.approx((3 * 100 + 3 * 400) / 6)


def test_what_is_not_measured_is_unknown_and_no_part_of_the_energy() -> None:
    holder = {"a": Holder(0.5, 0.5)}
    assert meter([sample(0, 300.0, holder)])["a"] == EnergyUse(), "one sample says nothing of a time"
    assert meter([sample(PERIOD * n, None, holder) for n in range(5)])["a"] == EnergyUse()
    gap = meter([sample(0, 300.0, holder), sample(PERIOD, 300.0, holder), sample(2 * PERIOD, None, holder)])
    assert gap["a"] == EnergyUse(None, 0.5 * 3000.0, 0.5 * PERIOD)


def test_a_card_that_does_not_answer_makes_power_unknown_until_two_samples_have_it_again() -> None:
    holder, energy = {"a": Holder(1.0, 0.5)}, LeaseEnergy()
    lost = [sample(PERIOD * n, 300.0, holder, joules=3000.0 * n) for n in range(5)]
    found = [energy.handle(each) for each in lost[:2]]
    silent = silent_gpu(INFO, lost[2].leases, mig_devices=lost[2].gpus[0].mig_devices)
    found.append(energy.handle(NodeSample(taken=2 * PERIOD, silent=(silent,))))
    found += [energy.handle(each) for each in lost[3:]]
    seen = [next(iter(each.values())) for each in found]
    assert [each.power for each in seen] == [None, 300.0, None, None, 300.0]
    assert [each.energy for each in seen] == [0.0, 3000.0, 3000.0, 3000.0, 6000.0]
    assert seen[-1].metered == 2 * PERIOD


SHARES = st.lists(st.tuples(st.sampled_from([0.125, 0.25, 0.5]), st.none() | st.floats(0, 1)), max_size=2)


@given(st.lists(st.tuples(st.floats(0, 1000), SHARES, st.floats(0, 1)), min_size=2, max_size=8))
def test_leases_never_get_more_than_the_card_has(
    looks: list[tuple[float, list[tuple[float, float | None]], float]],
) -> None:
    energy = LeaseEnergy()
    before: dict[LeaseKey, float] = {}
    for number, (watts, held, foreign) in enumerate(looks):
        holders = {f"p{at}": Holder(size, busy) for at, (size, busy) in enumerate(held)}
        found = energy.handle(sample(PERIOD * number, watts, holders, foreign=foreign))
        given_now = sum(use.energy - before.get(key, 0.0) for key, use in found.items())
        assert 0 <= given_now <= (watts * PERIOD if number else 0.0) * (1 + 1e-9)
        before = {key: use.energy for key, use in found.items()}
