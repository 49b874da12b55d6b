"""The form of an answer, and how it reads on a terminal: the verdict first, then the facts, then what would help."""

from collections.abc import Iterator, Sequence

import msgspec

from tessera.limits import FACT_SHOWN
from tessera.text import one_line


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why pods do not run or a node is not as asked, or that all is well.

    Attributes:
        case: the kind of answer in a word for scripts, e.g. ``full``, ``fragmented``, ``other-gate``, ``runs``.
        verdict: the answer in one line, which goes on after the pod's or node's name.
        facts: what it rests on.
        help: what would end the waiting, most useful first.
        pods: names of the pods that it is about; empty for pods that do not exist.
    """

    case: str
    verdict: str
    facts: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Everything that was asked.

    Attributes:
        kind: ``pod``, ``node`` or the workload's kind, in lower case.
        namespace: where; empty for a node.
        name: which.
        summary: how the workload's pods stand, in one line; empty for a pod or a node.
        answers: one for a pod or a node; for a workload one per reason.
    """

    kind: str
    namespace: str
    name: str
    summary: str = ""
    answers: tuple[Answer, ...] = ()


#: Names of pods shown in one line.
_NAMES_SHOWN = 3


def lines(report: Report) -> Iterator[str]:
    """The report as text."""
    about = f"{report.kind} {f'{report.namespace}/' if report.namespace else ''}{report.name}"
    if not report.summary:
        for answer in report.answers:
            yield from _block(about, answer)
        return
    yield one_line(f"{about}: {report.summary}", FACT_SHOWN)
    for answer in report.answers:
        yield ""
        yield from _block(_pods(answer.pods), answer)


def _block(about: str, answer: Answer) -> Iterator[str]:
    yield one_line(f"{about}: {answer.verdict}", FACT_SHOWN)
    for fact in answer.facts:
        yield f"  - {one_line(fact, FACT_SHOWN)}"
    if answer.help:
        yield "What would help:"
        for each in answer.help:
            yield f"  - {one_line(each, FACT_SHOWN)}"


def _pods(names: Sequence[str]) -> str:
    if not names:
        return "pods to come"
    if len(names) == 1:
        return f"pod {names[0]}"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"each of {len(names)} pods ({', '.join(names[:_NAMES_SHOWN])}{more})"


def age(seconds: float) -> str:
    """A span of time as kubectl shows ages: ``42s``, ``7m``, ``3h``, ``12d``."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], shown: int = 5) -> str:
    """Names with commas, cut after ``shown``."""
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
