"""The cases of the benchmark of decisions: pods that are as costly to judge as the API server lets them be."""

from collections.abc import Callable, Iterator
from typing import Any

from bench.decisions.cluster import pod_of, with_cards
from bench.decisions.rules import MANY_NODES, RULE_CASES

from tessera.kube.resources import Pod


def _affinity(terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _test(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def _few_pods_of_many_terms() -> Iterator[Pod]:
    for number in range(4):
        terms = [_test("zone", "In", f"p{number}-{i}") for i in range(12_000)]
        yield pod_of(f"p{number}", slices={"1g.5gb": 1}, affinity=_affinity(terms))


def _many_pods_of_some_terms() -> Iterator[Pod]:
    for number in range(300):
        terms = [_test(f"label-{i % 20}", "In", f"p{number}-{i}") for i in range(500)]
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, affinity=_affinity(terms))


def _many_pods_at_the_limit() -> Iterator[Pod]:
    for number in range(300):
        terms = [_test(f"label-{i % 20}", "In", f"p{number}-{i}", "x", "y") for i in range(100)]
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, affinity=_affinity(terms))


def _one_term_of_many_tests() -> Iterator[Pod]:
    for number in range(300):
        tests = [{"key": f"label-{i % 20}", "operator": "NotIn", "values": [f"{number}-{i}"]} for i in range(500)]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, affinity=_affinity([{"matchExpressions": tests}]))


def _numbers() -> Iterator[Pod]:
    for number in range(300):
        tests = [{"key": "label-1", "operator": "Gt", "values": ["9" * 4000]} for i in range(50)]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, affinity=_affinity([{"matchExpressions": tests}]))


def _selectors() -> Iterator[Pod]:
    for number in range(300):
        selector = {f"label-{i}": f"{number}-{i}" for i in range(3_000)}
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, nodeSelector=selector)


def _tolerations() -> Iterator[Pod]:
    for number in range(300):
        rows = [{"key": "dedicated", "operator": "Equal", "value": f"{number}-{i}"} for i in range(2_000)]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, tolerations=rows, nodeSelector={"zone": "z0"})


def _amounts() -> Iterator[Pod]:
    for number in range(3_000):
        yield pod_of(f"p{number:04}", slices={"1g.5gb": 1}, requests={"cpu": f"{100_000 + number}m"})


def _resources() -> Iterator[Pod]:
    for number in range(100):
        rows = {f"example.com/r{i}": str(number + i) for i in range(3_000)}
        yield pod_of(f"p{number:03}", slices={"1g.5gb": 1}, requests=rows)


def _containers() -> Iterator[Pod]:
    for number in range(20):
        yield pod_of(
            f"p{number:03}", slices={"1g.5gb": 1}, requests={"cpu": "1m", "memory": f"{number}Gi"}, count=5_000
        )


def _slices() -> Iterator[Pod]:
    for number in range(300):
        yield pod_of(
            f"p{number:03}", slices={"1g.5gb": 3 + number % 7, "2g.10gb": 1 + number // 7, "3g.20gb": 3, "1g.10gb": 3}
        )


def _distinct_nodes() -> Iterator[Pod]:
    for number in range(1_000):
        terms = [_test("kubernetes.io/hostname", "In", f"n{2 * number}")]
        yield pod_of(f"p{number:03}", slices={"7g.40gb": 1}, affinity=_affinity(terms), requests={"cpu": f"{number}m"})


def _plain() -> Iterator[Pod]:
    for number in range(1_000):
        yield pod_of(f"p{number:04}", slices={"1g.5gb" if number % 3 else "2g.10gb": 1}, requests={"cpu": "1"})


def _card_holders(nodes: int = 1_000) -> Iterator[Pod]:
    """Pods that leave each node another amount of CPU or memory, in steps of the ratings: a core, 4 GiB."""
    for number in range(nodes):
        cpu, gib = f"{4 + number % 40}", 4 * (number // 40)
        yield with_cards(f"there-{number}", cpu, 1 + number % 5, node=f"n{number}", gib=gib)


def _cards() -> Iterator[Pod]:
    yield from _card_holders()
    for number in range(1_000):
        yield with_cards(f"p{number:04}", f"{4 * (1 + number % 4)}", 1 + number % 2)


def _odd_cards() -> Iterator[Pod]:
    yield from _card_holders()
    for number in range(3_000):
        yield with_cards(f"p{number:04}", f"{1 + number % 30}", gib=4 * (number // 30))


def _card_kinds() -> Iterator[Pod]:
    yield from _card_holders()
    for number in range(2_000):
        others = {"example.com/absent": "1"}
        yield with_cards(f"p{number:04}", f"{1 + number % 30}", gib=4 * (number // 30), others=others)


def _first_cards() -> Iterator[Pod]:
    yield from _card_holders(MANY_NODES)


CASES: dict[str, Callable[[], Iterator[Pod]]] = {
    "plain": _plain,
    "terms-12000": _few_pods_of_many_terms,
    "terms-500": _many_pods_of_some_terms,
    "terms-100": _many_pods_at_the_limit,
    "tests-500": _one_term_of_many_tests,
    "numbers": _numbers,
    "selectors": _selectors,
    "tolerations": _tolerations,
    "amounts": _amounts,
    "resources": _resources,
    "containers": _containers,
    "slices": _slices,
    "distinct-nodes": _distinct_nodes,
    **RULE_CASES,
    "cards": _cards,
    "odd-cards": _odd_cards,
    "card-kinds": _card_kinds,
    "first-cards": _first_cards,
}

#: Cases with whole cards instead of slices.
CARD_CASES = {"cards", "odd-cards", "card-kinds", "first-cards"}
#: Of these, cases whose namespace is managed only after everything else is known.
LATE_CASES = {"first-cards"}

#: Nodes of the cases that have a cluster of their own.
SIZES = {"honest": MANY_NODES, "first-cards": MANY_NODES}
