"""The preflight of cards: every test on every card, judged by the board's figures and by the node's other cards.

:func:`run_preflight` computes in this process, so it belongs into a process of its own
(:mod:`tessera.agent.health.repairs`): a card that fails a kernel spoils the process's CUDA, and a context
holds its card.

Rates come before the test of the memory: for half a second after much memory was freed, the driver clears it, and
copies to the card take twice as long (seen on an H200).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.accept.card_tests import (
    Effort,
    check_memory,
    diagnose_card,
    has_tool,
    neighbours,
    time_all_reduce,
    time_host_copies,
    time_memory,
    time_peer_copy,
    time_product,
)
from tessera.accept.cuda import NO_DEVICE, Cuda, CudaContext, CudaError, add_vectors
from tessera.accept.figures import FIGURES, PCIE_SOURCE, compare_with_others, judge
from tessera.api.nodes.preflights import CardPreflight, Preflight, write_rate
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo, GpuUuid, Nvml
from tessera.text import one_line

#: Most characters of an error that a result keeps.
_ERROR = 300


class _Rates(msgspec.Struct):
    """What was measured of a card."""

    info: GpuInfo
    device: int
    peer: GpuInfo | None = None
    error: str = ""
    memory: int = 0
    rates: dict[str, float] = {}
    tool: str = "tessera"


def run_preflight(
    nvml: Nvml, library: Any, *, only: GpuUuid | None = None, effort: Effort | None = None, tools: bool = True
) -> Preflight:
    """Tests the cards that CUDA shows; with ``only``, one of them, and no way between cards.

    Args:
        nvml: the cards, open.
        library: ``libcuda``, loaded.
        only: the card to test; ``None`` for all.
        effort: how much is done.
        tools: NVIDIA's diagnostics run too, where the image has them.

    Raises:
        CudaError: CUDA cannot be initialised, or the card is not there.
        NvmlError: the cards cannot be listed.
    """
    effort = effort or Effort()
    infos = {card.uuid: card for card in nvml.devices() if only in (None, card.uuid)}
    if only is not None and not infos:
        raise CudaError(f"{only}: NVML does not list this card")
    cuda, devices = _find_devices(library)
    tested, skipped = [], []
    for uuid, info in infos.items():
        error, reason = _skip_reason(nvml, info, devices)
        if error or reason:
            if only is not None:  # this card was to be tested: it may not take work without
                error, reason = error or reason, ""
            named = {"uuid": uuid, "index": info.index, "product": info.name}
            skipped.append(msgspec.convert(named | {"error": error, "skipped": reason}, CardPreflight))
        elif cuda is not None:
            tested.append(_time_card(cuda, devices[uuid], info, effort))
    if only is None and cuda is not None:
        _time_ways(cuda, tested, effort)
    for each in tested:
        if not each.error and cuda is not None:
            _test_memory(cuda, each, effort)
    for each in tested:
        if tools and not each.error and has_tool("dcgmi"):
            each.tool, each.error = "dcgm", diagnose_card(each.info)
    rate, error = _all_reduce(tested) if only is None and tools else (0.0, "")
    results = [*skipped, *_judge_all(nvml, tested)]
    cards = tuple(sorted(results, key=lambda each: each.index))
    return Preflight(cards=cards, all_reduce=rate, all_reduce_error=error)


#: What the quick test does: its rates are shown and not judged, since a part of a card has no figures.
QUICK = Effort(chunk=128 << 20, copy=64 << 20, repeats=3)


def run_quick(nvml: Nvml, library: Any, card: GpuUuid, *, effort: Effort = QUICK) -> Preflight:
    """Tests the only device that CUDA shows, the card or a MIG device of it: computations, memory, copies.

    Args:
        nvml: the cards, open.
        library: ``libcuda``, loaded.
        card: the device's card.
        effort: how much is done.

    Raises:
        CudaError: CUDA cannot be initialised, or shows another number of devices.
        NvmlError: the cards cannot be listed.
    """
    info = next((each for each in nvml.devices() if each.uuid == card), None)
    if info is None:
        raise CudaError(f"{card}: NVML does not list this card")
    cuda = Cuda(library)
    if (count := cuda.count()) != 1:
        raise CudaError(f"CUDA shows {count} devices instead of the one that CUDA_VISIBLE_DEVICES names")
    used = [] if info.mig_enabled else nvml.processes(card)
    named = {"uuid": card, "index": info.index, "product": info.name}
    if used:
        skipped = f"process {used[0].pid} uses the card"
        return Preflight(cards=(msgspec.convert(named | {"skipped": skipped}, CardPreflight),))
    found = _Rates(info=info, device=0)
    try:
        add_vectors(cuda, 0)
        with CudaContext(cuda, 0) as context:
            found.rates["host_to_card"], found.rates["card_to_host"] = time_host_copies(context, effort)
            found.memory = check_memory(context, effort)
    except CudaError as error:
        found.error = one_line(error, _ERROR)
    measures = tuple(judge(test, value, 0.0, "") for test, value in found.rates.items())
    result = msgspec.convert(named | {"error": found.error, "memory": found.memory}, CardPreflight)
    return Preflight(cards=(msgspec.structs.replace(result, measures=measures),))


def _find_devices(library: Any) -> tuple[Cuda | None, dict[GpuUuid, int]]:
    """CUDA and its devices; none if it says that there is no device, as with all cards in MIG mode."""
    try:
        cuda = Cuda(library)
        return cuda, {cuda.uuid(device): device for device in range(cuda.count())}
    except CudaError as error:
        if error.code != NO_DEVICE:
            raise
        return None, {}


def _skip_reason(nvml: Nvml, info: GpuInfo, devices: Mapping[GpuUuid, int]) -> tuple[str, str]:
    """Why a card cannot be tested: an error, or a reason that is none."""
    if not info.readable:
        return info.problem, ""
    if info.mig_enabled:
        return "", "the card is in MIG mode; figures are of whole cards"
    if info.uuid not in devices:
        return "NVML lists the card and CUDA does not", ""
    try:
        used = nvml.processes(info.uuid)
    except NvmlError as error:
        return one_line(error, _ERROR), ""
    # The tests fill the card's memory.
    return "", f"process {used[0].pid} uses the card" if used else ""


def _time_card(cuda: Cuda, device: int, info: GpuInfo, effort: Effort) -> _Rates:
    found = _Rates(info=info, device=device)
    try:
        add_vectors(cuda, device)
        with CudaContext(cuda, device) as card:
            found.rates["memory_bandwidth"] = time_memory(card, effort)
            found.rates["product"] = time_product(card, effort)
            found.rates["host_to_card"], found.rates["card_to_host"] = time_host_copies(card, effort)
    except CudaError as error:
        found.error = one_line(error, _ERROR)
    return found


def _test_memory(cuda: Cuda, found: _Rates, effort: Effort) -> None:
    try:
        with CudaContext(cuda, found.device) as card:
            found.memory = check_memory(card, effort)
    except CudaError as error:
        found.error = one_line(error, _ERROR)


def _time_ways(cuda: Cuda, tested: Sequence[_Rates], effort: Effort) -> None:
    """Times the copy of each card that works to the next one.

    A copy that fails is the fault of a card of which every copy fails; if neither or both are such, of both.
    """
    able = [each for each in tested if not each.error]
    failed: dict[tuple[int, int], str] = {}
    works: set[int] = set()
    for one, other in neighbours(len(able)):
        try:
            with CudaContext(cuda, able[one].device) as card, CudaContext(cuda, able[other].device) as peer:
                rate = time_peer_copy(card, peer, effort)
        except CudaError as error:
            indexes = f"card {able[one].info.index} to card {able[other].info.index}"
            failed[one, other] = one_line(f"copy from {indexes}: {error}", _ERROR)
            continue
        works |= {one, other}
        if rate is not None:
            able[one].rates["card_to_card"], able[one].peer = rate, able[other].info
    for pair, text in failed.items():
        blamed = [each for each in pair if each not in works] or list(pair)
        for each in blamed:
            able[each].error = able[each].error or text


def _all_reduce(tested: Sequence[_Rates]) -> tuple[float, str]:
    """NCCL's rate over all cards that work, and why it is not known; both empty without its test or a second card."""
    able = sum(not each.error for each in tested)
    if able < 2 or not has_tool("all_reduce_perf"):
        return 0.0, ""
    found = time_all_reduce(able)
    return (found, "") if isinstance(found, float) else (0.0, found)


def _judge_all(nvml: Nvml, tested: Sequence[_Rates]) -> Iterator[CardPreflight]:
    for each in tested:
        figures = _figures(nvml, each.info, each.peer)
        measures = []
        for test, value in each.rates.items():
            measure = judge(test, value, *figures.get(test, (0.0, "")))
            same = [other.rates[test] for other in tested if other.info.name == each.info.name and test in other.rates]
            measures.append(compare_with_others(measure, same))
        yield CardPreflight(
            uuid=each.info.uuid,
            index=each.info.index,
            product=each.info.name,
            error=each.error,
            memory=each.memory,
            measures=tuple(measures),
            tool=each.tool,
        )


def _figures(nvml: Nvml, info: GpuInfo, peer: GpuInfo | None) -> dict[str, tuple[float, str]]:
    """The figure of each test and its source; only those that are known."""
    found: dict[str, tuple[float, str]] = {}
    board = FIGURES.get(info.name)
    if board is not None:
        found = {"memory_bandwidth": (board.memory, board.source), "product": (board.fp32, board.source)}
    try:
        pcie, links = nvml.attributes(info.uuid).pcie_bandwidth, nvml.nvlinks(info.uuid)
    except NvmlError:
        return found
    found |= dict.fromkeys(("host_to_card", "card_to_host"), (pcie, PCIE_SOURCE))
    if board is not None and board.links and peer is not None:
        # In one direction, over the links that lead there. A link that is down is no slow copy: it is found elsewhere.
        there = sum(link.switch or link.remote_pci == peer.pci_bus_id for link in links)
        found["card_to_card"] = (board.nvlink / 2 * min(there, board.links) / board.links, board.source)
    return found


def preflight_lines(found: Preflight) -> Iterator[str]:
    """The result as text: a line for each card with its rates, and below it what is not well."""
    for card in found.cards:
        rates = ", ".join(f"{each.test} {write_rate(each.test, each.value)}" for each in card.measures)
        memory = f"{card.memory / 2**30:.3g} GiB of memory tested" if card.memory else ""
        parts = ", ".join(filter(None, (card.skipped, memory, rates))) or "not tested"
        yield f"card {card.index} {card.product}: {parts}"
        yield from (f"  failed: {text}" for text in card.findings)
    if found.all_reduce:
        yield f"NCCL all-reduce over {len(found.cards)} cards: {write_rate('', found.all_reduce)} a card"
    if found.all_reduce_error:
        yield f"failed: {found.all_reduce_error}"
