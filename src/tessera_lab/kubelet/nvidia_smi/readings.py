"""Values of simulated cards as nvidia-smi writes them."""

from tessera.nvml.interface import Nvml
from tessera.nvml.measurements import Measurements, Quantity
from tessera_lab.kubelet.nvidia_smi.cards import ShownCard

MIB = 2**20
#: A value that a simulated card does not have, or that a container does not see.
NONE = "N/A"


def number(read: Measurements, quantity: Quantity) -> str:
    """A measured value without its unit."""
    value = read.values.get(quantity)
    return NONE if value is None else f"{value:.0f}"


def busy(read: Measurements, card: ShownCard) -> str:
    """Per cent of time in which the card computed; none of a card in MIG mode, and of one that is seen in part."""
    value = read.values.get(Quantity.GPU_UTILIZATION)
    return NONE if value is None or card.gpu.mig_enabled or not card.whole else f"{100 * value:.0f}"


def mig_mode(card: ShownCard) -> str:
    """The card's MIG mode."""
    return "Enabled" if card.gpu.mig_enabled else "Disabled" if card.gpu.mig_capable else NONE


def cuda(nvml: Nvml) -> str:
    """The newest version of CUDA that the driver serves."""
    version = nvml.cuda_version()
    return f"{version // 1000}.{version % 1000 // 10}"
