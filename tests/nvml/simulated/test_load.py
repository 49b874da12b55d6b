"""Measurements of simulated cards follow from their processes, and from values that a test has set."""

import pytest

from tessera.nvml.measurements import Quantity
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
