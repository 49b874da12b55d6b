"""The words of a judgement: the nodes that a file is tried on, and what is said of each part of it."""

import msgspec

from tessera.api.documents import FileRefused
from tessera.mig.gpu_model import GpuModel
from tessera.mig.models import model_by_short_name


class TrialNode(msgspec.Struct, frozen=True):
    """A node to try the file on: so many cards of one model."""

    count: int
    model: GpuModel

    def __str__(self) -> str:
        return f"{self.count} x {self.model.short_name}"


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement on one profile, or on one file of layouts.

    Attributes:
        name: where it stands, ``configmap/key``; ``file`` if it is the whole file.
        kind: ``sharing profile``, ``MIG layouts``, ``values of gpu-operator``, ``ClusterPolicy`` or what else it is.
        means: what it does, in lines.
        notices: what has no effect, or less than it seems.
        problems: what is wrong.
        used: Tessera follows settings of this kind; without it nothing is said of what they mean.
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


def parse_node(text: str) -> TrialNode:
    """Reads ``A100-40GB`` or ``4xA100-40GB``.

    Raises:
        ValueError: no model of that name.
    """
    count, x, name = text.partition("x")
    if x and count.isdecimal() and int(count) > 0:
        return TrialNode(int(count), model_by_short_name(name))
    return TrialNode(1, model_by_short_name(text))


def judge_refused(name: str, kind: str, refused: FileRefused) -> Judgement:
    """A part that could not be read."""
    return Judgement(name=name, kind=kind, problems=tuple(map(str, refused.problems)))
