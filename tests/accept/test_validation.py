"""A validation: cards answer NVML, a program computes on them, markers are left; or the step that failed is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.libcuda import Libcuda

from tessera.accept import cuda as cuda_module
from tessera.accept.cuda import COUNT, CudaError, load_cuda
from tessera.agent.base.node_files import MarkerFiles
from tessera.api.nodes.node_marks import CUDA_READY, DRIVER_CONTAINER_READY, TOOLKIT_READY
from tessera.cli.base.validation_steps import ValidationFailed, validate
from tessera.nvml.errors import DriverNotLoaded, GpuLost, NvmlError
from tessera.nvml.simulated.simulated_machine import SimulatedMachine


@pytest.fixture
def markers(tmp_path: Path) -> MarkerFiles:
    return MarkerFiles(tmp_path)


def run(
    markers: MarkerFiles, machine: SimulatedMachine, library: Libcuda, *, load: Callable[[], Any] | None = None
) -> list[str]:
    said: list[str] = []
    validate(markers, said.append, open_nvml=lambda: machine, load=load or (lambda: library))
    return said


def test_every_card_answers_and_every_device_computes(markers: MarkerFiles) -> None:
    library = Libcuda(devices=2)
    said = run(markers, SimulatedMachine("2xA30", seed="n"), library)
    assert library.ran == [(0, "tessera_add"), (1, "tessera_add")]
    assert library.alive == []
    assert markers.present(TOOLKIT_READY)
    assert markers.present(CUDA_READY)
    assert said[-2] == f"CUDA 12.4: device 1 added {COUNT} numbers and all sums are right"
    assert sum(" answers, " in line for line in said) == 2


def test_markers_say_which_driver_they_are_about(markers: MarkerFiles) -> None:
    markers.write(DRIVER_CONTAINER_READY)
    run(markers, SimulatedMachine("A30", seed="n"), Libcuda())
    mark, driver = markers.mark(CUDA_READY), markers.identity(DRIVER_CONTAINER_READY)
    assert mark is not None
    assert driver is not None
    assert mark.about == driver
    markers.remove(DRIVER_CONTAINER_READY)
    markers.write(DRIVER_CONTAINER_READY)
    later = markers.identity(DRIVER_CONTAINER_READY)
    assert later is not None
    assert not mark.is_about(later)


@pytest.mark.parametrize(
    "call",
    [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuCtxCreate_v2",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuMemAlloc_v2",
        "cuMemcpyHtoD_v2",
        "cuLaunchKernel",
        "cuCtxSynchronize",
        "cuMemcpyDtoH_v2",
        "cuMemFree_v2",
        "cuModuleUnload",
        "cuCtxDestroy_v2",
    ],
)
def test_a_step_that_fails_is_named_with_its_code_and_leaves_no_marker(markers: MarkerFiles, call: str) -> None:
    markers.write(CUDA_READY)
    with pytest.raises(CudaError, match=rf"^{call}: as the driver words it \(CUresult 999\)$"):
        run(markers, SimulatedMachine("A30", seed="n"), Libcuda(fail={call: 999}))
    assert markers.present(TOOLKIT_READY)
    assert not markers.present(CUDA_READY)


def test_a_driver_that_is_too_old_is_told(markers: MarkerFiles) -> None:
    with pytest.raises(CudaError, match="cuMemAlloc_v2: this driver does not have it"):
        run(markers, SimulatedMachine("A30", seed="n"), Libcuda(fail={"cuMemAlloc_v2": -1}))


def test_wrong_sums_are_no_success(markers: MarkerFiles) -> None:
    with pytest.raises(CudaError, match=f"{COUNT} of {COUNT} sums are wrong, the first at 0"):
        run(markers, SimulatedMachine("A30", seed="n"), Libcuda(off=0.5))
    assert not markers.present(CUDA_READY)


def test_cards_in_mig_mode_that_nobody_has_cut_have_nothing_to_compute_on(markers: MarkerFiles) -> None:
    said = run(markers, SimulatedMachine("2xA30", seed="n", mig=True), Libcuda(fail={"cuInit": 100}))
    for fact in ("all 2 cards are in MIG mode", "none is cut", "no program was run"):
        assert fact in said[-2]
    assert markers.present(CUDA_READY)


def test_a_mig_device_has_to_compute(markers: MarkerFiles) -> None:
    machine = SimulatedMachine("A30", seed="n", mig=True)
    gpu = machine.uuids()[0]
    machine.create_compute_instance(gpu, machine.create_gpu_instance(gpu, "1g.6gb", 0), 0)
    with pytest.raises(CudaError, match=r"cuInit: .*\(CUresult 100\)"):
        run(markers, machine, Libcuda(fail={"cuInit": 100}))
    run(markers, machine, library := Libcuda(devices=1))
    assert library.ran == [(0, "tessera_add")]


def test_a_card_that_is_left_out_by_cuda_is_no_success(markers: MarkerFiles) -> None:
    with pytest.raises(CudaError, match="no device, though NVML has cards"):
        run(markers, SimulatedMachine("A30", seed="n"), Libcuda(devices=0))


def test_a_lost_card_and_a_driver_that_is_not_there_are_told(markers: MarkerFiles) -> None:
    machine = SimulatedMachine("A30", seed="n")
    machine.lose(machine.uuids()[0])
    with pytest.raises((ValidationFailed, GpuLost), match="lost"):
        run(markers, machine, Libcuda())

    def closed() -> Any:
        raise DriverNotLoaded("nvmlInit")

    with pytest.raises(NvmlError, match="not installed"):
        validate(markers, print, open_nvml=closed)
    assert not markers.present(TOOLKIT_READY)


def test_a_runtime_that_gives_no_library_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(cuda_module, "CDLL", missing)
    with pytest.raises(CudaError, match="runtimeClassName nvidia"):
        load_cuda()


def test_a_folder_that_is_not_there_is_told_and_does_not_fail(tmp_path: Path) -> None:
    said = run(MarkerFiles(tmp_path / "none"), SimulatedMachine("A30", seed="n"), Libcuda())
    assert said[-1] == f"cuda-ready: not written, {tmp_path / 'none'} is not there"
