"""Measurements of simulated cards follow from their processes, and from values that a test has set."""

import pytest

from tessera.nvml.interface import GpuUuid
from tessera.nvml.measurements import Absence, Quantity
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

GIB = 1 << 30


def test_power_and_heat_rise_with_activity_and_memory_with_processes() -> None:
    machine = SimulatedMachine("1xT4", seed="n", now=lambda: 0.0)
    (gpu,) = machine.uuids()
    idle = machine.measure(gpu).values
    pid = machine.start_process(gpu, 2 * GIB)
    resident = machine.measure(gpu).values
    machine.set_process_activity(pid, 1.0)
    busy = machine.measure(gpu).values
    assert resident[Quantity.POWER] == idle[Quantity.POWER]
    assert resident[Quantity.MEMORY_USED] == 2 * GIB
    assert busy[Quantity.POWER] == busy[Quantity.POWER_LIMIT] > idle[Quantity.POWER]
    assert busy[Quantity.TEMPERATURE] > idle[Quantity.TEMPERATURE]
    assert busy[Quantity.GPU_UTILIZATION] == 1.0


def test_energy_is_power_over_time() -> None:
    now = 0.0
    machine = SimulatedMachine("1xT4", seed="n", now=lambda: now)
    (gpu,) = machine.uuids()
    machine.start_process(gpu, activity=1.0)
    assert machine.measure(gpu).values[Quantity.ENERGY] == 0
    now = 10.0
    assert machine.measure(gpu).values[Quantity.ENERGY] == pytest.approx(700)


def test_a_slice_loads_the_card_by_its_size() -> None:
    machine = SimulatedMachine("1xH100-80GB", seed="n", mig=True, now=lambda: 0.0)
    (gpu,) = machine.uuids()
    gi_id = machine.create_gpu_instance(gpu, "3g.40gb", 0)
    made = machine.create_compute_instance(gpu, gi_id, 2)
    idle = machine.measure(gpu).values[Quantity.POWER]
    machine.start_process(made.mig_uuid, activity=1.0)
    machine.measure_instance(gpu, gi_id)
    assert machine.measure_instance(gpu, gi_id).values[Quantity.ENGINE_ACTIVE] == 1.0
    limit = machine.measure(gpu).values[Quantity.POWER_LIMIT]
    assert (machine.measure(gpu).values[Quantity.POWER] - idle) / (limit - idle) == pytest.approx(3 / 7)


def test_a_value_that_is_set_replaces_the_rule_until_it_is_taken_back() -> None:
    machine = SimulatedMachine("1xT4", seed="n")
    (gpu,) = machine.uuids()
    cool = machine.measure(gpu).values[Quantity.TEMPERATURE]
    machine.set_measured(gpu, Quantity.TEMPERATURE, 91.0)
    assert machine.measure(gpu).values[Quantity.TEMPERATURE] == 91.0
    machine.set_measured(gpu, Quantity.TEMPERATURE, None)
    assert machine.measure(gpu).values[Quantity.TEMPERATURE] == cool


def growth(machine: SimulatedMachine, gpu: GpuUuid, time: list[float]) -> tuple[float, float]:
    """Bytes a second over the card's NVLinks in ten seconds, sent and received."""
    before = machine.measure(gpu).values
    time[0] += 10.0
    after = machine.measure(gpu).values
    sent, received = Quantity.NVLINK_TRANSMITTED, Quantity.NVLINK_RECEIVED
    return (after[sent] - before[sent]) / 10, (after[received] - before[received]) / 10


@pytest.mark.parametrize(("work", "bytes_a_link"), [("ordinary", 0.5e9), ("exchange", 10e9)])
def test_a_card_that_computes_uses_its_nvlinks(work: str, bytes_a_link: float) -> None:
    time = [0.0]
    machine = SimulatedMachine("2xH100-80GB", seed="n", now=lambda: time[0])
    gpu, other = machine.uuids()
    assert growth(machine, gpu, time) == (0, 0)
    machine.set_process_activity(machine.start_process(gpu, 1), 0.5, work)
    assert growth(machine, gpu, time) == pytest.approx((18 * bytes_a_link, 18 * bytes_a_link))
    assert growth(machine, other, time) == (0, 0)


@pytest.mark.parametrize("cards", ["1xT4", "1xA30"])
def test_a_card_without_nvlinks_measures_nothing_of_them(cards: str) -> None:
    machine = SimulatedMachine(cards, seed="n")
    measured = machine.measure(machine.uuids()[0])
    of_links = {each for each in Quantity if each.value.startswith("nvlink")}
    assert {each: measured.absent.get(each) for each in of_links} == dict.fromkeys(of_links, Absence.NOT_SUPPORTED)
    assert not of_links & measured.values.keys()


@pytest.mark.parametrize(("cards", "encodes"), [("1xT4", True), ("1xL40S", True), ("1xA100-40GB", False)])
def test_video_moves_the_decoder_and_the_encoder_that_a_card_has(cards: str, encodes: bool) -> None:
    machine = SimulatedMachine(cards, seed="n")
    (gpu,) = machine.uuids()
    idle = machine.measure(gpu).values
    assert (idle[Quantity.DECODER_UTILIZATION], idle[Quantity.ENCODER_UTILIZATION]) == (0, 0)
    process = machine.start_process(gpu, 1, activity=1.0)
    ordinary = machine.measure(gpu).values
    assert 0 < ordinary[Quantity.DECODER_UTILIZATION] < 0.5
    assert (ordinary[Quantity.ENCODER_UTILIZATION] > 0) is encodes
    machine.set_process_activity(process, 1.0, "video")
    video = machine.measure(gpu).values
    assert video[Quantity.DECODER_UTILIZATION] > 0.5
    assert (video[Quantity.ENCODER_UTILIZATION] > 0.5) is encodes


def test_processes_of_two_kinds_share_the_card() -> None:
    machine = SimulatedMachine("1xH100-80GB", seed="n")
    (gpu,) = machine.uuids()
    machine.measure(gpu)  # GPM compares two samples
    for work in ("ordinary", "memory"):
        machine.set_process_activity(machine.start_process(gpu, 1), 1.0, work)
    assert machine.measure(gpu).values[Quantity.DRAM_ACTIVE] == pytest.approx((0.35 + 0.95) / 2)
