"""Accepts the cards of the machine on which this runs: reads, judges, and makes the trials that were asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tessera.accept.checks import Finding, Status, judge_all, name_finding
from tessera.accept.cuda import CudaError, load_cuda
from tessera.accept.document import IDENTIFIED, Document
from tessera.accept.machine_files import MachineFiles
from tessera.accept.mig_trial import MigTrial, MigTrialError, MigTrier, judge_trial
from tessera.accept.preflight import preflight_lines, run_preflight
from tessera.accept.reading import read_facts
from tessera.agent.health.preflight_runner import failed
from tessera.api.nodes.preflights import CardPreflight, Preflight
from tessera.clock import Clock
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuInfo, Nvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.text import count_noun


class Trials(msgspec.Struct, frozen=True, kw_only=True):
    """The tests that a user asks for in addition to the readings.

    Attributes:
        mig: index or UUID of the card on which MIG is tried; empty for none.
        compute: the preflight's computations run on cards that nobody uses.
        folder: where a trial keeps how the card was.
    """

    mig: str = ""
    compute: bool = False
    folder: Path = Path("/var/lib/tessera")


def accept_machine(
    nvml: Nvml,
    clock: Clock,
    files: MachineFiles | None,
    trials: Trials,
    *,
    say: Callable[[str], None],
    load: Callable[[], Any] = load_cuda,
) -> Document:
    """The document of the machine, with its names.

    Args:
        nvml: the cards, open.
        clock: the time.
        files: where the machine's files are; ``None`` for simulated cards.
        trials: what is done besides reading.
        say: told what a trial does to a card.
        load: loads ``libcuda``.

    Raises:
        NvmlError: the cards cannot be listed.
        MigTrialError: the trial of MIG cannot begin, or its card could not be restored.
    """
    trier = MigTrier(nvml, clock.monotonic, trials.folder, say)
    if trials.mig:
        trier.restore()
    facts = read_facts(nvml, clock, files=files)
    checks = judge_all(facts)
    preflight = _compute(nvml, load, facts.cards) if trials.compute else None
    if preflight is not None:
        checks.append(name_finding("compute", judge_preflight(preflight)))
    trial: MigTrial | None = None
    if trials.mig:
        trial = trier.run(find_card(facts.cards, trials.mig))
        checks.append(name_finding("mig", judge_trial(trial)))
    return Document(
        facts=facts,
        checks=tuple(checks),
        anonymous=False,
        contains=IDENTIFIED,
        mig=trial,
        preflight=preflight,
    )


def find_card(cards: tuple[GpuInfo, ...], name: str) -> GpuInfo:
    """The card of an index or a UUID.

    Raises:
        MigTrialError: there is none.
    """
    for card in cards:
        if name in (str(card.index), card.uuid):
            return card
    raise MigTrialError(f"--mig {name}: no such card; there are {', '.join(str(card.index) for card in cards)}")


def _compute(nvml: Nvml, load: Callable[[], Any], cards: tuple[GpuInfo, ...]) -> Preflight:
    """The preflight; if CUDA cannot be used at all, that is every card's error."""
    if isinstance(nvml, SimulatedMachine):
        return Preflight(cards=tuple(_compute_simulated(nvml, card) for card in cards), simulated=True)
    try:
        return run_preflight(nvml, load())
    except CudaError as error:
        return Preflight(cards=tuple(failed(card, str(error)) for card in cards))


def _compute_simulated(machine: SimulatedMachine, card: GpuInfo) -> CardPreflight:
    try:
        machine.compute(card.uuid)
    except NvmlError as error:
        return failed(card, str(error), tool="simulated")
    return CardPreflight(uuid=card.uuid, index=card.index, product=card.name, tool="simulated")


def judge_preflight(found: Preflight) -> Finding:
    """Every card that nobody uses computes, and none is too slow."""
    tested = [card for card in found.cards if not card.skipped]
    skipped = [f"card {card.index}: {card.skipped}" for card in found.cards if card.skipped]
    if not tested:
        return Finding(Status.ABSENT, "no card could be tested", skipped)
    if found.simulated and not found.findings:
        return Finding(Status.ABSENT, "the cards are simulated: nothing was computed", skipped)
    well = sum(not card.findings for card in tested)
    lines = [*found.findings, *skipped, *preflight_lines(found)]
    text = f"{well} of {count_noun(len(tested), 'card')} compute as they should"
    return Finding(Status.FAILED if found.findings else Status.OK, text, lines)
