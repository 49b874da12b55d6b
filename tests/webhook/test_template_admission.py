"""Templates of queued objects get what their pods will get, but for the gate; a second review changes nothing."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.webhook.test_decision import GATE, cluster, needing

from tessera.api.names import QUOTA_RESOURCE
from tessera.api.pod_templates import JOB, KINDS, TemplateKind, find_kind, find_templates
from tessera.limits import POD_TEMPLATES
from tessera.webhook.base import PodRefused
from tessera.webhook.decision import decide_admission
from tessera.webhook.pod_json import apply_operations
from tessera.webhook.review import Reviewer, ReviewError
from tessera.webhook.template_admission import asks, decide_templates

QUEUE = {"kueue.x-k8s.io/queue-name": "slices"}
EVERY = cluster()


def template(limits: dict[str, Any] | None = None, /, **needs: str) -> dict[str, Any]:
    """A template of one container."""
    found = needing(limits, **needs)
    return {"metadata": {"annotations": found["metadata"]["annotations"]}, "spec": found["spec"]}


def job(found: dict[str, Any], *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A Job in a queue."""
    metadata = {"name": "j", "labels": QUEUE if labels is None else labels}
    return {"metadata": metadata, "spec": {"template": found, **spec}}


def decided(kind: TemplateKind, item: dict[str, Any]) -> Any:
    """The object after its review; asked again on the result, nothing changes."""
    after = apply_operations(item, decide_templates(kind, item, EVERY))
    assert list(decide_templates(kind, after, EVERY)) == []
    return after


def amounts(found: Any) -> Any:
    return found["spec"]["containers"][0]["resources"]


SLICE = {"nvidia.com/mig-3g.20gb": "1", QUOTA_RESOURCE: "20Gi"}
CHOSEN = {"nvidia.com/mig-2g.10gb": "1", QUOTA_RESOURCE: "10Gi"}


def test_a_slice_in_a_jobs_template_is_charged_and_not_gated() -> None:
    after = decided(JOB, job(template({"nvidia.com/mig-3g.20gb": "1"})))
    assert amounts(after["spec"]["template"]) == {"limits": SLICE, "requests": SLICE}
    assert "schedulingGates" not in after["spec"]["template"]["spec"]


def test_a_requirement_in_a_template_becomes_the_slice_that_a_pod_would_get() -> None:
    wanted = template(gpu_memory="10Gi")
    wanted["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "half"}
    after = decided(JOB, job(wanted))["spec"]["template"]
    assert amounts(after) == {"limits": CHOSEN, "requests": CHOSEN}
    assert after["metadata"]["annotations"]["tessera.dev/chosen-resource"] == "nvidia.com/mig-2g.10gb"
    pod = {"metadata": {"name": "p", **wanted["metadata"]}, "spec": wanted["spec"]}
    assert amounts(apply_operations(pod, decide_admission(pod, EVERY))) == amounts(after)


def test_a_pod_of_the_template_gets_its_gate_and_nothing_else() -> None:
    after = decided(JOB, job(template({"nvidia.com/mig-3g.20gb": "1"})))["spec"]["template"]
    pod = {"metadata": {"name": "p", **after["metadata"]}, "spec": after["spec"]}
    assert list(decide_admission(pod, EVERY)) == [
        {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}
    ]


@pytest.mark.parametrize("suspend", [False, None])
def test_an_object_that_kueue_does_not_hold_is_left_to_its_pods(suspend: bool | None) -> None:
    item = job(template(gpu_memory="10Gi"), labels={}, **({} if suspend is None else {"suspend": suspend}))
    assert list(decide_templates(JOB, item, EVERY)) == []


def test_an_object_without_a_queue_that_is_suspended_is_decided_on() -> None:
    """Kueue suspends what it manages by a default queue; asked again after that, the webhook writes."""
    item = job(template({"nvidia.com/mig-3g.20gb": "1"}), labels={})
    assert list(decide_templates(JOB, item, EVERY)) == []
    item["spec"]["suspend"] = True
    assert amounts(decided(JOB, item)["spec"]["template"])["limits"] == SLICE


LISTS = {"replicatedJobs", "workerGroupSpecs"}


def placed(kind: TemplateKind, found: dict[str, Any]) -> dict[str, Any]:
    """An object of a kind with the template at each of its places."""
    item: dict[str, Any] = {"metadata": {"name": "x", "labels": QUEUE}}
    for pattern in kind.templates:
        at = item
        for number, part in enumerate(pattern[:-1]):
            if part in LISTS:
                (at,) = at.setdefault(part, [{}])
            elif part == "*":
                at = at if pattern[number - 1] in LISTS else at.setdefault("Worker", {})
            else:
                at = at.setdefault(part, {})
        at[pattern[-1]] = found
    return item


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_template_of_every_kind_is_charged(kind: TemplateKind) -> None:
    item = placed(kind, template({"nvidia.com/mig-3g.20gb": 1}))
    found = list(find_templates(kind, decided(kind, item)))
    assert len(found) == len(kind.templates)
    assert [amounts(each)["limits"][QUOTA_RESOURCE] for _, each in found] == ["20Gi"] * len(found)
    assert find_kind(kind.group, kind.kind) is kind


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (template(gpu_memory="900Gi"), "spec.template: no GPU of the cluster fulfils memory 900Gi"),
        (template(gpu_memroy="10Gi"), "spec.template: annotation tessera.dev/gpu-memroy: unknown; did you mean"),
        (template({"nvidia.com/mig-3g.21gb": "1"}), 'spec.template: container "main": nvidia.com/mig-3g.21gb'),
        (template({QUOTA_RESOURCE: "5Gi"}), 'spec.template: container "main": asks for 5Gi of'),
    ],
)
def test_a_template_whose_pods_would_be_refused_is_refused_by_its_path(found: dict[str, Any], words: str) -> None:
    with pytest.raises(PodRefused) as refused:
        decide_templates(JOB, job(found), EVERY)
    assert str(refused.value).startswith(words)


def test_more_templates_than_a_workload_has_pod_sets_are_refused() -> None:
    jobset = find_kind("jobset.x-k8s.io", "JobSet")
    assert jobset is not None
    one = {"template": {"spec": {"template": template({"nvidia.com/mig-1g.5gb": "1"})}}}
    item = {"metadata": {"labels": QUEUE}, "spec": {"replicatedJobs": [one] * (POD_TEMPLATES + 1)}}
    with pytest.raises(PodRefused, match="at most 18 templates"):
        decide_templates(jobset, item, EVERY)


HUGE = {"metadata": {"name": "x"}, "spec": {"containers": [{"name": f"c{n}"} for n in range(2000)]}}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([HUGE], id="a template above the limits of a review"),
        pytest.param([template({"cpu": "1"})] * (POD_TEMPLATES + 1), id="more templates than are reviewed"),
        pytest.param([{"spec": {"containers": [{"name": 5}]}}], id="a template that is no pod's"),
    ],
)
def test_templates_that_ask_for_no_slices_are_never_refused(found: list[Any]) -> None:
    jobset = find_kind("jobset.x-k8s.io", "JobSet")
    assert jobset is not None
    jobs = [{"template": {"spec": {"template": each}}} for each in found]
    without = {"metadata": {"labels": QUEUE}, "spec": {"replicatedJobs": jobs}}
    assert list(decide_templates(jobset, without, EVERY)) == []
    asking = {"template": {"spec": {"template": template({"nvidia.com/mig-3g.20gb": "1"})}}}
    mixed = {"metadata": {"labels": QUEUE}, "spec": {"replicatedJobs": [*jobs, asking]}}
    after = decided(jobset, mixed)["spec"]["replicatedJobs"]
    assert after[:-1] == jobs
    assert amounts(after[-1]["template"]["spec"]["template"])["limits"] == SLICE


@pytest.mark.parametrize(
    "wanted",
    [
        template({"nvidia.com/mig-3g.20gb": "1"}),
        template({QUOTA_RESOURCE: "5Gi"}),
        template(gpu_memory="10Gi"),
        {
            "spec": {
                "containers": [{"name": "c"}],
                "initContainers": template({QUOTA_RESOURCE: 1})["spec"]["containers"],
            }
        },
        {"spec": {"containers": [{"name": "c", "resources": {"requests": {"nvidia.com/mig-1g.5gb": "1"}}}]}},
    ],
)
def test_a_template_asks_by_a_resource_of_any_container_or_by_an_annotation(wanted: dict[str, Any]) -> None:
    assert asks(wanted)


def review(kind: TemplateKind, item: Any, operation: str = "CREATE") -> bytes:
    """An AdmissionReview of an object."""
    request = {
        "uid": "u",
        "operation": operation,
        "kind": {"group": kind.group, "version": "v1", "kind": kind.kind},
        "object": item,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def answered(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(Reviewer(EVERY).review(body))["response"]
    return found


def test_a_change_of_an_object_is_left_alone() -> None:
    assert "patch" not in answered(review(JOB, job(template({"nvidia.com/mig-3g.20gb": "1"})), "UPDATE"))


def test_another_kind_is_no_review_of_ours() -> None:
    other = TemplateKind(group="apps", plural="replicasets", kind="ReplicaSet", templates=())
    with pytest.raises(ReviewError, match="the request is about a ReplicaSet"):
        Reviewer(EVERY).review(review(other, {}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PARTS = ("metadata", "labels", "spec", "template", "containers", "replicatedJobs", "runPolicy", "suspend")


@given(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(PARTS), st.dictionaries(st.sampled_from(PARTS), JSON) | JSON),
)
def test_any_object_gets_an_answer_or_the_reason(kind: TemplateKind, item: dict[str, Any]) -> None:
    for body in (item, {**item, "metadata": {"labels": QUEUE}}):
        with suppress(ReviewError):
            assert answered(review(kind, body))["uid"] == "u"
