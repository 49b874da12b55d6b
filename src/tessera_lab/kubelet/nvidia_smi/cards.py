"""The cards and MIG devices that nvidia-smi lists, for a node or for a container that sees some of them.

In a container they are counted anew from 0, since its driver shows no others.
"""

from collections.abc import Collection, Sequence

import msgspec

from tessera.mig.names import ci_profile_index, parse_profile_name
from tessera.nvml.interface import ComputeInstance, GpuInfo, GpuInstance, Nvml


class MigDevice(msgspec.Struct, frozen=True):
    """A MIG device as a container sees it."""

    instance: GpuInstance
    compute: ComputeInstance


class ShownCard(msgspec.Struct, frozen=True):
    """A card with the MIG devices that are shown of it.

    Attributes:
        index: its number where it is shown.
        gpu: the card.
        whole: True if all of it is seen; False if only some of its MIG devices are.
        devices: the MIG devices.
    """

    index: int
    gpu: GpuInfo
    whole: bool
    devices: tuple[MigDevice, ...]


def find_cards(nvml: Nvml, visible: Collection[str] | None = None) -> list[ShownCard]:
    """Returns the cards that are seen.

    Args:
        nvml: the node's cards.
        visible: UUIDs of the cards and MIG devices that a container sees; None for a node, which sees all.

    Raises:
        NvmlError: the driver, or the instances of a card, could not be read.
    """
    shown: list[ShownCard] = []
    for gpu in nvml.devices():
        devices = _mig_devices(nvml, gpu)
        if visible is None:
            shown.append(ShownCard(gpu.index, gpu, True, devices))
            continue
        seen = tuple(each for each in devices if each.compute.mig_uuid in visible)
        whole = gpu.uuid in visible
        if whole or seen or (not gpu.readable and any(each.startswith("MIG-") for each in visible)):
            shown.append(ShownCard(len(shown), gpu, whole, devices if whole else seen))
    if visible is not None and any(each.devices for each in shown):
        # The slices were found, so none of them is on a card that cannot be read.
        return [each for each in shown if each.whole or each.devices]
    return shown


def _mig_devices(nvml: Nvml, gpu: GpuInfo) -> tuple[MigDevice, ...]:
    if not gpu.readable or not gpu.mig_enabled:
        return ()
    instances = sorted(nvml.instances(gpu.uuid), key=lambda one: one.gi_id)
    return tuple(MigDevice(each, compute) for each in instances for compute in each.compute_instances)


def format_gpu_list(nvml: Nvml) -> str:
    """``nvidia-smi -L`` of a node: a line per card and, below it, one per MIG device; without a final line break.

    Raises:
        NvmlError: the instances of a card could not be read.
    """
    return draw_list(find_cards(nvml)).removesuffix("\n")


def draw_list(cards: Sequence[ShownCard]) -> str:
    """``nvidia-smi -L`` of these cards."""
    lines: list[str] = []
    for card in cards:
        if not card.gpu.readable:
            lines.append(describe_problem(card.gpu))
            continue
        lines.append(f"GPU {card.index}: {card.gpu.name} (UUID: {card.gpu.uuid})")
        for index, device in enumerate(card.devices):
            name = _device_name(device.instance.profile, device.compute.profile_index)
            lines.append(f"  MIG {name:<11} Device {index:>2}: (UUID: {device.compute.mig_uuid})")
    return "".join(f"{line}\n" for line in lines)


def describe_problem(gpu: GpuInfo) -> str:
    """The words of nvidia-smi for a card that it cannot read."""
    why = "GPU is lost. Reboot to recover this GPU" if gpu.lost else gpu.error
    return f"Unable to determine the device handle for GPU {gpu.pci_bus_id}: {why}"


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
