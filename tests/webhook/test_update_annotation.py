"""The annotation by which an old pod ends for a new one: a wrong value is refused, an idle one gets a warning."""

from typing import Any

import pytest
from tests.webhook.test_decision import cluster
from tests.webhook.test_gang_sizes import pod
from tests.webhook.test_slice_admission import A100

from tessera.api.names import HAND_OVER, UPDATE_ANNOTATION
from tessera.api.pod_templates import TemplateKind
from tessera.webhook.base import PodRefused, Rule
from tessera.webhook.decision import decide_admission
from tessera.webhook.device_admission import decide_device_admission
from tessera.webhook.review import find_template_warnings, find_warnings

SLICE, CARD = "nvidia.com/mig-1g.5gb", "nvidia.com/gpu"


def annotated(value: str, resource: str = SLICE, owned: bool = True) -> dict[str, Any]:
    return pod({}, {UPDATE_ANNOTATION: value}, resource, owned)


@pytest.mark.parametrize("value", ["handover", "true", "", "x" * 5000])
def test_an_unknown_value_is_refused_with_what_to_write(value: str) -> None:
    with pytest.raises(PodRefused, match=r"is unknown: write hand-over, so that") as refused:
        decide_admission(annotated(value), A100)
    assert refused.value.rule is Rule.UPDATE
    assert len(str(refused.value)) < 400
    with pytest.raises(PodRefused, match="write hand-over"):
        decide_device_admission(annotated(value, CARD), cluster())


def test_the_value_is_admitted_and_pods_without_cards_are_not_asked() -> None:
    assert decide_admission(annotated(HAND_OVER), A100)
    assert decide_device_admission(annotated(HAND_OVER, CARD), cluster())
    assert not decide_admission(annotated("wrong", "cpu"), A100)


@pytest.mark.parametrize(("kind", "warned"), [("Deployment", False), ("StatefulSet", True), ("Job", True)])
def test_a_kind_that_makes_no_pod_beside_the_old_one_gets_a_warning(kind: str, warned: bool) -> None:
    of = TemplateKind(group="apps", plural="x", kind=kind, templates=(("spec", "template"),))
    item = {"spec": {"template": annotated(HAND_OVER, owned=False)}}
    assert any("has no effect on a" in each for each in find_template_warnings(of, item, A100)) is warned


def test_a_pod_without_owner_gets_a_warning() -> None:
    assert any("no effect on a Pod" in each for each in find_warnings(annotated(HAND_OVER, owned=False), A100))
