"""Measurements by the real binding: the same quantities and values as the simulated machine behind the library."""

from collections.abc import Callable

import msgspec
import pytest
from tests.nvml.real.conftest import Pair
from tests.nvml.real.test_one_bad_card import FUNCTIONS, SEARCHES, codes_of

from tessera.agent.monitoring.card_states import find_errors
from tessera.nvml.errors import GpuLost, NotSupported, NvmlNotFound
from tessera.nvml.interface import GpuUuid
from tessera.nvml.measurements import ACTIVITIES, Absence, Measurements, ProcessActivity, Quantity
from tessera.nvml.real.meter import _FIELDS

GIB = 1 << 30
FABRIC = "7f4a1c3e-0000-4000-8000-00000000abcd", "7"
#: What a card that has joined no fabric lacks.
NO_FABRIC = {Quantity.FABRIC_HEALTH: Absence.NOT_SUPPORTED}


def assert_alike(real: Measurements, simulated: Measurements) -> None:
    """NVML rounds to whole percent, degrees and MHz; GPM does not."""
    assert real.values.keys() == simulated.values.keys()
    assert real.absent == simulated.absent
    for quantity, value in simulated.values.items():
        assert real.values[quantity] == pytest.approx(value, rel=1e-3, abs=0.5 if value > 1 else 0.005), quantity


@pytest.mark.parametrize("cards", ["1xT4", "1xA100-40GB", "1xH100-80GB"])
def test_a_card_is_measured_alike(pair: Callable[..., Pair], cards: str) -> None:
    real, machine, _ = pair(cards)
    (gpu,) = machine.uuids()
    machine.start_process(gpu, 3 * GIB, activity=0.6)
    for _ in range(2):
        assert_alike(real.measure(gpu), machine.measure(gpu))


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        (Quantity.SRAM_THRESHOLD_EXCEEDED, 1.0),
        (Quantity.FABRIC_HEALTH, 0x199),
        (Quantity.NVLINK_REPLAYS, 7.0),
        (Quantity.NVLINK_RECOVERIES, 3.0),
        (Quantity.NVLINK_CRC_FLIT_ERRORS, 11.0),
        (Quantity.NVLINK_CRC_DATA_ERRORS, 13.0),
    ],
)
def test_an_error_that_a_card_counts_is_read_alike(pair: Callable[..., Pair], quantity: Quantity, value: float) -> None:
    real, machine, _ = pair("2xH100-80GB")
    gpu, other = machine.uuids()
    attributes = msgspec.structs.replace(machine.attributes(gpu), fabric=FABRIC)
    for each in (gpu, other):
        machine.set_attributes(each, attributes)
    machine.set_measured(gpu, quantity, value)
    for _ in range(2):
        assert_alike(real.measure(gpu), machine.measure(gpu))
    assert real.measure(gpu).values[quantity] == value
    assert find_errors(real.measure(other), {}, 0.0) == dict.fromkeys(find_errors(machine.measure(other), {}, 0.0), "")


@pytest.mark.parametrize("cards", ["1xA100-40GB", "1xH100-80GB"])
def test_a_card_in_mig_mode_and_its_instances_are_measured_alike(pair: Callable[..., Pair], cards: str) -> None:
    real, machine, _ = pair(cards, mig=True)
    (gpu,) = machine.uuids()
    profile = machine.gi_profiles(gpu)[0]
    gi_id = machine.create_gpu_instance(gpu, profile.name, 0)
    made = machine.create_compute_instance(gpu, gi_id, 0)
    machine.start_process(made.mig_uuid, GIB, activity=0.5)
    for _ in range(2):
        assert_alike(real.measure(gpu), machine.measure(gpu))
        assert_alike(real.measure_instance(gpu, gi_id), machine.measure_instance(gpu, gi_id))


def test_activity_is_a_mean_between_two_samples(pair: Callable[..., Pair]) -> None:
    real, machine, _ = pair("1xH100-80GB")
    (gpu,) = machine.uuids()
    machine.start_process(gpu, GIB, activity=0.6)
    assert real.measure(gpu).absent == dict.fromkeys(ACTIVITIES, Absence.FIRST_SAMPLE) | NO_FABRIC
    second = real.measure(gpu)
    assert second.absent == NO_FABRIC
    assert second.values[Quantity.ENGINE_ACTIVE] == pytest.approx(0.6)


def test_ampere_in_mig_mode_says_why_it_has_no_utilization(pair: Callable[..., Pair]) -> None:
    real, machine, _ = pair("1xA100-40GB", mig=True)
    (gpu,) = machine.uuids()
    gi_id = machine.create_gpu_instance(gpu, "1g.5gb", 0)
    assert real.measure(gpu).absent[Quantity.GPU_UTILIZATION] is Absence.MIG_MODE
    assert set(real.measure_instance(gpu, gi_id).absent.values()) == {Absence.NO_GPM}
    assert real.measure_instance(gpu, gi_id).values == {}


def test_a_quantity_that_the_driver_refuses_is_absent_and_the_others_stay(pair: Callable[..., Pair]) -> None:
    real, machine, library = pair("1xA100-40GB")
    (gpu,) = machine.uuids()

    def refuse(*_args: object) -> None:
        raise NotSupported("memory")

    library.instead["nvmlDeviceGetMemoryInfo_v2"] = refuse
    library.without.add("nvmlDeviceGetRemappedRows")
    found = real.measure(gpu)
    assert found.absent[Quantity.MEMORY_USED] is Absence.NOT_SUPPORTED
    assert found.absent[Quantity.ROW_REMAP_FAILED] is Absence.NOT_SUPPORTED
    assert found.values[Quantity.POWER] > 0


def test_what_is_not_a_number_is_absent(pair: Callable[..., Pair]) -> None:
    real, machine, _ = pair("1xH100-80GB")
    (gpu,) = machine.uuids()
    real.measure(gpu)
    machine.set_measured(gpu, Quantity.SM_ACTIVE, float("nan"))
    found = real.measure(gpu)
    assert found.absent == {Quantity.SM_ACTIVE: Absence.FAILED} | NO_FABRIC
    assert Quantity.ENGINE_ACTIVE in found.values


def test_a_lost_card_is_an_error(pair: Callable[..., Pair]) -> None:
    real, machine, _ = pair("2xA100-40GB")
    gpu = machine.uuids()[0]
    machine.lose(gpu)
    with pytest.raises(GpuLost):
        real.measure(gpu)
    assert real.measure(machine.uuids()[1]).values


def test_an_instance_that_is_created_again_begins_anew(pair: Callable[..., Pair]) -> None:
    real, machine, _ = pair("1xH100-80GB", mig=True)
    (gpu,) = machine.uuids()
    gi_id = real.create_gpu_instance(gpu, "1g.10gb", 0)
    real.measure_instance(gpu, gi_id)
    assert real.measure_instance(gpu, gi_id).absent == {}
    real.destroy_gpu_instance(gpu, gi_id)
    with pytest.raises(NvmlNotFound):
        machine.measure_instance(gpu, gi_id)
    assert real.create_gpu_instance(gpu, "1g.10gb", 0) == gi_id
    assert set(real.measure_instance(gpu, gi_id).absent.values()) == {Absence.FIRST_SAMPLE}


def test_processes_share_a_card(pair: Callable[..., Pair]) -> None:
    real, machine, _ = pair("1xT4")
    (gpu,) = machine.uuids()
    assert real.process_activity(gpu) == []
    pids = [machine.start_process(gpu, GIB, activity=activity) for activity in (1.0, 1.0, 0.0)]
    expected = [ProcessActivity(pid=pid, sm=0.5) for pid in pids[:2]]
    assert real.process_activity(gpu) == expected == machine.process_activity(gpu)


def test_processes_in_mig_mode_have_no_shares(pair: Callable[..., Pair]) -> None:
    real, machine, _ = pair("1xA100-40GB", mig=True)
    gpu = GpuUuid(machine.uuids()[0])
    for nvml in (real, machine):
        with pytest.raises(NotSupported):
            nvml.process_activity(gpu)


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS) - set(SEARCHES)))
def test_a_refused_call_takes_its_own_quantities_and_no_others(pair: Callable[..., Pair], function: str) -> None:
    real, machine, library = pair("1xH100-80GB")
    (gpu,) = machine.uuids()
    for _ in range(2):
        whole = real.measure(gpu)
    for code in set(codes_of(function)) - {GpuLost.code}:
        library.broken = {(function, gpu): code}
        found = real.measure(gpu)
        library.broken = {}
        assert found.values.keys() | found.absent.keys() == whole.values.keys() | whole.absent.keys()
        lost = whole.values.keys() - found.values.keys()
        # One call reads all fields, and one all of GPM; any other reads four quantities at most.
        assert len(lost) <= (len(_FIELDS) if function == "nvmlDeviceGetFieldValues" else 4) or lost == set(ACTIVITIES)
        real.measure(gpu)  # a mean begins anew after a refusal


def test_a_card_that_falls_off_the_bus_while_it_is_measured_is_lost(pair: Callable[..., Pair]) -> None:
    real, machine, library = pair("1xA100-40GB")
    (gpu,) = machine.uuids()
    library.broken = {("nvmlDeviceGetPowerUsage", gpu): GpuLost.code}
    with pytest.raises(GpuLost):
        real.measure(gpu)
