"""The faults of a node's cards that are over, kept over restarts and reboots, and the falls of a card.

The history has two readers. A fault that comes back soon lasts longer (:class:`.fault.Hysteresis`). A card that fell
several times in a week is to be replaced: each time a reset or a reboot helped, and did not last.

A *fall* is a time in which a card needed a reset or a reboot, did not answer its probes, or could not be read. Faults
less than :data:`ONE_FALL` apart are one fall, since one cause shows in several errors. Errors that a restarted program
ends are no falls. NVIDIA's NVSentinel counts alike: five remediations of a node in seven days, repeated XIDs of a GPU
with bursts joined (its chart health-events-analyzer); here a card counts, so three are enough.

Faults and history are on disk, so that a restart of the agent ends no fault. Their times are times of the wall clock,
which may be set while no agent runs: a stored time of the future counts as the time of loading.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tessera.agent.base.node_files import StateFile
from tessera.agent.base.runtime import Metrics
from tessera.agent.health.fault import Fault
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.nodes.preflights import CardTest
from tessera.api.nodes.repairs import Repairs
from tessera.limits import NODE_CARDS
from tessera.text import count_noun

#: Seconds for which a fault that is over is kept: falls are counted for that long.
WINDOW = 7 * 86_400.0
#: Seconds between two faults up to which they are one fall.
ONE_FALL = 3600.0
#: Falls within :data:`WINDOW` after which a card is to be replaced.
FALLS = 3
#: Faults that are kept of a card: eight falls with three errors each; the file has 250 KiB then for 64 cards.
CARD_PAST_FAULTS = 24
#: Sources that one text names of one fall.
_SOURCES = 4


class PastFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that is over.

    Attributes:
        scope: the card or instance.
        source: as :attr:`.fault.Fault.source`.
        falls: true if the card had fallen by it.
        since: time of its first error, seconds of the caller's clock.
        ended: time of its end.
        ends: number of ends of this fault without a pause in which it would be forgotten.
    """

    scope: DeviceScope
    source: str
    falls: bool
    since: float
    ended: float
    ends: int = 1


class Fall(msgspec.Struct, frozen=True):
    """A time in which a card was down: its beginning, and the sources of its faults."""

    since: float
    sources: tuple[str, ...]


class FaultHistory:
    """The faults that are over, of all cards.

    Args:
        past: as an earlier process kept them.

    Attributes:
        past: the faults that are over, in the order of their ends.
    """

    def __init__(self, past: Iterable[PastFault] = ()) -> None:
        #: In the order of their ends; at most :data:`CARD_PAST_FAULTS` of a card, none older than :data:`WINDOW`.
        self.past = tuple(past)

    def note_end(self, fault: PastFault) -> None:
        """Takes in a fault that is over; forgets what is too old, and the first of more than are kept."""
        recent = [each for each in (*self.past, fault) if fault.ended - each.ended <= WINDOW]
        kept: dict[str, list[PastFault]] = {}
        for each in reversed(recent):
            of_card = kept.setdefault(each.scope.gpu, [])
            if len(of_card) < CARD_PAST_FAULTS and (of_card or len(kept) <= NODE_CARDS):
                of_card.append(each)
        self.past = tuple(sorted((one for card in kept.values() for one in card), key=lambda one: one.ended))

    def ends(self, scope: DeviceScope, source: str, now: float, memory: float) -> int:
        """The number of times that a fault has ended, if the last end was at most ``memory`` seconds ago."""
        last = next((one for one in reversed(self.past) if (one.scope, one.source) == (scope, source)), None)
        return 0 if last is None or now - last.ended > memory else last.ends

    def falls(self, gpu: str, present: Iterable[tuple[str, float]], now: float) -> tuple[Fall, ...]:
        """The falls of a card in the last :data:`WINDOW`, the first one first.

        Args:
            gpu: the card's UUID.
            present: source and beginning of its faults that are not over and that count as falls.
            now: seconds of the caller's clock.
        """
        past = [(one.since, one.ended, one.source) for one in self.past if one.scope.gpu == gpu and one.falls]
        spans = sorted([*past, *((since, now, source) for source, since in present)])
        found: list[tuple[float, float, set[str]]] = []
        for since, ended, source in spans:
            if found and since - found[-1][1] <= ONE_FALL:
                first, last, sources = found[-1]
                found[-1] = first, max(last, ended), sources | {source}
            else:
                found.append((since, ended, {source}))
        return tuple(Fall(since, tuple(sorted(sources))) for since, ended, sources in found if now - ended <= WINDOW)


def counts_as_fall(source: str, reaction: Reaction, probes: Iterable[str]) -> bool:
    """True if a card has fallen by a fault; ``probes`` are the sources of cards that do not answer."""
    return reaction >= Reaction.RESET or (reaction is Reaction.WITHHOLD and source in set(probes))


def describe_falls(falls: Sequence[Fall]) -> str:
    """``fell 3 times in 7 days: 2026-11-23 10:04 UTC (XID 48), …``; the last ones, if there are many."""
    shown = falls[-2 * FALLS :]
    texts = [
        f"{datetime.fromtimestamp(fall.since, UTC):%Y-%m-%d %H:%M} UTC ({' and '.join(fall.sources[:_SOURCES])})"
        for fall in shown
    ]
    more = "lastly " if len(shown) < len(falls) else ""
    return f"fell {count_noun(len(falls), 'time')} in {WINDOW / 86400:.0f} days: {more}{', '.join(texts)}"


class StoredFaults(msgspec.Struct, frozen=True):
    """The content of the file of faults.

    Attributes:
        boot: the node's boot id when the faults were found; empty if it was unknown.
        marks: the faults, with times in seconds since 1970.
        past: the faults that are over, also those of earlier boots.
        known: the cards that are or were on the node; ``None`` in a file of an earlier version.
        tests: the last test of each card that was tested.
        repairs: what the administrator let Tessera do, as last read.
    """

    boot: str = ""
    marks: tuple[Fault, ...] = ()
    past: tuple[PastFault, ...] = ()
    known: tuple[str, ...] | None = None
    tests: tuple[CardTest, ...] = ()
    repairs: Repairs = Repairs()

    def until(self, now: float) -> "StoredFaults":
        """The same without times after ``now``."""
        replace = msgspec.structs.replace
        return replace(
            self,
            marks=tuple(replace(each, since=min(each.since, now), last=min(each.last, now)) for each in self.marks),
            past=tuple(replace(each, since=min(each.since, now), ended=min(each.ended, now)) for each in self.past),
        )


class FaultStore:
    """The file of faults.

    Args:
        file: its path.
        metrics: counts faults that cannot be kept.
    """

    def __init__(self, file: Path, metrics: Metrics) -> None:
        self._file = StateFile(file, StoredFaults)
        self._metrics = metrics

    def load(self, now: float) -> StoredFaults:
        """Returns what an earlier process kept. Without a file there was none: the node had no card."""
        return (self._file.load() or StoredFaults(known=())).until(now)

    def save(self, faults: StoredFaults) -> None:
        """Keeps faults; without the file they still hold until this process ends."""
        if not self._file.save_if_possible(faults, "faults of cards are not kept"):
            self._metrics.fault_save_failures.inc()
