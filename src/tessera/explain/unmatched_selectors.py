"""What a pod selects that no node has: the label, or its value, with those that nodes have instead.

The scheduler says only that nodes do not match. Where several alternatives of node affinity may do, none is named.
"""

from collections.abc import Iterator

from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import NodeSelectorRequirement, Pod
from tessera.limits.settings import NAMES_COMPARED
from tessera.text import list_names, one_line

#: Values that nodes have, as far as they are listed; requirements that are told.
_VALUES, _SHOWN = 4, 5


def unmatched_selectors(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Yields the requirements on labels that no node fulfils; nothing for a user who may not list nodes."""
    if not view.snapshot.nodes:
        return
    for key, value in sorted(pod.spec.node_selector.items())[:_SHOWN]:
        yield from _unmatched(view, "spec.nodeSelector", key, (value,))
    for test in _required(pod)[:_SHOWN]:
        if test.operator in {"In", "Exists"}:
            yield from _unmatched(view, "its node affinity", test.key, test.values)


def _required(pod: Pod) -> tuple[NodeSelectorRequirement, ...]:
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    return terms[0].match_expressions if len(terms) == 1 else ()


def _unmatched(view: ClusterView, where: str, key: str, values: tuple[str, ...]) -> Iterator[str]:
    nodes = view.snapshot.nodes
    there = view.once(
        ("label", key), lambda: frozenset(each.metadata.labels[key] for each in nodes if key in each.metadata.labels)
    )
    wanted = f"{one_line(key)}={' or '.join(map(one_line, values[:_VALUES]))}" if values else one_line(key)
    if not there:
        yield f"{where} asks for {wanted}, and no node has a label {one_line(key)}{_close_key(view, key)}"
    elif values and there.isdisjoint(values):
        has = "" if view.snapshot.hides_labels else f"; nodes have {list_names(sorted(there), _VALUES)}"
        yield f"{where} asks for {wanted}, and no node has this value{has}"


def _close_key(view: ClusterView, key: str) -> str:
    if view.snapshot.hides_labels:
        return ""
    nodes = view.snapshot.nodes
    keys = view.once("label keys", lambda: sorted({each for node in nodes for each in node.metadata.labels}))
    from difflib import get_close_matches

    close = get_close_matches(key[:253], keys[:NAMES_COMPARED], n=1, cutoff=0.8)
    return f"; did you mean {close[0]}?" if close else ""
