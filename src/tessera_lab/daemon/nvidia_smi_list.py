"""Prints the cards as ``nvidia-smi -L`` does."""

from collections.abc import Iterable, Iterator

from tessera.mig.names import ci_profile_index, parse_profile_name
from tessera.nvml.interface import GpuInstance, Nvml


def format_gpu_list(nvml: Nvml) -> str:
    """One line per card and, below it, one per MIG device; without a final line break.

    Raises:
        NvmlError: a card that is not lost could not be read.
    """
    lines: list[str] = []
    for gpu in nvml.devices():
        if gpu.lost:
            bus = gpu.pci_bus_id
            lines.append(
                f"Unable to determine the device handle for GPU {bus}: GPU is lost. Reboot to recover this GPU"
            )
            continue
        lines.append(f"GPU {gpu.index}: {gpu.name} (UUID: {gpu.uuid})")
        lines += _format_mig_lines(nvml.instances(gpu.uuid) if gpu.mig_enabled else [])
    return "\n".join(lines)


def _format_mig_lines(instances: Iterable[GpuInstance]) -> Iterator[str]:
    devices = [
        (_device_name(instance.profile, compute.profile_index), compute.mig_uuid)
        for instance in sorted(instances, key=lambda one: one.gi_id)
        for compute in instance.compute_instances
    ]
    for index, (name, mig_uuid) in enumerate(devices):
        yield f"  MIG {name:<11} Device {index:>2}: (UUID: {mig_uuid})"


def _device_name(profile: str, ci_profile: int) -> str:
    """``3g.20gb``, or ``1c.3g.20gb`` for a compute instance that leaves a part of its GPU instance.

    NVIDIA MIG user guide, MIG device names.
    """
    slices = parse_profile_name(profile).slices
    if ci_profile == ci_profile_index(slices):
        return profile
    smaller = [
        count for count in range(1, slices) if count in (1, 2, 3, 4, 6) and ci_profile_index(count) == ci_profile
    ]
    return f"{smaller[0] if smaller else 1}c.{profile}"
