"""A machine that an acceptance reads: ``/sys``, ``/proc``, ``/dev`` and ``nvidia-smi`` of simulated cards.

NVML is the real binding over :class:`~tests.support.nvml_metering.MeteringLibrary`, so only the hardware is simulated.
"""

from pathlib import Path

from tessera.accept.machine_files import MachineFiles
from tessera.cli.config.runtimes import NVIDIA
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

DRIVER = "595.58.03"


def write_machine(folder: Path, machine: SimulatedMachine) -> MachineFiles:
    """Writes the files of a machine with these cards; 16 lanes of PCIe 4, idle at generation 1."""
    for card in machine.devices():
        _write_card(folder, card.pci_bus_id[4:].lower(), card.pci_device_id[2:6])
        (folder / "dev").mkdir(exist_ok=True)
        (folder / f"dev/nvidia{card.minor}").touch()
    for name in ("nvidiactl", "nvidia-uvm", "null"):
        (folder / "dev" / name).touch()
    _write_pci(folder, "0000:00:1f.0", {"vendor": "0x8086", "class": "0x030000"})
    _write(folder / "sys/module/nvidia/version", f"{DRIVER}\n")
    _write(
        folder / "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {DRIVER}  Thu May\n"
    )
    write_smi(folder, smi_log(machine))
    _write(folder / "runtime.toml", NVIDIA.text)
    return MachineFiles(
        sys=folder / "sys",
        proc=folder / "proc",
        dev=folder / "dev",
        runtime=folder / "runtime.toml",
        smi=(str(folder / "nvidia-smi"),),
    )


def write_smi(folder: Path, log: str, *, status: int = 0) -> None:
    """Writes an ``nvidia-smi`` that prints a log and ends with a status."""
    _write(folder / "smi.xml", log)
    tool = folder / "nvidia-smi"
    _write(tool, f'#!/bin/sh\n[ "$*" = "-q -x" ] || exit 9\ncat {folder / "smi.xml"}\nexit {status}\n')
    tool.chmod(0o755)


def smi_log(machine: SimulatedMachine) -> str:
    """What ``nvidia-smi -q -x`` prints of the machine, as R580 does."""
    cards = "".join(_smi_card(machine, number) for number in range(len(machine.devices())))
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
        f"<nvidia_smi_log><driver_version>{DRIVER}</driver_version>{cards}</nvidia_smi_log>\n"
    )


def _smi_card(machine: SimulatedMachine, number: int) -> str:
    card = machine.devices()[number]
    if card.lost:
        return ""
    values = machine.measure(card.uuid).values
    pending = "Yes" if values[Quantity.ROW_REMAP_PENDING] else "No"
    return f"""
<gpu id="{card.pci_bus_id}">
  <product_name>{card.name}</product_name> <uuid>{card.uuid}</uuid> <minor_number>{card.minor}</minor_number>
  <serial>1320223000999</serial>
  <fb_memory_usage>
    <total>{card.memory_mib} MiB</total> <used>{round(values[Quantity.MEMORY_USED] / 2**20)} MiB</used>
  </fb_memory_usage>
  <temperature>
    <gpu_temp>{values[Quantity.TEMPERATURE]:.0f} C</gpu_temp> <memory_temp>N/A</memory_temp>
  </temperature>
  <gpu_power_readings>
    <average_power_draw>{values[Quantity.POWER]:.2f} W</average_power_draw>
    <current_power_limit>{values[Quantity.POWER_LIMIT]:.2f} W</current_power_limit>
  </gpu_power_readings>
  <clocks><sm_clock>{values[Quantity.SM_CLOCK] / 1e6:.0f} MHz</sm_clock></clocks>
  <remapped_rows><remapped_row_corr>0</remapped_row_corr><remapped_row_pending>{pending}</remapped_row_pending></remapped_rows>
</gpu>"""


def _write_card(folder: Path, address: str, device: str) -> None:
    """A card below its bridge, as the kernel links it."""
    bridge = folder / f"sys/devices/pci0000:00/bridge-{address}"
    limits = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
    for name, text in limits.items():
        _write(bridge / name, f"{text}\n")
    link = {"max_link_speed": "16.0 GT/s PCIe", "current_link_speed": "2.5 GT/s PCIe", "current_link_width": "16"}
    files = {"vendor": "0x10de", "class": "0x030200", "device": f"0x{device}", "max_link_width": "16", **link}
    for name, text in files.items():
        _write(bridge / address / name, f"{text}\n")
    place = folder / "sys/bus/pci/devices" / address
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(bridge / address)


def _write_pci(folder: Path, address: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        _write(folder / "sys/bus/pci/devices" / address / name, f"{text}\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
