"""Results of preflights: what a test's process prints as JSON, and what the agent writes of it into the Node.

``tessera.dev/preflight`` of a Node has the last result of each card. It is bounded; a reader takes a value that cannot
be read for none. :mod:`tessera.accept.preflight` does the tests.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from tessera.clock import rfc3339
from tessera.limits import CONDITION_MESSAGE, NODE_CARDS, NODE_INDEXES
from tessera.nvml.interface import GpuUuid
from tessera.text import list_names, one_line

#: Most rates of a card in the annotation `tessera.dev/preflight`. The preflight measures five.
PREFLIGHT_RATES = 16
#: Most characters: the annotation `tessera.dev/preflight`. 64 cards with all their rates have half of it; all
#: annotations of a Node have 256 KiB.
PREFLIGHT_TEXT = 32 * 1024

PREFLIGHT_ANNOTATION = "tessera.dev/preflight"
#: Bytes that are read of a test's output: that of 64 cards has 64 KB; NVIDIA's tests write some 10 KB a card.
OUTPUT_SIZE = 1024 * 1024
#: ``memory_bandwidth``, ``product``, ``host_to_card``, ``card_to_host``, ``card_to_card``.
_Test = Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,32}\Z")]
_Rate = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
#: The unit of each test's rate is bytes per second, but for this one's: 32-bit floating-point operations per second.
_OPERATIONS = "product"


class CardTest(msgspec.Struct, frozen=True, kw_only=True, order=True, omit_defaults=True):
    """The result of one card's preflight.

    Attributes:
        index: of the driver.
        gpu: the card's UUID.
        at: its end, Unix time in whole seconds.
        finding: what is not well; empty for a card that may take work.
        skipped: why nothing was tested; empty if it was.
        tool: what tested the card: ``tessera``, ``dcgm`` for NVIDIA's diagnostics beside it, or ``simulated``.
        rates: bytes per second by test; of ``product``, operations per second.
        part: id of the GPU instance that was tested; -1 for the whole card.
    """

    index: Annotated[int, msgspec.Meta(ge=-1, le=int(NODE_INDEXES))]
    gpu: Annotated[str, msgspec.Meta(pattern=r"^GPU-[0-9a-zA-Z-]{1,64}\Z")]
    at: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0
    finding: Annotated[str, msgspec.Meta(max_length=int(CONDITION_MESSAGE))] = ""
    skipped: Annotated[str, msgspec.Meta(max_length=int(CONDITION_MESSAGE))] = ""
    tool: Annotated[str, msgspec.Meta(pattern=r"^[a-z]{1,16}\Z")] = "tessera"
    rates: Annotated[dict[_Test, _Rate], msgspec.Meta(max_length=int(PREFLIGHT_RATES))] = {}
    part: Annotated[int, msgspec.Meta(ge=-1, le=9999)] = -1


class Measure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rate of a card.

    Attributes:
        test: its name, a key of :data:`tessera.accept.figures.SHARES`.
        value: the rate, per second: bytes, or floating-point operations.
        figure: the board's; 0 where none is known.
        source: of the figure.
        finding: why the rate is too slow; empty if it is not.
    """

    test: str
    value: float
    figure: float = 0.0
    source: str = ""
    finding: str = ""


class CardPreflight(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one card's preflight.

    Attributes:
        uuid: the card.
        index: NVML's index.
        product: its name.
        error: the test that failed, in CUDA's or NVML's words; empty if none did.
        skipped: why a card was not tested, such as MIG mode; empty if it was.
        memory: bytes that held a pattern.
        measures: its rates.
        tool: what tested it: ``tessera``, ``dcgm`` for NVIDIA's diagnostics beside it, or ``simulated``.
    """

    uuid: GpuUuid
    index: int
    product: str
    error: str = ""
    skipped: str = ""
    memory: int = 0
    measures: tuple[Measure, ...] = ()
    tool: str = "tessera"

    @property
    def findings(self) -> tuple[str, ...]:
        """Everything that is not well; empty for a card that may take work."""
        return tuple(filter(None, (self.error, *(each.finding for each in self.measures))))

    def summary(self, at: float) -> CardTest:
        """The result as the Node shows it; ``at`` is the Unix time of its end."""
        return CardTest(
            index=self.index,
            gpu=self.uuid,
            at=int(at),
            finding=one_line("; ".join(self.findings), CONDITION_MESSAGE),
            skipped=one_line(self.skipped, CONDITION_MESSAGE),
            tool=self.tool,
            rates={each.test: float(f"{each.value:.4g}") for each in self.measures},
        )


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a node's preflight.

    Attributes:
        cards: each card, by index.
        simulated: nothing was computed.
        all_reduce: bytes per second of NCCL's reduction over all cards; 0 if it did not run.
        all_reduce_error: why it failed; empty if it did not.
    """

    cards: tuple[CardPreflight, ...]
    simulated: bool = False
    all_reduce: float = 0.0
    all_reduce_error: str = ""

    @property
    def findings(self) -> list[str]:
        """Everything that is not well, one line each."""
        lines = [f"card {card.index}: {text}" for card in self.cards for text in card.findings]
        return [*lines, self.all_reduce_error] if self.all_reduce_error else lines


_DECODER: msgspec.json.Decoder[tuple[CardTest, ...]] = msgspec.json.Decoder(
    Annotated[tuple[CardTest, ...], msgspec.Meta(max_length=int(NODE_CARDS))]
)


def encode_tests(tests: Iterable[CardTest]) -> str:
    """The value of the annotation; without rates where it would be too long."""
    ordered = sorted(tests, key=lambda each: (each.index, each.gpu))[:NODE_CARDS]
    text = msgspec.json.encode(ordered).decode()
    if len(text) <= PREFLIGHT_TEXT:
        return text
    short = [msgspec.structs.replace(each, rates={}, finding=one_line(each.finding, 80)) for each in ordered]
    return msgspec.json.encode(short).decode()


def decode_tests(annotations: Mapping[str, str]) -> tuple[CardTest, ...]:
    """The tests that a Node shows, by index; none if they cannot be read."""
    text = annotations.get(PREFLIGHT_ANNOTATION, "")
    if not text or len(text) > PREFLIGHT_TEXT:
        return ()
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return ()


def describe_test(test: CardTest) -> str:
    """The result as a sentence, with the rates."""
    simulated = " (simulated: nothing was computed)" if test.tool == "simulated" else ""
    at = rfc3339(test.at) if test.part < 0 else f"GPU instance {test.part} at {rfc3339(test.at)}"
    if test.skipped:
        return f"preflight of {at} tested nothing: {test.skipped}"
    verdict = f"failed: {test.finding}" if test.finding else "passed"
    rates = [f"{name.replace('_', ' ')} {write_rate(name, value)}" for name, value in sorted(test.rates.items())]
    measured = f"; {list_names(rates, len(rates))}" if rates else ""
    return f"preflight of {at} {verdict}{simulated}{measured}"


def write_rate(test: str, value: float) -> str:
    """A rate with its unit, such as ``1.3 TB/s``."""
    unit = "FLOP/s" if test == _OPERATIONS else "B/s"
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
