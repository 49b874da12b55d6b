"""Limits that become ResourceClaims."""

from typing import Any

import pytest

from tessera.claims.admission import ClaimTemplate, claim_limits
from tessera.webhook.base import PodRefused
from tessera.webhook.pod_json import apply_operations

SMALL, GPU, OTHER = "nvidia.com/mig-1g.5gb", "nvidia.com/gpu", "example.com/nic"
CLASSES = {SMALL: "small", GPU: "whole"}


def container(name: str, *, restart: str = "", **limits: int) -> dict[str, Any]:
    named = {"small": SMALL, "gpu": GPU, "nic": OTHER, "cpu": "cpu"}
    amounts = {named[key]: str(amount) for key, amount in limits.items()}
    found = {"name": name, "resources": {"limits": dict(amounts), "requests": dict(amounts)}}
    return {**found, "restartPolicy": restart} if restart else found


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": list(containers), **spec}}


def claims_of(found: dict[str, Any]) -> dict[str, list[str]]:
    """By container, the templates of its claims."""
    spec = found["spec"]
    templates = {each["name"]: each["resourceClaimTemplateName"] for each in spec.get("resourceClaims", ())}
    return {
        each["name"]: [templates[claim["name"]] for claim in each["resources"].get("claims", ())]
        for each in (*spec.get("initContainers", ()), *spec["containers"])
    }


@pytest.mark.parametrize(
    ("before", "claims", "templates"),
    [
        (pod(container("c", small=1)), {"c": ["small-x1"]}, [ClaimTemplate("small", 1)]),
        (pod(container("c", gpu=4, cpu=2)), {"c": ["whole-x4"]}, [ClaimTemplate("whole", 4)]),
        (
            pod(container("c", small=2, gpu=1)),
            {"c": ["small-x2", "whole-x1"]},
            [ClaimTemplate("small", 2), ClaimTemplate("whole", 1)],
        ),
        (
            pod(container("a", small=1), container("b", small=1)),
            {"a": ["small-x1"], "b": ["small-x1"]},
            [ClaimTemplate("small", 1)],
        ),
        # An init container takes the devices of an app container.
        (
            pod(container("c", small=2), initContainers=[container("i", small=1)]),
            {"i": ["small-x2"], "c": ["small-x2"]},
            [ClaimTemplate("small", 2)],
        ),
        (
            pod(container("c", small=1), initContainers=[container("i", small=2)]),
            {"i": ["small-x2"], "c": ["small-x1"]},
            [ClaimTemplate("small", 1), ClaimTemplate("small", 2)],
        ),
        (
            pod(container("c", small=1), initContainers=[container("s", restart="Always", small=1)]),
            {"s": ["small-x1"], "c": ["small-x1"]},
            [ClaimTemplate("small", 1)],
        ),
    ],
)
def test_each_limit_is_a_claim_of_its_class_and_number(
    before: dict[str, Any], claims: dict[str, list[str]], templates: list[ClaimTemplate]
) -> None:
    found = claim_limits(before, CLASSES)
    assert list(found.templates) == templates
    after = apply_operations(before, found.operations)
    assert claims_of(after) == claims
    for each in (*after["spec"].get("initContainers", ()), *after["spec"]["containers"]):
        assert not {SMALL, GPU} & {*each["resources"]["limits"], *each["resources"]["requests"]}
    assert claim_limits(after, CLASSES).operations == ()


def test_sidecar_and_app_container_have_claims_of_their_own() -> None:
    before = pod(container("c", small=1), initContainers=[container("s", restart="Always", small=1)])
    after = apply_operations(before, claim_limits(before, CLASSES).operations)
    names = [each["resources"]["claims"] for each in (*after["spec"]["initContainers"], *after["spec"]["containers"])]
    assert names[0] != names[1]


def test_other_limits_and_claims_stay_beside() -> None:
    before = pod(container("c", small=1, nic=1, cpu=2), resourceClaims=[{"name": "limit-0", "resourceClaimName": "x"}])
    before["spec"]["containers"][0]["resources"]["claims"] = [{"name": "limit-0"}]
    after = apply_operations(before, claim_limits(before, CLASSES).operations)
    (found,) = after["spec"]["containers"]
    assert found["resources"]["limits"] == {OTHER: "1", "cpu": "2"}
    assert found["resources"]["claims"] == [{"name": "limit-0"}, {"name": "limit-1"}]
    assert [each["name"] for each in after["spec"]["resourceClaims"]] == ["limit-0", "limit-1"]


@pytest.mark.parametrize(
    "before",
    [
        pod(container("c")),
        pod(container("c", nic=1)),
        pod(container("c", small=0)),
        pod(container("c", small=1), nodeName="n"),
        {**pod(container("c", small=1)), "metadata": {"annotations": {"tessera.dev/chosen-resource": SMALL}}},
        {**pod(container("c", small=1)), "metadata": {"annotations": {"tessera.dev/gpu-memory": "5Gi"}}},
    ],
)
def test_these_pods_keep_their_limits(before: dict[str, Any]) -> None:
    assert claim_limits(before, CLASSES).operations == ()


def test_more_devices_than_a_claim_has_are_refused() -> None:
    with pytest.raises(PodRefused, match=r'container "c": asks for 33 of nvidia.com/gpu, .* at most 32 devices'):
        claim_limits(pod(container("c", gpu=33)), CLASSES)
