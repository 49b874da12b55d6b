"""The steps of a validation: the cards answer NVML, then a program computes on them; each step leaves its marker.

Both use the devices and libraries that the container runtime gave to this process, as in any other container. The
markers of an earlier validation are removed first: a failed validation leaves none.

A card in MIG mode without instances has no device to compute on. If all cards are like that, CUDA refuses for that
reason alone; this counts as validated, and the output says so.
"""

from collections.abc import Callable
from typing import Any

from tessera.accept.cuda import COUNT, NO_DEVICE, Cuda, CudaError, add_vectors, load_cuda
from tessera.agent.base.node_files import MarkerFiles
from tessera.api.nodes.node_marks import CUDA_READY, TOOLKIT_READY
from tessera.nvml.interface import GpuInfo, Nvml
from tessera.nvml.real.real_nvml import RealNvml

#: Prints one line about a finished step.
Say = Callable[[str], None]


class ValidationFailed(Exception):  # noqa: N818 - says what happened
    """The cards cannot be used; the text names the step."""


def validate(
    markers: MarkerFiles,
    say: Say,
    *,
    open_nvml: Callable[[], Nvml] = RealNvml,
    load: Callable[[], Any] = load_cuda,
) -> None:
    """Validates a node's cards and leaves the markers.

    Args:
        markers: the node's marker files.
        say: prints each finished step.
        open_nvml: opens NVML.
        load: loads ``libcuda``.

    Raises:
        ValidationFailed: a card does not answer, or there is none.
        NvmlError: NVML cannot be opened, or a card refuses.
        CudaError: a program cannot compute.
        OSError: a marker cannot be removed or written.
    """
    markers.remove(TOOLKIT_READY, CUDA_READY)
    driver = markers.about_driver()
    nvml = open_nvml()
    try:
        cards, usable = ask_cards(nvml, say)
    finally:
        nvml.close()
    _leave(markers, TOOLKIT_READY, driver, say)
    compute(load(), say, expected=usable, cards=cards)
    _leave(markers, CUDA_READY, driver, say)


def ask_cards(nvml: Nvml, say: Say) -> tuple[int, bool]:
    """Reads every card; returns the number of cards, and true if CUDA has a device to compute on.

    Raises:
        ValidationFailed: there is no card, or a card cannot be read.
        NvmlError: a card refuses.
    """
    cards = nvml.devices()
    if not cards:
        raise ValidationFailed("NVML: the driver has no card")
    for card in cards:
        if not card.readable:
            raise ValidationFailed(f"NVML: card {card.index} ({card.uuid}): {card.problem}")
        nvml.memory(card.uuid)
        say(f"NVML: card {card.index} {card.name} {card.uuid} answers, {card.memory_mib} MiB")
    say(f"NVML: driver {nvml.driver_version()}, {len(cards)} cards")
    return len(cards), any(_can_compute(nvml, card) for card in cards)


def _can_compute(nvml: Nvml, card: GpuInfo) -> bool:
    return not card.mig_enabled or any(each.compute_instances for each in nvml.instances(card.uuid))


def compute(library: Any, say: Say, *, expected: bool, cards: int) -> None:
    """Adds vectors on every device that CUDA shows.

    Raises:
        CudaError: a step failed, or there is no device though there should be one.
    """
    try:
        cuda = Cuda(library)
        devices = cuda.count()
    except CudaError as error:
        if error.code != NO_DEVICE or expected:
            raise
        devices = 0
    if not devices and expected:
        raise CudaError("cuDeviceGetCount: no device, though NVML has cards that can be computed on", NO_DEVICE)
    if not devices:
        say(f"CUDA: all {cards} cards are in MIG mode and none is cut, so no program was run on them")
    for device in range(devices):
        add_vectors(cuda, device)
        say(f"CUDA {cuda.version()}: device {device} added {COUNT} numbers and all sums are right")


def _leave(markers: MarkerFiles, name: str, driver: str, say: Say) -> None:
    if markers.write(name, driver):
        say(f"{name}: written to {markers.folder}")
    else:
        say(f"{name}: not written, {markers.folder} is not there")
