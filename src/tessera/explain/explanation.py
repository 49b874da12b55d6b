"""A question about an object, and its explanation with its text: the verdict, the facts, then what would help.

The question is as the command line names it; what answers it is imported when it is needed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tessera.limits import FACT_SHOWN
from tessera.text import list_names, one_line

#: Begins the name, with the UID of their controller, under which the API for tenants explains several pods. No pod has
#: a colon in its name.
OWNED_BY = "owned-by:"


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reason that pods do not run or a node is not as configured, or that all is well.

    Attributes:
        case: the kind of explanation, one word for scripts: ``full``, ``fragmented``, ``other-gate``, ``runs``, ...
        verdict: one line that continues after the name of the pod or node.
        facts: observations that support the verdict.
        help: steps that would end the waiting, most useful first.
        pods: names of the pods it holds for; empty for pods that do not exist yet.
    """

    case: str
    verdict: str
    facts: tuple[str, ...] = ()
    help: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


class ExplanationReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All explanations about the object that the user named.

    Attributes:
        kind: ``pod``, ``node``, ``claim`` or the workload's kind, in lower case.
        namespace: its namespace; empty for a node.
        name: its name.
        summary: the state of a workload's pods in one line; empty for a single object.
        answers: one explanation for a single object; for a workload one for each reason.
        unread: what the API server did not answer, so that the answers are made without it; empty if it answered all.
    """

    kind: str
    namespace: str
    name: str
    summary: str = ""
    answers: tuple[Explanation, ...] = ()
    unread: str = ""


#: Names of pods shown in one line.
_NAMES_SHOWN = 3


def report_lines(report: ExplanationReport) -> Iterator[str]:
    """The report as text."""
    about = f"{report.kind} {f'{report.namespace}/' if report.namespace else ''}{report.name}"
    if report.summary:
        yield one_line(f"{about}: {report.summary}", FACT_SHOWN)
    for each in report.answers:
        if report.summary:
            yield ""
        yield from _block(_pods(each.pods) if report.summary else about, each)
    if report.unread:
        yield one_line(f"Not known: {report.unread}", FACT_SHOWN)


def merge_alike(answers: Iterable[Explanation]) -> Iterator[Explanation]:
    """Merges explanations with the same verdict into one with all their pods."""
    found: dict[tuple[str, str], list[Explanation]] = {}
    for answer in answers:
        found.setdefault((answer.case, answer.verdict), []).append(answer)
    for same in found.values():
        names = tuple(name for answer in same for name in answer.pods)
        facts = same[0].facts if len(same) == 1 else tuple(f for f in same[0].facts if all(f in a.facts for a in same))
        yield msgspec.structs.replace(same[0], pods=names, facts=facts)


def _block(about: str, explanation: Explanation) -> Iterator[str]:
    yield one_line(f"{about}: {explanation.verdict}", FACT_SHOWN)
    for fact in explanation.facts:
        yield f"  - {one_line(fact, FACT_SHOWN)}"
    if explanation.help:
        yield "What would help:"
        for each in explanation.help:
            yield f"  - {one_line(each, FACT_SHOWN)}"


def _pods(names: Sequence[str]) -> str:
    if not names:
        return "pods that do not exist yet"
    if len(names) == 1:
        return f"pod {names[0]}"
    return f"each of {len(names)} pods ({list_names(names, _NAMES_SHOWN)})"


#: Kinds of objects that make pods.
WORKLOADS = ("deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob")
#: Other names of the kinds that kubectl accepts.
_ALIASES = {
    "pods": "pod",
    "po": "pod",
    "deployments": "deployment",
    "deploy": "deployment",
    "replicasets": "replicaset",
    "rs": "replicaset",
    "statefulsets": "statefulset",
    "sts": "statefulset",
    "daemonsets": "daemonset",
    "ds": "daemonset",
    "jobs": "job",
    "cronjobs": "cronjob",
    "cj": "cronjob",
    "nodes": "node",
    "no": "node",
    "resourceclaim": "claim",
    "resourceclaims": "claim",
    "claims": "claim",
}
#: Kinds of single objects, each with an explanation of its own.
_SINGLE = ("pod", "node", "claim")
#: Form and length of the names of these kinds (RFC 1123 subdomain).
_NAME, _LONGEST_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"), 253


class Query(NamedTuple):
    """The object to explain: its kind in lower case and its name."""

    kind: str
    name: str


def parse_query(text: str) -> Query:
    """Parses ``NAME`` or ``KIND/NAME``; kinds are accepted in kubectl's spellings (``deployment.apps/web``).

    Raises:
        ValueError: no such kind is known here, or the name is empty.
    """
    written, slash, name = text.rpartition("/")
    kind = written.partition(".")[0].lower() if slash else "pod"
    kind = _ALIASES.get(kind, kind)
    if kind not in _SINGLE and kind not in WORKLOADS:
        raise ValueError(
            f'"{text}": kind "{written}" is not supported; supported are {", ".join((*_SINGLE, *WORKLOADS))};'
            " for another kind, ask about one of its pods"
        )
    if not name:
        raise ValueError(f'"{text}": the name is empty; write {kind}/NAME')
    if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        rule = f"at most {_LONGEST_NAME} lower case letters, digits, dots and dashes"
        raise ValueError(f'"{one_line(text)}": this is not a valid name of a {kind}; names have {rule}')
    return Query(kind, name)
