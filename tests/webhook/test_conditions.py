"""The API server sends the webhook exactly the pods that the conditions of deploy/admission.yaml select."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.pod_templates import JOB, KINDS
from tessera.cel.evaluator import compile_expression
from tessera.webhook.base import (
    CLAIM_PATH,
    LIMIT_PATH,
    MANAGED_PATH,
    MANAGED_TEMPLATE_PATH,
    REVIEW_PATH,
    TEMPLATE_PATH,
)

CONFIGURATION = yaml.load((Path(__file__).parents[2] / "deploy" / "admission.yaml").read_text(), yaml.CSafeLoader)


def conditions_of(path: str) -> dict[str, list[Any]]:
    """The conditions of the entries that lead to a path, by the entry's first word."""
    return {
        hook["name"].removesuffix(".tessera.dev"): [
            compile_expression(condition["expression"], frozenset({"object", "oldObject", "request"}))
            for condition in hook.get("matchConditions", ())
        ]
        for hook in hooks_at(path)
    }


def hooks_at(path: str) -> list[dict[str, Any]]:
    """The entries that lead to a path."""
    return [hook for hook in CONFIGURATION["webhooks"] if hook["clientConfig"]["service"]["path"] == path]


CONDITIONS = conditions_of(REVIEW_PATH)
OF_TEMPLATES = conditions_of(TEMPLATE_PATH)
OF_MANAGED = conditions_of(MANAGED_PATH)
OF_MANAGED_TEMPLATES = conditions_of(MANAGED_TEMPLATE_PATH)


QUOTA = "instaslice.redhat.com/accelerator-memory-quota"


def asked(pod: dict[str, Any]) -> set[str]:
    """The webhooks that a pod is sent to; fails if a condition has no value."""
    scope = {"object": pod, "oldObject": None, "request": {"operation": "CREATE"}}
    held = {name: [condition.is_true(scope) for condition in conditions] for name, conditions in CONDITIONS.items()}
    return {name for name, conditions in held.items() if all(conditions)}


def pod(*limits: dict[str, Any] | None, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c"} if each is None else {"name": "c", "resources": {"limits": each}} for each in limits]
    metadata = {"name": "p"} if annotations is None else {"name": "p", "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


@pytest.mark.parametrize(
    ("found", "webhooks"),
    [
        (pod(None), ""),
        (pod({}), ""),
        (pod({"cpu": "2", "memory": "1Gi"}), ""),
        (pod({"nvidia.com/gpu": "0"}), ""),
        (pod({"nvidia.com/gpu": "1"}), "requests"),
        (pod({"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": "0"}), "requests"),
        (pod({"example.com/gpu": "4"}), "requests"),
        (pod(None, annotations={}), ""),
        (pod(None, annotations={"example.com/tessera.dev": "x"}), ""),
        (pod({"nvidia.com/gpu": "2"}), "requests"),
        (pod({"nvidia.com/gpu.shared": 2}), "requests"),
        (pod(None, {"nvidia.com/gpu.shared": "10"}), "requests"),
        (pod(None, initContainers=[{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1k"}}}]), "requests"),
        (pod({"nvidia.com/mig-1g.5gb": "1"}), "gpus"),
        (pod({"nvidia.com/mig-1g.5gb": "2"}), "gpus"),
        (pod({"nvidia.com/mig-1g.5gb.shared": "2"}), "gpus"),
        (pod(None, annotations={"tessera.dev/gpu-memory": "10Gi"}), "gpus"),
        (pod(None, annotations={"tessera.dev/gpu-memroy": "10Gi"}), "gpus"),
        (pod({QUOTA: "5Gi"}), "gpus"),
        (pod(None, initContainers=[{"name": "i", "resources": {"requests": {QUOTA: "5Gi"}}}]), "gpus"),
        (pod({"mig.das.com/1g.5gb": "1"}), "requests"),
        (pod({"instaslice.redhat.com/mig-1g.5gb": "1"}), "requests"),
        (pod({"instaslice.redhat.com/other": "1"}), ""),
        # A pod of several kinds is sent once.
        (pod({"nvidia.com/gpu": "2"}, annotations={"tessera.dev/ecc": "true"}), "gpus"),
        (pod({"nvidia.com/gpu": "2"}, {"nvidia.com/mig-1g.5gb": "1"}), "gpus"),
        (pod({"nvidia.com/mig-1g.5gb": "1"}, annotations={"tessera.dev/ecc": "true"}), "gpus"),
        (pod({"nvidia.com/gpu": "2", QUOTA: "1"}, annotations={"tessera.dev/ecc": "true"}), "gpus"),
    ],
)
def test_who_is_asked_about_a_pod(found: dict[str, Any], webhooks: str) -> None:
    assert asked(found) == set(webhooks.split())


@pytest.mark.parametrize(
    ("found", "sent"),
    [
        (pod(None), False),
        (pod({"cpu": "2"}), False),
        (pod({"nvidia.com/gpu": "1"}), True),
        (pod({"nvidia.com/gpu": "0"}), False),
        (pod({"cpu": "2"}, {"nvidia.com/gpu.shared": "2"}), True),
        (pod(None, initContainers=[{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]), True),
        (pod({"nvidia.com/mig-1g.5gb": "1"}), False),
    ],
)
def test_pods_with_whole_cards_or_shares_are_sent_from_managed_namespaces_alone(
    found: dict[str, Any], *, sent: bool
) -> None:
    (hook,) = hooks_at(MANAGED_PATH)
    assert hook["namespaceSelector"] == {"matchLabels": {"tessera.dev/placement": "managed"}}
    scope = {"object": found, "oldObject": None, "request": {"operation": "CREATE"}}
    assert all(condition.is_true(scope) for condition in OF_MANAGED["managed"]) == sent


ANNOTATIONS = st.one_of(st.text(), st.just("tessera.dev/ecc"))
NAMES = st.sampled_from(
    ["cpu", "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "mig.das.com/1g.5gb", QUOTA]
)
AMOUNTS = st.one_of(st.sampled_from(["0", "1", "2", "1k", "500m"]), st.integers(0, 3))
RESOURCES = st.fixed_dictionaries(
    {},
    optional={name: st.dictionaries(NAMES, AMOUNTS, max_size=3) for name in ("limits", "requests")},
)
CONTAINERS = st.fixed_dictionaries({"name": st.just("c")}, optional={"resources": RESOURCES})
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p")}, optional={"annotations": st.dictionaries(ANNOTATIONS, st.text(), max_size=2)}
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINERS, max_size=2)},
            optional={"initContainers": st.lists(CONTAINERS, max_size=2)},
        ),
    }
)


@given(PODS)
def test_a_condition_has_a_value_for_every_pod_and_no_pod_is_sent_twice(found: dict[str, Any]) -> None:
    assert len(asked(found)) <= 1


def test_what_must_not_slip_through_fails_closed() -> None:
    policies = {hook["name"]: hook["failurePolicy"] for hook in CONFIGURATION["webhooks"]}
    assert policies == {
        "limits.tessera.dev": "Fail",
        "limits-of-nodes.tessera.dev": "Fail",
        "gpus.tessera.dev": "Fail",
        "requests.tessera.dev": "Ignore",
        "managed.tessera.dev": "Fail",
        "claims.tessera.dev": "Ignore",
        "jobs.tessera.dev": "Fail",
        "templates.tessera.dev": "Ignore",
        "managed-jobs.tessera.dev": "Ignore",
        "managed-templates.tessera.dev": "Ignore",
        "workloads.tessera.dev": "Ignore",
    }


def test_all_of_them_are_one_service_that_is_asked_again_when_others_change_the_pod() -> None:
    first, *others = (
        {key: value for key, value in hook.items() if key not in {"name", "failurePolicy", "matchConditions"}}
        for hook in hooks_at(REVIEW_PATH)
    )
    assert first["reinvocationPolicy"] == "IfNeeded"
    assert all(other == first for other in others)
    assert {hook["reinvocationPolicy"] for hook in hooks_at(TEMPLATE_PATH)} == {"IfNeeded"}


QUEUE = {"kueue.x-k8s.io/queue-name": "slices"}
SIZE = "tessera.dev/gang-size"
GANG = {"metadata": {"annotations": {SIZE: "parallelism"}}, "spec": pod({"nvidia.com/gpu": "1"})["spec"]}
SLICES = {"spec": pod({"nvidia.com/mig-1g.5gb": "1"})["spec"]}


def is_sent(entry: str, item: dict[str, Any]) -> bool:
    """True if an object is sent; fails if a condition has no value."""
    scope = {"object": item, "oldObject": None, "request": {"operation": "CREATE"}}
    return all(condition.is_true(scope) for condition in OF_TEMPLATES[entry])


@given(PODS)
def test_a_job_is_sent_if_a_pod_of_its_template_must_not_slip_through(found: dict[str, Any]) -> None:
    template = {name: value for name, value in found.items() if name == "spec" or value.get("annotations")}
    job = {"metadata": {"name": "j", "labels": QUEUE}, "spec": {"template": template}}
    assert is_sent("jobs", job) == ("gpus" in asked(found))


@pytest.mark.parametrize(
    ("entry", "item", "sent"),
    [
        ("jobs", {"metadata": {"labels": QUEUE}, "spec": {"template": SLICES}}, True),
        ("jobs", {"metadata": {}, "spec": {"template": SLICES, "suspend": True}}, True),
        ("jobs", {"metadata": {}, "spec": {"template": SLICES}}, False),
        ("jobs", {"metadata": {"labels": {"a": "b"}}, "spec": {"template": SLICES, "suspend": False}}, False),
        ("jobs", {"metadata": {}, "spec": {"template": GANG}}, True),
        ("jobs", {"metadata": {}, "spec": {"template": {**GANG, "metadata": {"annotations": {SIZE: "4"}}}}}, False),
        ("templates", {"metadata": {"labels": QUEUE}}, True),
        ("templates", {"metadata": {}, "spec": {"suspend": True}}, True),
        ("templates", {"metadata": {}, "spec": {"runPolicy": {"suspend": True}}}, True),
        ("templates", {"metadata": {}, "spec": {"runPolicy": {}}}, False),
        ("templates", {"metadata": {}}, False),
    ],
)
def test_only_what_kueue_holds_and_gangs_without_a_number_are_sent(
    entry: str, item: dict[str, Any], sent: bool
) -> None:
    assert is_sent(entry, item) is sent


@given(PODS)
def test_a_job_of_a_managed_namespace_is_sent_if_a_pod_of_its_template_is(found: dict[str, Any]) -> None:
    def sent(item: dict[str, Any], conditions: list[Any]) -> bool:
        scope = {"object": item, "oldObject": None, "request": {"operation": "CREATE"}}
        return all(condition.is_true(scope) for condition in conditions)

    job = {"metadata": {"name": "j"}, "spec": {"template": found}}
    assert sent(job, OF_MANAGED_TEMPLATES["managed-jobs"]) == sent(found, OF_MANAGED["managed"])
    assert {str(hook["namespaceSelector"]) for hook in hooks_at(MANAGED_TEMPLATE_PATH)} == {
        str(hook["namespaceSelector"]) for hook in hooks_at(MANAGED_PATH)
    }


@pytest.mark.parametrize(("path", "first"), [(TEMPLATE_PATH, "jobs"), (MANAGED_TEMPLATE_PATH, "managed-jobs")])
def test_every_kind_with_templates_is_sent_when_it_is_created_and_only_then(path: str, first: str) -> None:
    rules = [(hook["name"], rule) for hook in hooks_at(path) for rule in hook["rules"]]
    sent = {(group, plural) for _, rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}
    assert sent == {(kind.group, kind.plural) for kind in KINDS}
    assert {operation for _, rule in rules for operation in rule["operations"]} == {"CREATE"}
    assert [rule["resources"] for name, rule in rules if name == f"{first}.tessera.dev"] == [[JOB.plural]]


@pytest.mark.parametrize(
    ("spec", "sent"), [({}, False), ({"resourceClaims": []}, False), ({"resourceClaims": [{"name": "gpu"}]}, True)]
)
def test_pods_with_claims_are_sent(spec: dict[str, Any], *, sent: bool) -> None:
    scope = {"object": {"spec": {"containers": [], **spec}}, "oldObject": None, "request": {"operation": "CREATE"}}
    (condition,) = conditions_of(CLAIM_PATH)["claims"]
    assert condition.is_true(scope) == sent


@pytest.mark.parametrize(
    ("found", "by_namespace", "by_selector"),
    [
        (pod(None), False, False),
        (pod({"cpu": "1"}), False, False),
        (pod({"nvidia.com/gpu": "1"}), True, False),
        (pod({QUOTA: "5Gi"}), False, False),
        (pod({"deviceclass.resource.kubernetes.io/mig.tessera.dev": "1"}), True, False),
        (pod({"nvidia.com/gpu": "1"}, nodeSelector={"tessera.dev/device-api": "dra"}), True, True),
        (pod({"nvidia.com/gpu": "1"}, nodeSelector={"tessera.dev/device-api": "deviceplugin"}), True, False),
        (pod(None, nodeSelector={"tessera.dev/device-api": "dra"}), False, False),
    ],
)
def test_pods_whose_limits_may_become_claims_are_sent(
    found: dict[str, Any], *, by_namespace: bool, by_selector: bool
) -> None:
    scope = {"object": found, "oldObject": None, "request": {"operation": "CREATE"}}
    sent = {name: all(each.is_true(scope) for each in every) for name, every in conditions_of(LIMIT_PATH).items()}
    assert sent == {"limits": by_namespace, "limits-of-nodes": by_selector}
    selectors = {hook["name"]: hook.get("namespaceSelector") for hook in hooks_at(LIMIT_PATH)}
    assert selectors["limits.tessera.dev"] == {"matchLabels": {"tessera.dev/device-api": "dra"}}
    assert selectors["limits-of-nodes.tessera.dev"] is None
