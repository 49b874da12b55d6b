"""The listing that people know from ``nvidia-smi -L``."""

import pytest

from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera_lab.kubelet.nvidia_smi.cards import format_gpu_list


@pytest.fixture
def machine() -> SimulatedMachine:
    return SimulatedMachine("2xA100-40GB", seed="node-1", mig=True)


def test_cards_with_their_mig_devices_below(machine: SimulatedMachine) -> None:
    first, second = machine.uuids()
    whole = machine.create_compute_instance(second, machine.create_gpu_instance(second, "3g.20gb", 0), 2)
    half = machine.create_compute_instance(second, machine.create_gpu_instance(second, "3g.20gb", 4), 0)
    machine.create_gpu_instance(first, "1g.5gb", 0)  # without a compute instance it is no device
    assert format_gpu_list(machine).splitlines() == [
        f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {first})",
        f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {second})",
        f"  MIG 3g.20gb     Device  0: (UUID: {whole.mig_uuid})",
        f"  MIG 1c.3g.20gb  Device  1: (UUID: {half.mig_uuid})",
    ]


def test_a_lost_card_is_shown_as_lost(machine: SimulatedMachine) -> None:
    lost, healthy = machine.uuids()
    machine.lose(lost)
    assert format_gpu_list(machine).splitlines() == [
        "Unable to determine the device handle for GPU 00000000:10:00.0: GPU is lost. Reboot to recover this GPU",
        f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {healthy})",
    ]


def test_long_names_keep_their_distance() -> None:
    machine = SimulatedMachine("RTX-PRO-6000", seed="n", mig=True)
    (gpu,) = machine.uuids()
    made = machine.create_compute_instance(gpu, machine.create_gpu_instance(gpu, "1g.24gb+me.all", 0), 0)
    assert format_gpu_list(machine).splitlines()[1] == f"  MIG 1g.24gb+me.all Device  0: (UUID: {made.mig_uuid})"
