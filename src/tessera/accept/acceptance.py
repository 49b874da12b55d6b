"""Accepts the cards of the machine on which this runs: reads, judges, and makes the trials that were asked for.

All facts of one machine are read in the order that lets values be compared: NVML, ``nvidia-smi``, NVML again.

Every call of the interface to NVML that changes nothing is made on every card, and timed. The calls are those of the
protocol :class:`~tessera.nvml.interface.Nvml` itself, so a new one is made without a change here. A call's parameters
decide what it is about: the machine, a card, a pair of cards, a MIG device or an instance. A call whose name begins
with one of :data:`CHANGES` changes the machine and is never made.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from tessera.accept.checks import Finding, Status, judge_all, name_finding
from tessera.accept.cuda import CudaError, load_cuda
from tessera.accept.document import IDENTIFIED, Document
from tessera.accept.facts import CallResult, Facts, NodeFacts, Outcome
from tessera.accept.machine_files import FactError, MachineFiles, host_facts
from tessera.accept.mig_trial import MigTrial, MigTrialError, MigTrier, judge_trial
from tessera.accept.preflight import preflight_lines, run_preflight
from tessera.agent.health.repairs import failed
from tessera.api.nodes.preflights import CardPreflight, Preflight
from tessera.clock import Clock
from tessera.nvml.errors import NotSupported, NvmlError
from tessera.nvml.interface import GpuInfo, GpuInstance, MigUuid, Nvml
from tessera.nvml.simulated.simulated_machine import SimulatedMachine
from tessera.text import count_noun, one_line

#: First words of the calls that change cards, or end the session.
CHANGES = ("set", "create", "destroy", "reset", "close")
#: Most characters of an error that are kept.
_TEXT = 300
#: Arguments of the calls that are about the whole machine.
_MACHINE: Sequence[Mapping[str, Any]] = ({}, {"seconds": 0.0}, {"operation": "devices"})


class _Subject(NamedTuple):
    """What a call can be about: its arguments, the card, and the arguments that the result names."""

    arguments: Mapping[str, Any]
    card: int | None = None
    shown: Mapping[str, str | int | float] = {}


def reading_calls(protocol: type) -> list[str]:
    """Names of the protocol's calls that change nothing, in its order."""
    names = [name for name, member in vars(protocol).items() if inspect.isfunction(member) and name[0] != "_"]
    return [name for name in names if name.partition("_")[0] not in CHANGES]


class CallReader:
    """Makes calls and times them.

    Args:
        nvml: the cards.
        now: seconds that never run backwards.
        skip: calls that are not made, and why.
        protocol: the calls.
    """

    def __init__(
        self,
        nvml: Nvml,
        now: Callable[[], float],
        *,
        skip: Mapping[str, str] | None = None,
        protocol: type = Nvml,
    ) -> None:
        self._nvml, self._now, self._skip = nvml, now, skip or {}
        self._protocol = protocol

    def read_all(self, cards: Sequence[GpuInfo]) -> Iterator[CallResult]:
        """Makes every call: on the machine, and on each card that can be read."""
        subjects = [_Subject(each) for each in _MACHINE]
        for card in cards:
            if card.readable:
                subjects += _about_card(card, cards, self._instances(card))
        for name in reading_calls(self._protocol):
            yield from self._read_each(name, subjects, cards)

    def read(self, name: str, card: GpuInfo) -> CallResult:
        """Makes one call on a card."""
        return self._call(name, _Subject({"gpu": card.uuid}, card.index))

    def _instances(self, card: GpuInfo) -> Sequence[GpuInstance]:
        try:
            return self._nvml.instances(card.uuid)
        except NvmlError:  # the call's own result tells it
            return ()

    def _read_each(self, name: str, subjects: Sequence[_Subject], cards: Sequence[GpuInfo]) -> Iterator[CallResult]:
        wanted = _parameters(self._protocol, name)
        found = [each for each in subjects if _fits(each, wanted)]
        if not any(each.arguments.keys() == wanted.keys() for each in [*subjects, *_EXAMPLES]):
            missing = ", ".join(wanted)
            text = f"the acceptance does not know what to pass as {missing}; add it to tessera.accept.acceptance"
            yield CallResult(call=name, outcome=Outcome.ERROR, text=text)
            return
        for each in found:
            yield self._call(name, each)
        if wanted and not _is_machine(wanted):
            asked = {each.card for each in found}
            for card in cards:
                if card.index not in asked:
                    yield CallResult(call=name, card=card.index, outcome=Outcome.ABSENT, text=_nothing_to_ask(card))

    def _call(self, name: str, subject: _Subject) -> CallResult:
        made: dict[str, Any] = {"call": name, "card": subject.card, "arguments": subject.shown}
        if name in self._skip:
            return CallResult(outcome=Outcome.ABSENT, text=self._skip[name], **made)
        began = self._now()
        try:
            answer = getattr(self._nvml, name)(*map(subject.arguments.__getitem__, _parameters(self._protocol, name)))
        except NvmlError as error:
            absent = isinstance(error, NotSupported)
            made |= {"outcome": Outcome.ABSENT if absent else Outcome.ERROR, "code": error.code}
            made["text"] = one_line(error, _TEXT)
        else:
            made |= {"outcome": Outcome.VALUE, "value": msgspec.to_builtins(answer, str_keys=True)}
        return CallResult(milliseconds=round((self._now() - began) * 1000, 3), **made)


def _about_card(card: GpuInfo, cards: Sequence[GpuInfo], instances: Sequence[GpuInstance]) -> Iterator[_Subject]:
    """Everything on a card that a call can be about."""
    yield _Subject({"gpu": card.uuid}, card.index)
    yield _Subject({"device": card.uuid}, card.index)
    for other in cards:
        if other.index != card.index and other.readable:
            yield _Subject({"gpu": card.uuid, "other": other.uuid}, card.index, {"other": other.index})
    for instance in instances:
        place = {"gi_id": instance.gi_id}
        yield _Subject({"gpu": card.uuid, **place}, card.index, place)
        for compute in instance.compute_instances:
            inside = {**place, "ci_id": compute.ci_id}
            yield _Subject({"gpu": card.uuid, **inside}, card.index, inside)
            yield _Subject({"device": compute.mig_uuid}, card.index, {"device": compute.mig_uuid})


#: The parameters of every subject that a machine may lack.
_EXAMPLES = tuple(
    _Subject(dict.fromkeys(names))
    for names in (("gpu",), ("device",), ("gpu", "other"), ("gpu", "gi_id"), ("gpu", "gi_id", "ci_id"))
)


def _parameters(protocol: type, name: str) -> dict[str, Any]:
    """Name and annotation of each parameter of a call."""
    parameters = inspect.signature(getattr(protocol, name)).parameters
    return {each.name: each.annotation for each in parameters.values() if each.name != "self"}


def _fits(subject: _Subject, wanted: Mapping[str, Any]) -> bool:
    if subject.arguments.keys() != wanted.keys():
        return False
    # A call on a MIG device alone is not made on a card.
    return wanted.get("device") is not MigUuid or "device" in subject.shown


def _is_machine(wanted: Mapping[str, Any]) -> bool:
    return any(each.keys() == wanted.keys() for each in _MACHINE)


def _nothing_to_ask(card: GpuInfo) -> str:
    if not card.readable:
        return card.problem
    return "the card has no MIG device now" if card.mig_enabled else "not for this card: it has no MIG device, no peer"


T = TypeVar("T")

#: Why a simulated machine lacks the facts of files and tools.
_SIMULATED = "the cards are simulated"
#: Calls that are not made on simulated cards, and why.
_NOT_SIMULATED = {"wait_event": "on simulated cards the event would be taken from the agent"}


def read_facts(
    nvml: Nvml,
    clock: Clock,
    *,
    files: MachineFiles | None,
    node: NodeFacts | None = None,
    node_absent: str = "no node is named, so no cluster was asked",
) -> Facts:
    """Reads a machine; nothing on it is changed.

    Args:
        nvml: its cards, open.
        clock: the time.
        files: where the machine's files are; ``None`` for simulated cards, which have none.
        node: what the cluster says of the node.
        node_absent: why there is no ``node``.

    Raises:
        NvmlError: the cards cannot even be listed.
    """
    taken = clock.now()
    reader = CallReader(nvml, clock.monotonic, skip={} if files is not None else _NOT_SIMULATED)
    cards = nvml.devices()
    calls: list[CallResult] = list(reader.read_all(cards))
    facts = _Reading({} if node is not None else {"node": node_absent})
    smi = facts.read("smi", files, lambda each: each.smi_log())
    calls += [reader.read("measure", card) for card in cards if card.readable]
    return Facts(
        simulated=files is None,
        taken=taken,
        host=host_facts(),
        cards=tuple(cards),
        calls=tuple(calls),
        pci=facts.read("pci", files, lambda each: each.pci_functions()),
        device_minors=facts.read("device_minors", files, lambda each: each.device_minors()),
        driver=facts.read("driver", files, lambda each: each.driver_versions(_driver_version(nvml))),
        nvlink_off=files is not None and files.nvlink_off(),
        smi=smi,
        runtime=facts.read("runtime", files, lambda each: each.nvidia_runtime()),
        node=node,
        absent=facts.absent,
    )


class _Reading:
    """Reads facts, and keeps why one is absent."""

    def __init__(self, absent: Mapping[str, str]) -> None:
        self.absent = dict(absent)

    def read(self, name: str, files: MachineFiles | None, read: Callable[[MachineFiles], T]) -> T | None:
        if files is None:
            self.absent[name] = _SIMULATED
            return None
        try:
            return read(files)
        except FactError as error:
            self.absent[name] = str(error)
            return None


def _driver_version(nvml: Nvml) -> str:
    with suppress(NvmlError):
        return nvml.driver_version()
    return ""


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
