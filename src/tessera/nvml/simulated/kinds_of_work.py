"""What simulated processes do while they compute, as data: what of a card an activity uses.

A process has an activity, the share of its device's time in which it computes, and a kind of work. Ordinary work uses
some of everything; each other kind is a bottleneck that a monitoring system has to recognise. The shares are rules, not
measured on hardware.
"""

from collections.abc import Mapping

import msgspec

from tessera.nvml.measurements import Quantity

#: Rule: bytes per second over PCIe of a card that is always busy, and over each of its NVLinks.
_PCIE_RATE, _NVLINK_RATE = 2e9, 1e9
#: Bytes per second of copies without end over PCIe 4 with 16 lanes, and over an NVLink of Ampere or Hopper, which carry
#: 32e9 and 25e9 (NVIDIA's data sheets).
_FULL_PCIE, _FULL_NVLINK = 26e9, 20e9

#: Of an activity of 1: shares of time, and bytes per second.
_ORDINARY: Mapping[Quantity, float] = {
    Quantity.ENGINE_ACTIVE: 1.0,
    Quantity.SM_ACTIVE: 0.8,
    Quantity.SM_OCCUPANCY: 0.5,
    Quantity.TENSOR_ACTIVE: 0.4,
    Quantity.DRAM_ACTIVE: 0.35,
    Quantity.FP64_ACTIVE: 0.0,
    Quantity.FP32_ACTIVE: 0.15,
    Quantity.FP16_ACTIVE: 0.1,
    Quantity.PCIE_TRANSMITTED: _PCIE_RATE,
    Quantity.PCIE_RECEIVED: _PCIE_RATE,
    Quantity.NVLINK_TRANSMITTED: _NVLINK_RATE,
    Quantity.NVLINK_RECEIVED: _NVLINK_RATE,
    Quantity.ENCODER_UTILIZATION: 0.05,
    Quantity.DECODER_UTILIZATION: 0.1,
}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of work.

    Attributes:
        meaning: what such a program does, for people.
        differs: the quantities whose share of the activity is not that of ordinary work.
        power: the share of its power limit that the card draws at least, however little it computes.
        cpu: CPU cores that the process keeps busy.
    """

    meaning: str
    differs: Mapping[Quantity, float] = {}
    power: float = 0.0
    cpu: float = 0.3

    def share(self, quantity: Quantity) -> float:
        """How much of a quantity an activity of 1 is; a rate is of each NVLink."""
        return self.differs.get(quantity, _ORDINARY[quantity])


#: The kind of a process that says nothing.
ORDINARY = "ordinary"
#: The kinds by name.
WORKS: Mapping[str, Work] = {
    ORDINARY: Work(meaning="some of everything"),
    "memory": Work(meaning="it waits for the memory of the card", differs={Quantity.DRAM_ACTIVE: 0.95}),
    "copies": Work(
        meaning="it copies between card and host all the time",
        differs={Quantity.PCIE_RECEIVED: _FULL_PCIE, Quantity.SM_ACTIVE: 0.25},
    ),
    "exchange": Work(
        meaning="it sends most of its results to other cards",
        differs={Quantity.NVLINK_TRANSMITTED: _FULL_NVLINK, Quantity.NVLINK_RECEIVED: _FULL_NVLINK},
    ),
    "small": Work(meaning="its kernels are too small for the card", differs={Quantity.SM_OCCUPANCY: 0.08}),
    "video": Work(
        meaning="it decodes and encodes video",
        differs={Quantity.DECODER_UTILIZATION: 0.8, Quantity.ENCODER_UTILIZATION: 0.6, Quantity.SM_ACTIVE: 0.3},
    ),
    "spinning": Work(meaning="it holds the clocks up while it waits", power=0.6),
    "single": Work(
        meaning="one block at a time keeps the card awake",
        differs={Quantity.SM_ACTIVE: 0.01, Quantity.SM_OCCUPANCY: 0.01, Quantity.DRAM_ACTIVE: 0.01},
        power=0.6,
    ),
    "host": Work(meaning="it prepares data on one CPU core", cpu=1.0),
}
