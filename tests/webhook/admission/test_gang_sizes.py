"""The size of a gang that a Job's author leaves to the Job."""

from typing import Any

import pytest
from tests.webhook.admission.test_decision import cluster

from tessera.kueue.templates import JOB, KINDS
from tessera.webhook.admission.json_patch import apply_operations
from tessera.webhook.admission.template_admission import decide_templates
from tessera.webhook.base.budget import PodRefused

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
