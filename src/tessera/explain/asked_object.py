"""The object that a user asks about, as the command line names it; what explains it is imported when it is needed."""

import re
from typing import NamedTuple

from tessera.text import one_line

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
