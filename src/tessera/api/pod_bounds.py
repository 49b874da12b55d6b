"""How much a pod that asks for slices may hold, so that judging it costs little whatever its author writes.

Read by admission and, since pods can exist that no webhook has seen, by the controller. Counting costs nothing to
speak of: nothing is parsed and nothing compared.
"""

from collections.abc import Iterator

from tessera.kube.resources import PodSpec
from tessera.limits import (
    NODE_AFFINITY_EXPRESSIONS,
    NODE_AFFINITY_TERMS,
    NODE_AFFINITY_VALUES,
    NODE_SELECTOR_LABELS,
    POD_CONTAINERS,
    POD_QUANTITIES,
    TOLERATIONS,
    Limit,
)


def excess(spec: PodSpec) -> str:
    """Which limit a pod is over, for its author; empty if none."""
    return next(
        (
            f"{what} {count:,} {limit.unit}, {limit} are considered: {remedy}"
            for what, count, limit, remedy in _over(spec)
        ),
        "",
    )


def _over(spec: PodSpec) -> Iterator[tuple[str, int, Limit, str]]:
    counts = [
        (
            "the pod has",
            len(spec.init_containers) + len(spec.containers),
            POD_CONTAINERS,
            "divide it into several pods",
        ),
        (
            "node selector has",
            len(spec.node_selector),
            NODE_SELECTOR_LABELS,
            "label the nodes that you mean by one label",
        ),
        ("the pod has", len(spec.tolerations), TOLERATIONS, "tolerate a key with the operator Exists"),
    ]
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is not None and affinity.required is not None:
        terms = affinity.required.node_selector_terms
        counts.append(("node affinity has", len(terms), NODE_AFFINITY_TERMS, "name many values in one term, by In"))
        few = terms[:NODE_AFFINITY_TERMS]
        tests = [test for term in few for test in (*term.match_expressions, *term.match_fields)]
        counts.append(
            ("node affinity has", len(tests), NODE_AFFINITY_EXPRESSIONS, "label the nodes that you mean by one label")
        )
        values = sum(len(test.values) for test in tests)
        counts.append(("node affinity has", values, NODE_AFFINITY_VALUES, "label the nodes that you mean by one label"))
    containers = (*spec.init_containers, *spec.containers)
    quantities = sum(len(each.resources.limits) + len(each.resources.requests) for each in containers)
    counts.append(("the pod has", quantities, POD_QUANTITIES, "ask for fewer resources"))
    return (each for each in counts if each[1] > each[2])
