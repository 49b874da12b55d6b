"""The review of any pod is cheap; a pod that would cost too much is refused, and the refusal names the limit."""

from itertools import count
from typing import Any

import msgspec
import pytest
from bench.reviews import bodies, cluster, review, reviewed
from tests.support.cost import count_calls, run_within

from tessera.limits import (
    NODE_AFFINITY_EXPRESSIONS,
    NODE_AFFINITY_TERMS,
    NODE_AFFINITY_VALUES,
    OWN_ANNOTATIONS,
    POD_CONTAINERS,
    PRODUCTS,
    REQUIREMENT,
)
from tessera.webhook.base import PodRefused, ReviewBudget
from tessera.webhook.capabilities import Capabilities, GpuNode
from tessera.webhook.decision import decide_admission
from tessera.webhook.review import Reviewer

#: CPU seconds. The bar of bench/reviews.py is 0.2; a machine whose caches hold other work gets more here.
GENEROUS = 0.8
SLICE = {"nvidia.com/mig-1g.5gb": "1"}


@pytest.fixture(scope="module")
def known() -> Capabilities:
    """5,000 nodes."""
    return cluster(5000)


@pytest.mark.parametrize(("name", "body"), [pytest.param(*each, id=each[0]) for each in bodies()])
def test_a_review_of_a_pod_of_a_mebibyte_in_a_large_cluster_ends_soon(
    name: str, body: bytes, known: Capabilities
) -> None:
    run_within(GENEROUS, lambda: reviewed(body, known), name)


def test_a_change_of_a_node_costs_the_same_in_a_large_cluster(known: Capabilities) -> None:
    def change(nodes: Capabilities) -> None:
        node = next(nodes.nodes(1))
        for number in range(100):
            nodes.put(msgspec.structs.replace(node, name=f"more-{number}"))
        for number in range(100):
            nodes.drop(f"more-{number}")

    in_large, _ = count_calls(lambda: change(known))
    in_small, _ = count_calls(lambda: change(cluster(8)))
    assert in_large < 1.5 * in_small


def refusal(pod: dict[str, Any], known: Capabilities) -> str:
    response = msgspec.json.decode(Reviewer(known).review(review(pod)))["response"]
    return str(response.get("status", {}).get("message", ""))


def pod(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"limits": SLICE if annotations is None else {}}}
    return {"metadata": {"annotations": annotations or {}}, "spec": {"containers": [container], **spec}}


def terms(*found: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": found}}
    return {"nodeAffinity": required}


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (pod({"tessera.dev/compute-capability": " " * 16_000}), f"has 16,000 characters; {REQUIREMENT} are allowed"),
        (pod({"tessera.dev/product": "|".join(["A1"] * 50)}), f"names 50 models; {PRODUCTS} are allowed"),
        (
            pod({f"tessera.dev/x{n}": "" for n in range(65)}),
            f"65 annotations under tessera.dev/; {OWN_ANNOTATIONS}",
        ),
        (pod(initContainers=[{}] * 200), f"201 containers, {POD_CONTAINERS} are allowed"),
        (pod(affinity=terms(*[{}] * 12_000)), f"12,000 terms, {NODE_AFFINITY_TERMS} are allowed"),
        (
            pod(affinity=terms({"matchExpressions": [{}] * 501})),
            f"501 expressions, {NODE_AFFINITY_EXPRESSIONS} are allowed",
        ),
        (
            pod(affinity=terms({"matchFields": [{"values": ["n"] * 20_000}]})),
            f"20,000 values, {NODE_AFFINITY_VALUES} are allowed",
        ),
    ],
)
def test_what_is_too_much_is_refused_with_the_limit(found: dict[str, Any], says: str) -> None:
    assert says in refusal(found, Capabilities())


def test_the_names_of_nodes_that_a_pod_is_restricted_to_are_not_multiplied_without_bound(known: Capabilities) -> None:
    exists = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    needs = {"tessera.dev/product": "A100", "tessera.dev/nvlink": "true"}
    few, many = (terms(*[{"matchExpressions": [exists]}] * number) for number in (2, 10))
    assert refusal(pod(needs, affinity=few), known) == ""
    assert f"{NODE_AFFINITY_VALUES} are allowed" in refusal(pod(needs, affinity=many), known)


def test_a_review_that_has_used_its_time_is_refused_with_the_reason() -> None:
    seconds = count(0.0, 0.3)
    budget = ReviewBudget(lambda: next(seconds))
    for _ in range(3):
        budget.spend()
    with pytest.raises(PodRefused, match=r"took more than it may \(at most 1,000 ms of CPU time\)"):
        budget.spend()


def test_the_time_is_asked_for_while_a_pod_is_gone_over() -> None:
    known = Capabilities.of([GpuNode(name="n", on_demand=frozenset({"1g.5gb"}))])
    asked: list[None] = []
    known.selected_by(pod(affinity=terms(*[{}] * 10))["spec"], lambda: asked.append(None))
    assert len(asked) > 1


def test_a_review_compares_the_nodes_with_a_pods_affinity_once() -> None:
    """Each alternative is counted when it is compared; a pod with slices paid twice for all of them."""
    steps: list[None] = []
    terms_of_pod = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}] * NODE_AFFINITY_TERMS
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms_of_pod}}}
    spec = {"affinity": affinity, "containers": [{"name": "c", "resources": {"limits": SLICE}}]}
    decide_admission({"spec": spec}, cluster(10), lambda: steps.append(None))
    assert len(steps) < 1.5 * NODE_AFFINITY_TERMS
