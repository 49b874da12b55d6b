"""The values of a check: the nodes to try a file on, and the report on each part of the file."""

from collections.abc import Iterable

import msgspec

from tessera.api.problems import FileRefused, Notice
from tessera.mig.geometry import GpuModel
from tessera.mig.models import model_by_short_name


class TrialNode(msgspec.Struct, frozen=True):
    """A node to try the file on: ``count`` cards of one model."""

    count: int
    model: GpuModel

    def __str__(self) -> str:
        return f"{self.count} x {self.model.short_name}"


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report on one part of a file, such as a sharing profile or a file of MIG layouts.

    Attributes:
        name: the part's place, ``configmap/key``; ``file`` for the whole file.
        kind: ``sharing profile``, ``MIG layouts``, ``values of gpu-operator``, ``ClusterPolicy`` or another kind.
        means: lines that say the part's effect.
        notices: settings that have no effect, or less than they seem to have.
        problems: mistakes.
        used: True if Tessera follows settings of this kind; the effect of others is not explained.
    """

    name: str
    kind: str
    means: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    used: bool = True

    @property
    def verdict(self) -> str:
        """``wrong``, ``right`` or ``not used``."""
        if self.problems:
            return "wrong"
        return "right" if self.used else "not used"

    def with_notices(self, notices: Iterable[Notice]) -> "PartReport":
        """The report with these notices before its own."""
        return msgspec.structs.replace(self, notices=(*map(str, notices), *self.notices))


def parse_node(text: str) -> TrialNode:
    """Reads ``A100-40GB`` or ``4xA100-40GB``.

    Raises:
        ValueError: no model has that name.
    """
    count, x, name = text.partition("x")
    if x and count.isdecimal() and int(count) > 0:
        return TrialNode(int(count), model_by_short_name(name))
    return TrialNode(1, model_by_short_name(text))


def report_refused(name: str, kind: str, refused: FileRefused) -> PartReport:
    """The report on a part that could not be read."""
    return PartReport(name=name, kind=kind, problems=tuple(map(str, refused.problems)))
