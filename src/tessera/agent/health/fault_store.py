"""Keeps the faults of a node's cards on disk, so that a restart of the agent ends none.

Their times are times of the wall clock, which may be set while no agent runs: a stored time of the future counts as the
time of loading.
"""

import logging
from pathlib import Path

import msgspec

from tessera.agent.base.metrics import Metrics
from tessera.agent.base.state_file import StateFile
from tessera.agent.health.fault import Fault
from tessera.agent.health.history import PastFault
from tessera.api.nodes.preflights import CardTest
from tessera.api.nodes.repairs import Repairs

_log = logging.getLogger(__name__)


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
        try:
            self._file.save(faults)
        except OSError as error:
            self._metrics.count_unsaved_faults()
            _log.warning("faults of cards are not kept over a restart of the agent: %s", error)
