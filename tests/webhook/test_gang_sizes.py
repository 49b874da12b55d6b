"""The size of a gang that a Job's author leaves to the Job."""

from typing import Any

import pytest
from tests.webhook.test_decision import cluster
from tests.webhook.test_slice_admission import A100

from tessera.api.pod_templates import JOB, KINDS
from tessera.webhook.base import PodRefused, Rule
from tessera.webhook.decision import decide_admission
from tessera.webhook.device_admission import decide_device_admission
from tessera.webhook.pod_json import apply_operations
from tessera.webhook.template_admission import decide_templates

SIZE = "tessera.dev/gang-size"


def job(size: str | None, **spec: Any) -> dict[str, Any]:
    """A Job outside any queue."""
    annotations = {"other": "1"} if size is None else {"other": "1", SIZE: size}
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": "j"},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}, **spec},
    }


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"parallelism": 4}, "4"),
        ({"parallelism": 4, "completions": 4}, "4"),
        ({"parallelism": 8, "completions": 3}, "3"),
        ({"parallelism": 2, "completions": 100}, "2"),
        ({"parallelism": 4, "completions": None}, "4"),
        ({}, "1"),
        ({"completions": 5}, "1"),
        ({"parallelism": 0}, "1"),
    ],
)
def test_it_is_the_number_of_pods_that_run_at_the_same_time(spec: dict[str, Any], size: str) -> None:
    item = job("parallelism", **spec)
    after = apply_operations(item, decide_templates(JOB, item, cluster()))
    assert after["spec"]["template"]["metadata"]["annotations"] == {"other": "1", SIZE: size}
    assert list(decide_templates(JOB, after, cluster())) == []


def test_a_number_of_the_author_stays_and_other_kinds_are_left_alone() -> None:
    assert not decide_templates(JOB, job("4", parallelism=8), cluster())
    assert not decide_templates(JOB, job(None, parallelism=8), cluster())
    for kind in KINDS:
        if kind != JOB:
            assert not decide_templates(kind, job("parallelism", parallelism=8), cluster())


@pytest.mark.parametrize("found", [{}, {"spec": None}, {"spec": {"template": []}}, {"spec": {"template": {}}}])
def test_a_job_of_a_wrong_form_is_the_api_servers_to_refuse(found: dict[str, Any]) -> None:
    assert not decide_templates(JOB, found, cluster())


def test_a_gang_that_is_too_large_is_refused_with_the_field_to_change() -> None:
    with pytest.raises(PodRefused, match=r"the Job runs 257 pods at a time, and a gang has 256 at most: lower spec"):
        decide_templates(JOB, job("parallelism", parallelism=257), cluster())


def pod(labels: dict[str, str], annotations: dict[str, str], resource: str, owned: bool) -> dict[str, Any]:
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}]
    metadata = {"name": "p", "labels": labels, "annotations": annotations, "ownerReferences": owners if owned else []}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}]}}


@pytest.mark.parametrize(
    ("labels", "annotations", "owned", "text"),
    [
        ({}, {SIZE: "two"}, True, r'"two" is no number of pods; write for example "4"'),
        ({}, {SIZE: "-3"}, True, r'"-3" is no number of pods'),
        ({}, {SIZE: "parallelism"}, True, r"counts in the pod template of a Job"),
        ({}, {SIZE: "100000"}, True, r"a gang of 100000 pods is too large; at most 256 pods"),
        ({}, {SIZE: "4"}, False, r"add the label"),
        ({"tessera.dev/gang": "g"}, {}, False, r"the annotation tessera.dev/gang-size is missing"),
    ],
)
def test_a_pod_whose_gang_has_no_size_is_refused_when_it_is_created(
    labels: dict[str, str], annotations: dict[str, str], owned: bool, text: str
) -> None:
    """It would wait for ever, and its author would look at its events only later."""
    with pytest.raises(PodRefused, match=text) as refused:
        decide_admission(pod(labels, annotations, "nvidia.com/mig-1g.5gb", owned), A100)
    assert refused.value.rule is Rule.GANG
    with pytest.raises(PodRefused, match=text):
        decide_device_admission(pod(labels, annotations, "nvidia.com/gpu", owned), cluster())


def test_a_gang_with_a_size_is_admitted_and_pods_without_cards_are_not_asked() -> None:
    assert decide_admission(pod({}, {SIZE: "4"}, "nvidia.com/mig-1g.5gb", True), A100)
    assert decide_device_admission(pod({"tessera.dev/gang": "g"}, {SIZE: "2"}, "nvidia.com/gpu", False), cluster())
    assert not decide_admission(pod({}, {SIZE: "two"}, "cpu", True), cluster())
