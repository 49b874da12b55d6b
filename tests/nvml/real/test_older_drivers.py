"""Each driver branch since R470: no card vanishes, and what the branch lacks is absent with its reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.nvml.real.conftest import Pair
from tests.support.nvml_library import BRANCHES

from tessera.nvml.errors import NvmlError
from tessera.nvml.measurements import ACTIVITIES, Absence, Quantity

GIB = 1 << 30
FABRIC = "7f4a1c3e-0000-4000-8000-00000000abcd", "7"
#: Quantities that a whole H100 in a fabric lacks on a branch, beside those that it lacks on every branch.
_SINCE_570 = {Quantity.TEMPERATURE_MARGIN}
_SINCE_550 = {Quantity.SRAM_THRESHOLD_EXCEEDED, Quantity.FABRIC_HEALTH, *_SINCE_570}
LACKS: dict[str, set[Quantity]] = {
    "470": {Quantity.MEMORY_RESERVED, *ACTIVITIES, *_SINCE_550},
    "510": {*ACTIVITIES, *_SINCE_550},
    "515": {*ACTIVITIES, *_SINCE_550},
    "525": _SINCE_550,
    "535": _SINCE_550,
    "550": _SINCE_570,
    "570": set(),
    "580": set(),
}


@pytest.mark.parametrize("version", BRANCHES)
def test_a_branch_lacks_what_the_support_matrix_says_and_nothing_else(pair: Callable[..., Pair], version: str) -> None:
    real, machine, _ = pair("2xH100-80GB", driver=version)
    assert [each.uuid for each in real.devices()] == machine.uuids()
    for gpu in machine.uuids():
        machine.set_attributes(gpu, msgspec.structs.replace(machine.attributes(gpu), fabric=FABRIC))
        machine.set_measured(gpu, Quantity.THROTTLE_REASONS, 0x48)
        for _ in range(2):
            found, simulated = real.measure(gpu), machine.measure(gpu)
        assert found.values[Quantity.THROTTLE_REASONS] == 0x48
        assert found.values[Quantity.MEMORY_USED] == simulated.values[Quantity.MEMORY_USED]
        assert found.absent.keys() - simulated.absent.keys() == LACKS[version.partition(".")[0]]
        assert Absence.FAILED not in found.absent.values()


@pytest.mark.parametrize("version", BRANCHES)
@pytest.mark.parametrize("mig", [False, True])
def test_every_process_is_listed_as_itself(pair: Callable[..., Pair], version: str, mig: bool) -> None:
    real, machine, _ = pair("1xA100-40GB", mig=mig, driver=version)
    (gpu,) = machine.uuids()
    device: Any = gpu
    if mig:
        gi_id = machine.create_gpu_instance(gpu, "3g.20gb", 4)
        device = machine.create_compute_instance(gpu, gi_id, 2).mig_uuid
    for size in (1, 2, 3):
        machine.start_process(device, size * GIB)
    assert real.processes(device) == machine.processes(device)
    assert len(real.processes(device)) == 3


@pytest.mark.parametrize("version", BRANCHES)
def test_clients_of_mps_are_listed_where_the_branch_has_them(pair: Callable[..., Pair], version: str) -> None:
    real, machine, library = pair("1xT4", driver=version)
    (gpu,) = machine.uuids()
    machine.start_process(gpu, GIB)
    lists = set(library_names(library, "nvmlDeviceGetComputeRunningProcesses_v"))
    library.without = set(BRANCHES[version]) | lists
    with pytest.raises(NvmlError):
        real.processes(gpu)
    for name in lists:
        mps = name.replace("Compute", "MPSCompute", 1)
        library.instead[mps] = getattr(type(library), f"c_{name}")
        library.instead[name] = no_process
    library.without = set(BRANCHES[version])
    assert real.processes(gpu) == machine.processes(gpu)


def no_process(_library: Any, _device: Any, count: Any, _found: Any) -> None:
    count._obj.value = 0


def library_names(library: Any, beginning: str) -> list[str]:
    return [name[2:] for name in dir(type(library)) if name.startswith(f"c_{beginning}")]


@pytest.mark.parametrize("version", ["525.147.05", "550.90.07"])
def test_a_fabric_is_known_since_r525(pair: Callable[..., Pair], version: str) -> None:
    real, machine, _ = pair("1xH100-80GB", driver=version)
    (gpu,) = machine.uuids()
    machine.set_attributes(gpu, msgspec.structs.replace(machine.attributes(gpu), fabric=FABRIC))
    assert real.attributes(gpu).fabric == FABRIC


def test_success_without_samples_is_no_activity(pair: Callable[..., Pair]) -> None:
    real, machine, library = pair("1xT4")
    (gpu,) = machine.uuids()
    library.instead["nvmlDeviceGetProcessUtilization"] = lambda _library, _device, _samples, count, _since: setattr(
        count._obj, "value", 0
    )
    assert real.process_activity(gpu) == []
