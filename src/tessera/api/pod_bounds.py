"""How much a pod that asks for slices may hold, so that judging it costs little whatever its author writes.

Read by admission and, since pods can exist that no webhook has seen, by the controller. Counting costs nothing to
speak of: nothing is parsed and nothing compared.
"""

from typing import NamedTuple

from tessera.kube.resources import PodSpec
from tessera.limits import (
    NODE_AFFINITY_EXPRESSIONS,
    NODE_AFFINITY_TERMS,
    NODE_AFFINITY_VALUES,
    NODE_SELECTOR_LABELS,
    POD_CONTAINERS,
    POD_QUANTITIES,
    TOLERATIONS,
)


class PodSize(NamedTuple):
    """How many of each a pod has; terms, expressions and values are those of required node affinity."""

    containers: int = 0
    selector: int = 0
    tolerations: int = 0
    terms: int = 0
    expressions: int = 0
    values: int = 0
    quantities: int = 0


def excess(spec: PodSpec) -> str:
    """Which limit a pod is over, for its author; empty if none."""
    return excess_of(_size(spec))


def excess_of(size: PodSize) -> str:
    """Which limit a pod of this size is over, for its author; empty if none."""
    one_label = "label the nodes that you mean by one label"
    counts = (
        ("the pod has", size.containers, POD_CONTAINERS, "divide it into several pods"),
        ("node selector has", size.selector, NODE_SELECTOR_LABELS, one_label),
        ("the pod has", size.tolerations, TOLERATIONS, "tolerate a key with the operator Exists"),
        ("node affinity has", size.terms, NODE_AFFINITY_TERMS, "name many values in one term, by In"),
        ("node affinity has", size.expressions, NODE_AFFINITY_EXPRESSIONS, one_label),
        ("node affinity has", size.values, NODE_AFFINITY_VALUES, one_label),
        ("the pod has", size.quantities, POD_QUANTITIES, "ask for fewer resources"),
    )
    return next(
        (
            f"{what} {count:,} {limit.unit}, {limit} are considered: {remedy}"
            for what, count, limit, remedy in counts
            if count > limit
        ),
        "",
    )


def _size(spec: PodSpec) -> PodSize:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    few = terms[:NODE_AFFINITY_TERMS]
    tests = [test for term in few for test in (*term.match_expressions, *term.match_fields)]
    containers = (*spec.init_containers, *spec.containers)
    return PodSize(
        containers=len(containers),
        selector=len(spec.node_selector),
        tolerations=len(spec.tolerations),
        terms=len(terms),
        expressions=len(tests),
        values=sum(len(test.values) for test in tests),
        quantities=sum(len(each.resources.limits) + len(each.resources.requests) for each in containers),
    )
