"""Scenarios: their form, and those that come with the lab.

A scenario says what happens on a lab's cards over time, as people write it in YAML: it has pods that it
creates, the use that other pods make of their cards, and steps at times. Unknown keys are refused, and every number is
bounded.
"""

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec

from tessera.api.documents import load_document
from tessera.text import one_line
from tessera_lab.activity.card_faults import FAULTS
from tessera_lab.activity.use import Use, parse_span
from tessera_lab.limits import LAB_SCENARIO, LAB_SCENARIO_PARTS, LAB_SCENARIO_PODS, LAB_XID

#: A name of Kubernetes (RFC 1123) that leaves room for a number behind it.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_SUFFIX = ".yaml"


class ScenarioError(ValueError):
    """A scenario cannot be read; the text says where and why."""


class PodSeries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pods that a scenario creates, named NAME-1, NAME-2 and so on.

    Attributes:
        name: begin of their names.
        request: their limits, ``nvidia.com/mig-3g.20gb: 1``.
        namespace: their namespace, which is created if there is none.
        labels: their labels.
        count: how many are created at a time.
        at: time of the first.
        every: time between two creations; empty: only one.
        lasts: time after which a pod is deleted; empty: it stays until the scenario ends.
        use: what they do with their cards.
    """

    name: str
    request: Mapping[str, int]
    namespace: str = "default"
    labels: Mapping[str, str] = {}
    count: int = 1
    at: str = "0s"
    every: str = ""
    lasts: str = ""
    use: Use | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in (self.name, self.namespace):
            if not _NAME.fullmatch(name):
                raise ValueError(f"name {one_line(name)!r}: a name has at most 40 of a-z, 0-9 and -, a letter first")
        if not 1 <= self.count <= LAB_SCENARIO_PODS:
            raise ValueError(f"count {self.count}: a series has 1 to {int(LAB_SCENARIO_PODS)} pods at a time")
        parse_span(self.at)
        if self.lasts:
            parse_span(self.lasts)
        if self.every:
            if parse_span(self.every) < 1:
                raise ValueError(f"every {self.every!r}: it is 1s or more")
            if not self.lasts:
                raise ValueError(f"pods {self.name!r}: with every, lasts is needed too, or pods would pile up")
            if self.count * parse_span(self.lasts) / parse_span(self.every) > LAB_SCENARIO_PODS:
                raise ValueError(f"pods {self.name!r}: more than {int(LAB_SCENARIO_PODS)} would exist at a time")


class UseRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The use that pods of others make of their cards.

    Attributes:
        pods: NAMESPACE/NAME, each with wildcards ``*`` and ``?``.
        use: what they do.
    """

    pods: str
    use: Use

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.pods.count("/") != 1:
            raise ValueError(f"pods {one_line(self.pods)!r}: it is NAMESPACE/NAME, e.g. default/train-*")

    def matches(self, namespace: str, pod: str) -> bool:
        """True if the rule is about this pod."""
        return fnmatchcase(f"{namespace}/{pod}", self.pods)


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing that happens at a time; exactly one of ``fault``, ``xid`` and ``mend`` is given.

    Attributes:
        at: the time.
        card: NODE/INDEX.
        fault: a fault of :data:`tessera_lab.activity.card_faults.FAULTS`.
        xid: an XID that the driver reports.
        mend: true to remove all faults.
    """

    at: str
    card: str
    fault: str = ""
    xid: int | None = None
    mend: bool = False

    def __post_init__(self) -> None:
        """Checks the values."""
        parse_span(self.at)
        if bool(self.fault) + (self.xid is not None) + self.mend != 1:
            raise ValueError(f"step of card {one_line(self.card)}: it has one of fault, xid and mend: true")
        if self.fault and self.fault not in FAULTS:
            raise ValueError(f"fault {one_line(self.fault)!r}: there are {', '.join(FAULTS)}")
        if self.xid is not None and not 1 <= self.xid <= LAB_XID:
            raise ValueError(f"xid {self.xid}: an XID is 1 to {int(LAB_XID)}")


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A scenario.

    Attributes:
        about: what happens, in one sentence.
        lasts: its length; empty: it goes on until it is stopped.
        repeat: time after which the steps happen again; empty: they happen once.
        seed: another seed gives other curves.
        pods: pods that it creates.
        use: the use that other pods make of their cards; the first rule that matches counts.
        steps: faults of cards.
    """

    about: str
    lasts: str = ""
    repeat: str = ""
    seed: int = 0
    pods: tuple[PodSeries, ...] = ()
    use: tuple[UseRule, ...] = ()
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        """Checks the values."""
        if max(map(len, (self.pods, self.use, self.steps))) > LAB_SCENARIO_PARTS:
            raise ValueError(f"pods, use and steps have at most {int(LAB_SCENARIO_PARTS)} entries each")
        names = [(each.namespace, each.name) for each in self.pods]
        if len(set(names)) < len(names):
            raise ValueError("pods: two series have the same name and namespace")
        if self.lasts:
            parse_span(self.lasts)
        if self.repeat and parse_span(self.repeat) < 1:
            raise ValueError(f"repeat {self.repeat!r}: it is 1s or more")

    def steps_between(self, first: float, last: float) -> Iterator[Step]:
        """Yields the steps with ``first <= time < last``, in their order; repeated ones again and again."""
        period = parse_span(self.repeat) if self.repeat else 0.0
        due = []
        for step in self.steps:
            at = parse_span(step.at)
            if period and at < first:
                at += -(-(first - at) // period) * period
            if first <= at < last:
                due.append((at, step))
        yield from (step for _, step in sorted(due, key=lambda each: each[0]))


def parse_scenario(text: str) -> Scenario:
    """Reads a scenario.

    Raises:
        ScenarioError: the text is none; it says where.
    """
    if len(text) > LAB_SCENARIO:
        raise ScenarioError(f"scenario: it has {len(text):,} characters; at most {int(LAB_SCENARIO):,} are read")
    try:
        return msgspec.convert(load_document(text), type=Scenario)
    except ValueError as error:
        raise ScenarioError(f"scenario: {one_line(error, 400)}") from error


def _files() -> Iterator[Traversable]:
    return (each for each in files(__package__).joinpath("library").iterdir() if each.name.endswith(_SUFFIX))


def builtin_names() -> list[str]:
    """Returns the names, sorted."""
    return sorted(each.name.removesuffix(_SUFFIX) for each in _files())


def builtin_text(name: str) -> str:
    """Returns the text of a scenario of :func:`builtin_names`."""
    return next(each for each in _files() if each.name == name + _SUFFIX).read_text(encoding="utf-8")


def builtin_scenario(name: str) -> Scenario:
    """Returns a scenario of :func:`builtin_names`."""
    return parse_scenario(builtin_text(name))
