"""Bounds the size of a pod that asks for slices, so that a decision about any pod costs little.

Admission and the controller both apply the bounds, since pods can exist that no webhook has reviewed. Counting is
cheap: it parses and compares nothing.
"""

from typing import NamedTuple

from tessera.kube.resources import PodAffinity, PodAffinityTerm, PodSpec, TopologySpreadConstraint
from tessera.limits import (
    HOST_PORTS,
    NODE_AFFINITY_EXPRESSIONS,
    NODE_AFFINITY_TERMS,
    NODE_AFFINITY_VALUES,
    NODE_SELECTOR_LABELS,
    POD_AFFINITY_TERMS,
    POD_CLAIMS,
    POD_CONTAINERS,
    POD_QUANTITIES,
    SELECTOR_VALUES,
    SPREAD_CONSTRAINTS,
    TOLERATIONS,
)


class PodSize(NamedTuple):
    """Counts of a pod's parts; ``terms``, ``expressions`` and ``values`` are those of required node affinity.

    Admission counts up to ``quantities``. Only the controller applies and counts the rest: terms of affinity and
    anti-affinity to pods, spread constraints, labels and values in the selectors of all these, ports, volume claims.
    """

    containers: int = 0
    selector: int = 0
    tolerations: int = 0
    terms: int = 0
    expressions: int = 0
    values: int = 0
    quantities: int = 0
    affinity_terms: int = 0
    anti_affinity_terms: int = 0
    spread: int = 0
    selector_values: int = 0
    ports: int = 0
    claims: int = 0


def find_excess(spec: PodSpec) -> str:
    """Names the limit that a pod exceeds, in words for its author; empty if there is none."""
    return find_size_excess(_size(spec))


def find_size_excess(size: PodSize) -> str:
    """Names the limit that a pod of this size exceeds, in words for its author; empty if there is none."""
    one_label = "label the nodes that you mean by one label"
    counts = (
        ("the pod has", size.containers, POD_CONTAINERS, "divide it into several pods"),
        ("node selector has", size.selector, NODE_SELECTOR_LABELS, one_label),
        ("the pod has", size.tolerations, TOLERATIONS, "tolerate a key with the operator Exists"),
        ("node affinity has", size.terms, NODE_AFFINITY_TERMS, "name many values in one term, by In"),
        ("node affinity has", size.expressions, NODE_AFFINITY_EXPRESSIONS, one_label),
        ("node affinity has", size.values, NODE_AFFINITY_VALUES, one_label),
        ("the pod has", size.quantities, POD_QUANTITIES, "ask for fewer resources"),
        ("pod affinity has", size.affinity_terms, POD_AFFINITY_TERMS, "name many values in one term, by In"),
        ("pod anti-affinity has", size.anti_affinity_terms, POD_AFFINITY_TERMS, "name many values in one term, by In"),
        ("the pod has", size.spread, SPREAD_CONSTRAINTS, "spread over zone and host"),
        ("pod affinity and spread have", size.selector_values, SELECTOR_VALUES, "label the pods meant by one label"),
        ("the pod has", size.ports, HOST_PORTS, "name the ports of the host alone"),
        ("the pod has", size.claims, POD_CLAIMS, "put the data into fewer volumes"),
    )
    return next(
        (
            f"{subject} {count:,} {limit.unit}, {limit} are allowed: {remedy}"
            for subject, count, limit, remedy in counts
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
    affinity_terms = _terms(spec.affinity.pod_affinity if spec.affinity is not None else None)
    anti_affinity_terms = _terms(spec.affinity.pod_anti_affinity if spec.affinity is not None else None)
    spread = spec.topology_spread_constraints
    rules: tuple[PodAffinityTerm | TopologySpreadConstraint, ...] = (
        *affinity_terms[:POD_AFFINITY_TERMS],
        *anti_affinity_terms[:POD_AFFINITY_TERMS],
        *spread[:SPREAD_CONSTRAINTS],
    )
    return PodSize(
        containers=len(containers),
        selector=len(spec.node_selector),
        tolerations=len(spec.tolerations),
        terms=len(terms),
        expressions=len(tests),
        values=sum(len(test.values) for test in tests),
        quantities=sum(len(each.resources.limits) + len(each.resources.requests) for each in containers),
        affinity_terms=len(affinity_terms),
        anti_affinity_terms=len(anti_affinity_terms),
        spread=len(spread),
        selector_values=sum(map(selector_values, rules)),
        ports=sum(len(each.ports) for each in containers),
        claims=sum(each.persistent_volume_claim is not None or each.ephemeral is not None for each in spec.volumes),
    )


def _terms(rule: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return rule.required if rule is not None else ()


def selector_values(rule: PodAffinityTerm | TopologySpreadConstraint) -> int:
    """Labels and values in the selectors of a rule about other pods."""
    selectors = [rule.label_selector]
    names = 0
    if isinstance(rule, PodAffinityTerm):
        selectors.append(rule.namespace_selector)
        names = len(rule.namespaces)
    return names + sum(
        len(each.match_labels) + sum(1 + len(test.values) for test in each.match_expressions)
        for each in selectors
        if each is not None
    )
