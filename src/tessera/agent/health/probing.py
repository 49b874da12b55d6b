"""Asks a card whether it is all right, as cheaply as can be asked.

One reading of its memory goes through the driver to the card and back. A card that does not answer within the time
counts as failed: a driver that hangs is no sign of health. The driver's own verdict on what a card needs is passed on
where somebody reads it.
"""

import asyncio

from tessera.agent.health.marks import Probed, ProbeResult
from tessera.agent.health.policy import RecoveryAction
from tessera.nvml.errors import GpuLost, NvmlError
from tessera.nvml.interface import GpuUuid
from tessera.nvml.worker import AsyncNvml

#: Seconds that a card has to answer. A busy card answers within milliseconds, one whose driver resets it in seconds.
PATIENCE = 10.0


async def probe(
    hardware: AsyncNvml, gpu: GpuUuid, *, recovery: RecoveryAction | None = None, patience: float = PATIENCE
) -> Probed:
    """How a card answers.

    Args:
        hardware: the node's cards.
        gpu: which.
        recovery: the driver's verdict on it, if it was read.
        patience: seconds after which it counts as failed.
    """
    try:
        async with asyncio.timeout(patience):
            await hardware.memory(gpu)
    except TimeoutError:
        return Probed(gpu=gpu, result=ProbeResult.FAILED, text=f"no answer within {patience:g} s")
    except GpuLost as error:
        return Probed(gpu=gpu, result=ProbeResult.LOST, text=str(error))
    except NvmlError as error:
        return Probed(gpu=gpu, result=ProbeResult.FAILED, text=str(error))
    return Probed(gpu=gpu, result=ProbeResult.CLEAN, recovery=recovery)
