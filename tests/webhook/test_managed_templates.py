"""In managed namespaces, templates with more whole cards than any node has are refused, as their pods are."""

from contextlib import nullcontext
from typing import Any

import msgspec
import pytest
from tests.webhook.test_impossible_devices import EIGHT, FOUR, container, groups

from tessera.api.pod_templates import JOB, KINDS, TemplateKind, find_kind
from tessera.limits import POD_TEMPLATES
from tessera.webhook.base import MANAGED_TEMPLATE_PATH, TEMPLATE_PATH, PodRefused, Rule
from tessera.webhook.capabilities import Capabilities
from tessera.webhook.device_admission import check_managed_templates
from tessera.webhook.review import Reviewer

KNOWN = Capabilities.of([FOUR, EIGHT])
#: The value of ``managedBy`` with which Kueue runs an object in another cluster.
ELSEWHERE = "kueue.x-k8s.io/multikueue"


def template(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def job(found: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j"}, "spec": {"template": found}}


def of_kind(kind: TemplateKind, found: dict[str, Any]) -> dict[str, Any]:
    """An object of a kind with this template wherever the kind has one."""
    item: dict[str, Any] = {}
    for path in kind.templates:
        at = item
        for place, name in enumerate(path[:-1]):
            at = at.setdefault("entry" if name == "*" else name, {}) if path[place + 1 :] else at
        at[path[-1]] = found
    return item


def test_a_job_that_no_node_could_hold_is_refused_with_the_text_of_its_pods() -> None:
    with pytest.raises(PodRefused) as refused:
        check_managed_templates(JOB, job(template(container(whole=5), container(whole=4))), KNOWN)
    assert refused.value.rule is Rule.IMPOSSIBLE
    assert str(refused.value) == (
        "spec.template: spec.containers: no node could hold 9 x nvidia.com/gpu, even empty; all cards of a pod are on"
        " one node, and the largest holds 8 x nvidia.com/gpu: ask for no more, or divide the work among pods"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_kind_with_templates_is_checked_whether_kueue_holds_it_or_not(kind: TemplateKind) -> None:
    assert check_managed_templates(kind, of_kind(kind, template(container(whole=8))), KNOWN) == []
    with pytest.raises(PodRefused, match=r"^spec\..*: spec\.containers: no node could hold 9 x nvidia"):
        check_managed_templates(kind, of_kind(kind, template(container(whole=9))), KNOWN)


def test_the_nodes_and_groups_that_the_template_selects_decide() -> None:
    known = Capabilities.of([FOUR, EIGHT])
    known.set_groups(groups("count: 16, kind: whole"))
    assert check_managed_templates(JOB, job(template(container(whole=16))), known) == []
    with pytest.raises(PodRefused, match=r"that it selects .* the largest holds 4 x"):
        check_managed_templates(JOB, job(template(container(whole=16), nodeSelector={"pool": "four"})), known)


@pytest.mark.parametrize(
    "found",
    [
        template(container()),
        template({"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.5gb": "50", "nvidia.com/gpu": "9"}}}),
        template({"name": "c", "resources": {"limits": ["nvidia.com/gpu"]}}),
        {"spec": None},
        {"spec": {"containers": "x"}},
        5,
    ],
)
def test_templates_without_whole_cards_and_those_of_a_wrong_form_are_left_to_others(found: Any) -> None:
    assert check_managed_templates(JOB, job(found), KNOWN) == []


def test_no_more_templates_are_read_than_the_limit_allows() -> None:
    kind = find_kind("jobset.x-k8s.io", "JobSet")
    assert kind is not None
    small, large = (template(container(whole=count)) for count in (1, 9))
    for number, read in ((int(POD_TEMPLATES) - 1, True), (int(POD_TEMPLATES), False)):
        jobs = [{"template": {"spec": {"template": each}}} for each in [small] * number + [large]]
        try:
            check_managed_templates(kind, {"spec": {"replicatedJobs": jobs}}, KNOWN)
        except PodRefused:
            assert read
        else:
            assert not read


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        pytest.param("batch/Job", {"managedBy": ELSEWHERE}, id="a Job for another cluster"),
        pytest.param("kubeflow.org/PyTorchJob", {"runPolicy": {"managedBy": ELSEWHERE}}, id="kubeflow"),
        pytest.param("batch/Job", {"parallelism": 0}, id="a Job without pods"),
        pytest.param("batch/Job", {"completions": 0}, id="a Job that needs none"),
        pytest.param("leaderworkerset.x-k8s.io/LeaderWorkerSet", {"replicas": 0}, id="no groups of leader and workers"),
    ],
)
def test_an_object_that_makes_no_pods_here_is_left_alone(kind: str, spec: dict[str, Any]) -> None:
    found = find_kind(*kind.split("/"))
    assert found is not None
    item = of_kind(found, template(container(whole=9)))
    item["spec"] |= spec
    assert list(check_managed_templates(found, item, KNOWN)) == []


@pytest.mark.parametrize(("size", "leader", "refused"), [(1, True, False), (1, False, True), (2, True, True)])
def test_a_group_of_one_has_a_leader_and_no_workers(size: int, leader: bool, refused: bool) -> None:
    kind = find_kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
    assert kind is not None
    made: dict[str, Any] = {"size": size, "workerTemplate": template(container(whole=9))}
    made |= {"leaderTemplate": template(container(whole=1))} if leader else {}
    item = {"spec": {"replicas": 1, "leaderWorkerTemplate": made}}
    with pytest.raises(PodRefused) if refused else nullcontext():
        check_managed_templates(kind, item, KNOWN)


@pytest.mark.parametrize(
    ("group", "refused"),
    [
        ({"replicas": 0, "maxReplicas": 0}, False),
        ({"replicas": 0}, False),
        ({"replicas": 0, "maxReplicas": 4}, True),
        ({"replicas": 1, "maxReplicas": 4}, True),
        ({}, True),
    ],
)
def test_a_worker_group_that_makes_no_pods_is_left_alone(group: dict[str, int], refused: bool) -> None:
    kind = find_kind("ray.io", "RayCluster")
    assert kind is not None
    small = {"replicas": 1, "template": template(container(whole=1))}
    item = {"spec": {"workerGroupSpecs": [small, {**group, "template": template(container(whole=9))}]}}
    try:
        check_managed_templates(kind, item, KNOWN)
    except PodRefused:
        assert refused
    else:
        assert not refused


@pytest.mark.parametrize("spec", [{"managedBy": "kubernetes.io/job-controller"}, {"managedBy": 5}, {"parallelism": 1}])
def test_a_job_that_runs_here_is_checked(spec: dict[str, Any]) -> None:
    item = job(template(container(whole=9)))
    item["spec"] |= spec
    with pytest.raises(PodRefused):
        check_managed_templates(JOB, item, KNOWN)


def review(item: dict[str, Any], path: str) -> Any:
    request = {"uid": "u", "kind": {"kind": "Job", "group": "batch"}, "operation": "CREATE", "object": item}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return msgspec.json.decode(Reviewer(KNOWN).review(msgspec.json.encode(body), path))["response"]


def test_a_review_of_a_managed_namespace_checks_and_changes_nothing() -> None:
    large, small = job(template(container(whole=9))), job(template(container(whole=8)))
    assert review(large, TEMPLATE_PATH)["allowed"]
    answer = review(large, MANAGED_TEMPLATE_PATH)
    assert (answer["allowed"], answer["status"]["code"]) == (False, 422)
    assert review(small, MANAGED_TEMPLATE_PATH) == {"uid": "u", "allowed": True}
