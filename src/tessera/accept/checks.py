"""Judges facts: each check is a function from facts to a result. :data:`CHECKS` is the whole list.

A check fails only for what was read. A fact that is missing makes a check absent, with the reason. Only ``count_cards``
does without one, the node's capacity: it then compares four numbers instead of five.

Checks with two sources for one value compare what NVML says with what ``nvidia-smi`` shows of the same card in the same
second.

A card was measured before and after the tool ran. Its value agrees if it is within 5 % of the range between the two
measurements; a number that the tool rounds may also differ by its last digit.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from tessera.accept.facts import CallResult, Facts, Outcome, PciFunction, SmiCard
from tessera.accept.figures import FIGURES
from tessera.nvml.interface import GpuInfo
from tessera.nvml.measurements import Quantity
from tessera.text import count_noun, list_names, percent

#: The share by which the two may differ.
TOLERANCE = 0.05
_MIB, _MHZ = 1024.0 * 1024.0, 1e6
#: Factors to base units of the units that the tool prints.
_UNITS: Mapping[str, float] = {"": 1.0, "MiB": _MIB, "MHz": _MHZ, "C": 1.0, "W": 1.0, "%": 0.01}
_NUMBER = re.compile(r"(-?\d+)(?:\.(\d+))? ?(\S*)")
_WORDS = {"Yes": 1.0, "No": 0.0}


class _Shown(NamedTuple):
    """A number of the tool in base units, and what its last digit is worth."""

    value: float
    digit: float


class Comparison(NamedTuple):
    """A quantity of one card; ``text`` says both values."""

    card: int
    quantity: str
    agrees: bool
    text: str


def compare_with_smi(facts: Facts) -> Iterator[Comparison]:
    """Every quantity of every card that both NVML and ``nvidia-smi`` have."""
    logs = {_short(each.pci_bus_id): each for each in facts.smi or ()}
    for card in facts.cards:
        log = logs.get(_short(card.pci_bus_id))
        if log is None:
            yield Comparison(card.index, "card", False, "nvidia-smi does not list it")
            continue
        yield from _compare_identity(card, log)
        yield from _compare_quantities(facts, card, log)


def _compare_identity(card: GpuInfo, log: SmiCard) -> Iterator[Comparison]:
    own = {"product_name": card.name, "uuid": card.uuid, "minor_number": str(card.minor)}
    for name, value in own.items():
        if name in log.values:
            shown = log.values[name]
            yield Comparison(card.index, name, shown == value, f"NVML {value}, nvidia-smi {shown}")


def _compare_quantities(facts: Facts, card: GpuInfo, log: SmiCard) -> Iterator[Comparison]:
    measured = measurements(facts, card.index)
    for quantity in Quantity:
        name = quantity.value
        values = [each[name] for each in measured if name in each]
        shown = _shown(log.values.get(name, ""))
        if values and shown is not None:
            text = f"NVML {_range(values)}, nvidia-smi {log.values[name]}"
            yield Comparison(card.index, name, _agrees(values, shown), text)


def measurements(facts: Facts, card: int) -> list[Mapping[str, float]]:
    """The values of a card's measurements, in order, by the names of quantities."""
    found: list[Mapping[str, float]] = []
    for call in facts.of_card("measure", card):
        values = call.value.get("values") if isinstance(call.value, Mapping) else None
        if isinstance(values, Mapping):
            found.append({name: value for name, value in values.items() if isinstance(value, (int, float))})
    return found


def _agrees(values: Sequence[float], shown: _Shown) -> bool:
    room = max(abs(shown.value) * TOLERANCE, shown.digit)
    return min(values) - room <= shown.value <= max(values) + room


def _shown(text: str) -> _Shown | None:
    """The number of an element; ``None`` if it has none, or a unit that is not known."""
    if text in _WORDS:
        return _Shown(_WORDS[text], 0.0)
    match = _NUMBER.fullmatch(text)
    if match is None or match[3] not in _UNITS:
        return None
    factor = _UNITS[match[3]]
    return _Shown(float(f"{match[1]}.{match[2] or 0}") * factor, 10.0 ** -len(match[2] or "") * factor)


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _short(address: str) -> str:
    """A PCI address with the domain of four digits: NVML and the tool write eight, the kernel four."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def pci_address(card: GpuInfo) -> str:
    """The card's address as the kernel writes it."""
    return _short(card.pci_bus_id)


#: Most lines of evidence of one check in the document.
_EVIDENCE = 200
#: The resource that counts whole cards.
_WHOLE = "nvidia.com/gpu"
#: Values of the label of shares on a node whose cards are not shared.
_NO_SHARES = ("", "0", "1")


class Status(Enum):
    """The result of a check."""

    OK = "ok"
    FAILED = "failed"
    #: It could not be judged, or does not apply; the text says why.
    ABSENT = "absent"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check.

    Attributes:
        name: the check.
        status: whether all is well.
        text: the finding in one sentence.
        evidence: one line for each thing that is not well, or that could not be read.
    """

    name: str
    status: Status
    text: str
    evidence: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """What a check function returns; the table adds its name."""

    status: Status
    text: str
    evidence: Sequence[str] = ()


def judge_all(facts: Facts) -> list[CheckResult]:
    """Every check of the table, in its order."""
    return [name_finding(name, judge(facts)) for name, judge in CHECKS.items()]


def name_finding(name: str, finding: Finding) -> CheckResult:
    """The result of a check, with bounded evidence."""
    evidence = list(finding.evidence)
    if len(evidence) > _EVIDENCE:
        evidence[_EVIDENCE:] = [f"and {len(evidence) - _EVIDENCE} more"]
    return CheckResult(name=name, status=finding.status, text=finding.text, evidence=tuple(evidence))


def count_cards(facts: Facts) -> Finding:
    """Cards of NVML, readable ones, PCI functions, device files and the node's capacity: the same number of each."""
    counts: dict[str, int] = {
        "NVML": len(facts.cards),
        "readable": sum(card.readable for card in facts.cards),
    }
    if facts.pci is not None:
        counts["PCI functions"] = len(facts.pci)
    if facts.device_minors is not None:
        counts["device files"] = len(facts.device_minors)
    missing = [f"{name}: {facts.absent[name]}" for name in ("pci", "device_minors") if name in facts.absent]
    capacity, reason = _capacity(facts)
    if capacity is not None:
        counts["capacity"] = capacity
    missing += [f"capacity: {reason}"] if reason else []
    text = ", ".join(f"{name} {number}" for name, number in counts.items())
    lost = [f"card {card.index}: {card.problem}" for card in facts.cards if not card.readable]
    same = len(set(counts.values())) == 1 and facts.cards
    return Finding(Status.OK if same else Status.FAILED, text if facts.cards else "no card", [*lost, *missing])


def _capacity(facts: Facts) -> tuple[int | None, str]:
    """The number of cards in the node's capacity, or why it has none."""
    if facts.node is None:
        return None, facts.absent.get("node", "the node was not read")
    amounts = {name: amount for name, amount in facts.node.capacity.items() if amount != "0"}
    if others := sorted(amounts.keys() - {_WHOLE}):
        return None, f"the node offers {list_names(others)}, which do not count cards"
    if facts.node.shares not in _NO_SHARES:
        return None, f"the node offers {facts.node.shares} shares of each card, which do not count cards"
    amount = amounts.get(_WHOLE, "0")
    return (int(amount), "") if amount.isdigit() else (None, f"the amount {amount[:20]!r} of {_WHOLE} is no number")


def check_calls(facts: Facts) -> Finding:
    """Every call of the interface gave a value, or said that the card does not have it."""
    errors = [_call_line(each) for each in facts.calls if each.outcome is Outcome.ERROR]
    absent = sum(each.outcome is Outcome.ABSENT for each in facts.calls)
    slowest = max(facts.calls, key=lambda each: each.milliseconds)
    text = (
        f"{len(facts.calls)} calls: {len(facts.calls) - absent - len(errors)} values, {absent} absent,"
        f" {count_noun(len(errors), 'error')}; the slowest, {slowest.call}, took {slowest.milliseconds:g} ms"
    )
    return Finding(Status.FAILED if errors else Status.OK, text, errors)


def _call_line(each: CallResult) -> str:
    where = "" if each.card is None else f" of card {each.card}"
    return f"{each.call}{where}: {each.text} (nvmlReturn_t {each.code})"


def check_driver(facts: Facts) -> Finding:
    """Library, kernel module and the node's label are of one driver."""
    if facts.driver is None:
        return _absent(facts, "driver")
    parts = {name: value for name, value in msgspec.structs.asdict(facts.driver).items() if value}
    if facts.node is not None and facts.node.driver_label:
        parts["label"] = facts.node.driver_label
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts.items())
    missing = [f"{name}: not read" for name, value in msgspec.structs.asdict(facts.driver).items() if not value]
    if len(parts) < 2:
        return Finding(Status.ABSENT, f"nothing to compare with: {text or 'no version was read'}", missing)
    return Finding(Status.OK if len(set(parts.values())) == 1 else Status.FAILED, text, missing)


def check_smi(facts: Facts) -> Finding:
    """Values of NVML and of ``nvidia-smi`` differ by at most 5 %."""
    if facts.smi is None:
        return _absent(facts, "smi")
    found = list(compare_with_smi(facts))
    wrong = [f"card {each.card}: {each.quantity}: {each.text}" for each in found if not each.agrees]
    text = f"{len(found) - len(wrong)} of {len(found)} values of NVML and nvidia-smi agree within {percent(TOLERANCE)}"
    return Finding(Status.FAILED if wrong or not found else Status.OK, text, wrong)


def check_pcie(facts: Facts) -> Finding:
    """Every card uses all lanes that it and its slot have; a lower generation counts only while the card is busy."""
    if facts.pci is None:
        return _absent(facts, "pci")
    functions = {each.address: each for each in facts.pci}
    links = {card.index: functions.get(pci_address(card)) for card in facts.cards}
    known = {index: link for index, link in links.items() if link is not None and link.most_lanes}
    if not known:
        return Finding(Status.ABSENT, "the kernel reports no link of a card (a virtual machine may hide it)")
    narrow = [f"card {index}: {_link_text(link)}" for index, link in known.items() if link.lanes < link.most_lanes]
    unknown = [f"card {index}: no link is reported" for index in links.keys() - known.keys()]
    kinds = sorted({f"generation {link.most_generation} x{link.most_lanes}" for link in known.values()})
    text = f"{len(known) - len(narrow)} of {len(known)} cards use all lanes: {list_names(kinds)}"
    return Finding(Status.FAILED if narrow else Status.OK, text, [*narrow, *unknown])


def _link_text(link: PciFunction) -> str:
    return f"{link.lanes} of {link.most_lanes} lanes, generation {link.generation} of {link.most_generation}"


def check_nvlinks(facts: Facts) -> Finding:
    """Each card has all NVLinks of its board up, and as many as its neighbours; cards in MIG mode have none."""
    counts: dict[str, dict[int, int]] = {}
    for card in facts.cards:
        for call in facts.of_card("nvlinks", card.index):
            if isinstance(call.value, Sequence) and not card.mig_enabled:
                counts.setdefault(card.name, {})[card.index] = len(call.value)
    if facts.nvlink_off:
        return Finding(Status.ABSENT, "the driver's parameter NvLinkDisable turns all NVLinks off")
    expected = {name: max(_board_links(name), *cards.values()) for name, cards in counts.items()}
    if not any(expected.values()):
        return Finding(Status.ABSENT, "no card has an NVLink that is up, and no board of these is known to have any")
    down = [
        f"card {index}: {number} of {expected[name]} NVLinks are up"
        for name, cards in counts.items()
        for index, number in cards.items()
        if number < expected[name]
    ]
    text = "; ".join(f"{name}: {number} NVLinks for each card" for name, number in expected.items())
    return Finding(Status.FAILED if down else Status.OK, text, down)


def _board_links(product: str) -> int:
    """NVLinks of the product's board; 0 if it has none, or is not known."""
    board = FIGURES.get(product)
    return 0 if board is None else board.links


def check_topology(facts: Facts) -> Finding:
    """Two cards meet at the same level of PCIe, whichever of them is asked."""
    levels = {
        (call.card, int(call.arguments["other"])): call.value
        for call in facts.calls
        if call.call == "common_ancestor" and call.outcome is Outcome.VALUE and call.card is not None
    }
    if not levels:
        return Finding(Status.ABSENT, "no pair of cards reports where it meets")
    wrong = [
        f"cards {one} and {other}: level {level} in one direction, {levels.get((other, one))} in the other"
        for (one, other), level in levels.items()
        if level != levels.get((other, one)) and one < other
    ]
    meet = ", ".join(sorted({str(each) for each in levels.values()}))
    text = f"{count_noun(len(levels) // 2, 'pair')} of cards, at the levels {meet}"
    return Finding(Status.FAILED if wrong else Status.OK, text, wrong)


def check_fabric(facts: Facts) -> Finding:
    """Either no card is in an NVLink fabric, or all are in the same one."""
    fabrics = {index: values.get("fabric") for index, values in _attributes(facts).items()}
    joined = {index: fabric for index, fabric in fabrics.items() if fabric}
    if not joined:
        return Finding(Status.ABSENT, "no card has joined an NVLink fabric")
    apart = [f"card {index}: not in the fabric" for index in fabrics.keys() - joined.keys()]
    cliques = {str(fabric) for fabric in joined.values()}
    text = f"{len(joined)} of {len(fabrics)} cards are in {count_noun(len(cliques), 'NVLink clique')}"
    return Finding(Status.FAILED if apart or len(cliques) > 1 else Status.OK, text, apart)


#: Counters of errors: above 0 something is to be done.
_BAD_COUNTS = (
    Quantity.ECC_UNCORRECTED,
    Quantity.ROW_REMAP_PENDING,
    Quantity.ROW_REMAP_FAILED,
    Quantity.SRAM_THRESHOLD_EXCEEDED,
)


def check_memory_errors(facts: Facts) -> Finding:
    """No uncorrected ECC error, no row that waits for a remap or could not be remapped, no SRAM past its threshold."""
    values = _last_measurements(facts)
    names = [each.value for each in _BAD_COUNTS]
    wrong = [
        f"card {index}: {name} {each[name]:g}" for index, each in values.items() for name in names if each.get(name)
    ]
    without = [f"card {index}: ECC is off" for index, each in _attributes(facts).items() if not each.get("ecc")]
    known = sum(any(name in each for name in names) for each in values.values())
    if not known:
        return Finding(Status.ABSENT, "no card reports memory errors", without)
    text = f"{known - len({line.partition(':')[0] for line in wrong})} of {known} cards report no memory error"
    return Finding(Status.FAILED if wrong else Status.OK, text, [*wrong, *without])


def check_recovery(facts: Facts) -> Finding:
    """The driver asks for no recovery of a card."""
    actions = {index: values.get("recovery_action") for index, values in _attributes(facts).items()}
    known = {index: action for index, action in actions.items() if action is not None}
    if not known:
        return Finding(Status.ABSENT, "no driver before R570 says which recovery a card needs, and this one does not")
    wrong = [
        f"card {index}: recovery action {action} (NVML_GPU_RECOVERY_ACTION_*)"
        for index, action in known.items()
        if action
    ]
    return Finding(
        Status.FAILED if wrong else Status.OK, f"{len(known) - len(wrong)} of {len(known)} cards need none", wrong
    )


def check_margins(facts: Facts) -> Finding:
    """No card is hotter than its own limit, and none is slowed down by heat or by its power supply."""
    values = _last_measurements(facts)
    limits = {index: _margin(each) for index, each in values.items()}
    known = {index: margin for index, margin in limits.items() if margin is not None}
    if not known:
        return Finding(Status.ABSENT, "no card reports a limit of its temperature")
    hot = [f"card {index}: {-margin:g} degrees above its limit" for index, margin in known.items() if margin < 0]
    text = f"{min(known.values()):g} degrees or more are left on {len(known)} cards"
    return Finding(Status.FAILED if hot else Status.OK, text, hot)


def _margin(values: Mapping[str, float]) -> float | None:
    """Degrees left: the card's own margin, else the distance to the temperature at which it slows down."""
    if Quantity.TEMPERATURE_MARGIN.value in values:
        return values[Quantity.TEMPERATURE_MARGIN.value]
    limit, now = (values.get(each.value) for each in (Quantity.SLOWDOWN_TEMPERATURE, Quantity.TEMPERATURE))
    return None if limit is None or now is None else limit - now


def check_events(facts: Facts) -> Finding:
    """An event set can be registered on each card; a card without one gives no XID."""
    calls = [call for call in facts.calls if call.call == "event_kinds" and call.card is not None]
    without = [f"card {call.card}: {call.text}" for call in calls if call.outcome is not Outcome.VALUE]
    text = f"{len(calls) - len(without)} of {len(calls)} cards report hardware events"
    return Finding(Status.FAILED if without or not calls else Status.OK, text, without)


def check_runtime(facts: Facts) -> Finding:
    """NVIDIA's runtime gives containers the devices of their pods, and none that an image names."""
    if facts.runtime is None:
        return _absent(facts, "runtime")
    wrong = [
        *(["an image that names cards gets them in any container"] if facts.runtime.obeys_images else []),
        *(["devices that the agent lists as mounts are not found"] if not facts.runtime.reads_mounts else []),
        *([f"mode {facts.runtime.mode} finds no new slice: use auto"] if facts.runtime.mode == "cdi" else []),
    ]
    if wrong:
        return Finding(Status.FAILED, f"{wrong[0]}; the right settings: tessera config runtime NAME", wrong)
    return Finding(Status.OK, f"mode {facts.runtime.mode}; variables of images give no card")


#: The checks that need no more than a reading, by name (docs/acceptance.md).
CHECKS: Mapping[str, Callable[[Facts], Finding]] = {
    "cards": count_cards,
    "calls": check_calls,
    "driver": check_driver,
    "nvidia-smi": check_smi,
    "pcie": check_pcie,
    "nvlink": check_nvlinks,
    "topology": check_topology,
    "fabric": check_fabric,
    "memory": check_memory_errors,
    "recovery": check_recovery,
    "margins": check_margins,
    "events": check_events,
    "runtime": check_runtime,
}


def worst(results: Iterable[CheckResult]) -> Status:
    """``FAILED`` if any check failed, else ``OK``."""
    return Status.FAILED if any(each.status is Status.FAILED for each in results) else Status.OK


def _absent(facts: Facts, name: str) -> Finding:
    return Finding(Status.ABSENT, facts.absent.get(name, "not read"))


def _attributes(facts: Facts) -> Mapping[int, Mapping[str, object]]:
    """The attributes of each card that answered."""
    return {
        call.card: call.value
        for call in facts.calls
        if call.call == "attributes" and call.card is not None and isinstance(call.value, Mapping)
    }


def _last_measurements(facts: Facts) -> Mapping[int, Mapping[str, float]]:
    return {card.index: found[-1] for card in facts.cards if (found := measurements(facts, card.index))}


def result_lines(results: Iterable[CheckResult], evidence: int = 8) -> Iterator[str]:
    """One line a check, and below a check that failed the first lines of its evidence."""
    for each in results:
        yield f"{each.status.value:<7} {each.name:<11} {each.text}"
        if each.status is Status.FAILED:
            yield from (f"        - {line}" for line in each.evidence[:evidence])
            if len(each.evidence) > evidence:
                yield f"        - {len(each.evidence) - evidence} more; see -o json"
