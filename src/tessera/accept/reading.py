"""Reads all facts of one machine, in the order that lets values be compared: NVML, ``nvidia-smi``, NVML again.

Every call of the interface to NVML that changes nothing is made on every card, and timed. The calls are those of the
protocol :class:`~tessera.nvml.interface.Nvml` itself, so a new one is made without a change here. A call's parameters
decide what it is about: the machine, a card, a pair of cards, a MIG device or an instance. A call whose name begins
with one of :data:`CHANGES` changes the machine and is never made.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from tessera.accept.facts import CallResult, Facts, NodeFacts, Outcome
from tessera.accept.machine_files import FactError, MachineFiles, host_facts
from tessera.clock import Clock
from tessera.nvml.errors import NotSupported, NvmlError
from tessera.nvml.interface import GpuInfo, GpuInstance, MigUuid, Nvml
from tessera.text import one_line

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
            text = f"the acceptance does not know what to pass as {missing}; add it to tessera.accept.reading"
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
