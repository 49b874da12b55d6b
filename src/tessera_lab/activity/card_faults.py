"""Breaks and mends simulated cards, as their hardware and driver would show it.

A fault changes what NVML answers; nobody tells the agent. What the driver asks for after an XID follows NVIDIA's
catalogue (:data:`tessera.agent.health.policy.CATALOGUE`): XID 79 is a card that fell off the bus; an XID that needs a
reset or a reboot makes the driver ask for it until that has happened; other XIDs are only reported.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from tessera.agent.health.policy import CATALOGUE, RecoveryAction
from tessera.agent.inventory.device_state import Reaction
from tessera.nvml.errors import XID_OFF_THE_BUS, UnknownNvmlError
from tessera.nvml.interface import GpuEventKind
from tessera.nvml.measurements import Quantity
from tessera.nvml.simulated.boards import attributes_of
from tessera.nvml.simulated.load import WELL_FABRIC, highest_clock, power_limit
from tessera.nvml.simulated.machine_state import (
    ANY,
    MachineState,
    SimCard,
    SimEvent,
    SimulatedFault,
)

#: XID of an uncorrectable ECC error, and of a fault of an NVLink (NVIDIA, XID errors).
XID_ECC, XID_NVLINK = 48, 74
#: Degrees Celsius of a card with the fault ``heat``, and of its memory: above the limits of data-center cards, at which
#: they slow down (NVIDIA's data sheets of A100 and H100: GPU 85 to 90, memory 95).
_HOT, _HOT_MEMORY = 92.0, 98.0
#: Bits of nvmlClocksEventReasons (nvml.h): HwSlowdown with HwThermalSlowdown, and with HwPowerBrakeSlowdown.
_THERMAL, _POWER_BRAKE = 0x8 | 0x40, 0x8 | 0x80
#: HwSlowdown without a stated cause, and SwThermalSlowdown, of the same.
_SLOWDOWN, _WARM = 0x8, 0x20
#: SwPowerCap of the same, and a rule: the clock that the limit leaves of the highest.
_POWER_CAP, _CAPPED_CLOCK = 0x4, 0.9
#: The health of a fabric with degraded bandwidth (bits 0 and 1) and an unhealthy route (bits 4 and 5; nvml.h).
_DEGRADED_FABRIC = WELL_FABRIC & ~0x33 | 0x11
#: Rule: errors in a second on the NVLinks of a card with the fault ``nvlink-errors``.
_NVLINK_ERRORS: Mapping[Quantity, float] = {Quantity.NVLINK_REPLAYS: 5.0, Quantity.NVLINK_RECOVERIES: 0.2}
#: What the driver asks for, by the reaction in the catalogue.
_ASKS = {Reaction.RESET: RecoveryAction.GPU_RESET, Reaction.REBOOT: RecoveryAction.NODE_REBOOT}


class CardFault(NamedTuple):
    """A kind of fault: what it is, for people, and how it changes the card."""

    meaning: str
    apply: Callable[[MachineState, SimCard], None]


def report_xid(machine: MachineState, card: SimCard, xid: int) -> None:
    """Lets the driver report an XID of a card, with what the error does to the card."""
    if xid == XID_OFF_THE_BUS:
        machine.lose_card(card.uuid)
        return
    machine.queue_event(SimEvent(GpuEventKind.XID, card.uuid, xid))
    action = _ASKS.get(CATALOGUE.get(xid, Reaction.WITHHOLD))
    if action is not None:
        card.attributes = msgspec.structs.replace(attributes_of(card), recovery_action=int(action))


def mend_card(machine: MachineState, card: SimCard) -> None:
    """Removes every fault from a card but one: a card that fell off the bus comes back when its machine reboots."""
    card.attributes = None
    card.nvlinks = None
    card.measured = {}
    card.growth = {}
    machine.faults = [fault for fault in machine.faults if fault.gpu != card.uuid]


def _report_ecc(machine: MachineState, card: SimCard) -> None:
    card.measured[Quantity.ECC_UNCORRECTED.value] = card.measured.get(Quantity.ECC_UNCORRECTED.value, 0.0) + 1
    machine.queue_event(SimEvent(GpuEventKind.DOUBLE_BIT_ECC, card.uuid))
    report_xid(machine, card, XID_ECC)


def _overheat(_machine: MachineState, card: SimCard) -> None:
    card.measured[Quantity.TEMPERATURE.value] = _HOT
    card.measured[Quantity.MEMORY_TEMPERATURE.value] = _HOT_MEMORY
    _slow_down(card, _THERMAL)


def _brake_power(_machine: MachineState, card: SimCard) -> None:
    _slow_down(card, _POWER_BRAKE)


def _cap_power(_machine: MachineState, card: SimCard) -> None:
    card.measured[Quantity.POWER.value] = power_limit(card)
    card.measured[Quantity.THROTTLE_REASONS.value] = float(_POWER_CAP)
    card.measured[Quantity.SM_CLOCK.value] = highest_clock(card) * _CAPPED_CLOCK


def _mark(quantity: Quantity) -> Callable[[MachineState, SimCard], None]:
    """Sets a flag that the card measures."""

    def apply(_machine: MachineState, card: SimCard) -> None:
        card.measured[quantity.value] = 1.0

    return apply


def _fail(operation: str) -> Callable[[MachineState, SimCard], None]:
    """Lets one call on the card fail, always."""

    def apply(machine: MachineState, card: SimCard) -> None:
        machine.faults.append(
            SimulatedFault(operation=operation, code=UnknownNvmlError.code, times=None, gpu=card.uuid)
        )

    return apply


def _slow_down(card: SimCard, reasons: int) -> None:
    """A hardware slowdown divides the clocks by two or more (nvml.h, ``nvmlClocksEventReasonHwSlowdown``)."""
    card.measured[Quantity.THROTTLE_REASONS.value] = float(reasons)
    card.measured[Quantity.SM_CLOCK.value] = highest_clock(card) / 2


def _cut_nvlinks(machine: MachineState, card: SimCard) -> None:
    card.nvlinks = []
    report_xid(machine, card, XID_NVLINK)


def _degrade_fabric(_machine: MachineState, card: SimCard) -> None:
    card.measured[Quantity.FABRIC_HEALTH.value] = float(_DEGRADED_FABRIC)


def _disturb_nvlinks(_machine: MachineState, card: SimCard) -> None:
    card.growth |= {quantity.value: rate for quantity, rate in _NVLINK_ERRORS.items()}


def refuse_calls(machine: MachineState, card: SimCard, code: int = UnknownNvmlError.code) -> None:
    """Lets every call on a card fail with an error of NVML, also those that list it."""
    machine.faults.append(SimulatedFault(operation=ANY, code=code, times=None, gpu=card.uuid))


#: The kinds of faults by name.
FAULTS: Mapping[str, CardFault] = {
    "lost": CardFault(
        "it fell off the bus, with XID 79", lambda machine, card: report_xid(machine, card, XID_OFF_THE_BUS)
    ),
    "ecc": CardFault("an uncorrectable ECC error, with XID 48; the driver asks for a reset", _report_ecc),
    "heat": CardFault(f"{_HOT:.0f} °C, and the hardware slows it down", _overheat),
    "warm": CardFault("the driver slows it down before it gets too hot", lambda _, card: _slow_down(card, _WARM)),
    "slow": CardFault("the hardware slows it down, and gives no cause", lambda _, card: _slow_down(card, _SLOWDOWN)),
    "power": CardFault("the server's power supply slows it down", _brake_power),
    "power-cap": CardFault("it draws its power limit, and its clocks are lowered", _cap_power),
    "nvlink": CardFault("its NVLinks are down, with XID 74", _cut_nvlinks),
    "nvlink-errors": CardFault("its NVLinks send packets again, and are trained again", _disturb_nvlinks),
    "fabric": CardFault("its NVLink fabric reports less bandwidth and an unhealthy route", _degrade_fabric),
    "sram": CardFault(
        "errors of its on-chip memory exceed NVIDIA's threshold: a card to replace",
        _mark(Quantity.SRAM_THRESHOLD_EXCEEDED),
    ),
    "spare-row": CardFault("a bad row of its memory is replaced at its next reset", _mark(Quantity.ROW_REMAP_PENDING)),
    "no-spare-row": CardFault(
        "a row of its memory is bad, and no spare row is left: a card to replace", _mark(Quantity.ROW_REMAP_FAILED)
    ),
    "computing": CardFault("programs on it fail, which only a preflight shows", _fail("compute")),
    "silent": CardFault("the driver reports none of its errors", _fail("register_events")),
    "unreadable": CardFault("every call on it fails, also those that list it", refuse_calls),
    "no-slices": CardFault("it refuses new MIG instances", _fail("create_gpu_instance")),
}
