"""``tessera.dev/whole-card: slice``: a request for a whole card becomes one for all of a card that is cut on demand."""

from typing import Any

import pytest
from tests.webhook.test_decision import A100, CLUSTER, DYNAMIC, cluster, decided, needing, offer

from tessera.api.names import GATE, QUOTA_RESOURCE
from tessera.mig.models import MODELS
from tessera.mig.names import resource_spelling
from tessera.webhook.base import PodRefused
from tessera.webhook.decision import WHOLE_PROFILES, decide_admission
from tessera.webhook.review import find_warnings

CARD = {"nvidia.com/gpu": "1"}


@pytest.fixture(autouse=True)
def sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose cards are cut on demand as a whole; the node "half" keeps a part of each for a layout."""
    whole = offer(A100, "nvidia.com/mig-7g.40gb", DYNAMIC, 4, 40)
    monkeypatch.setitem(CLUSTER, "sliced", ("dynamic", [whole, offer(A100, "nvidia.com/mig-3g.20gb", DYNAMIC, 8, 20)]))


def wanting(limits: dict[str, Any] = CARD, value: str = "slice") -> dict[str, Any]:
    return needing(dict(limits), whole_card=value)


def test_a_whole_card_becomes_the_slice_of_all_of_a_card_with_gate_charge_and_reason() -> None:
    pod = wanting()
    after = decided(pod, cluster("sliced", "half", "fixed"))
    resources = after["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/mig-7g.40gb": "1", QUOTA_RESOURCE: "40Gi"}
    assert resources["requests"] == resources["limits"]
    assert after["spec"]["schedulingGates"] == [{"name": GATE}]
    annotations = after["metadata"]["annotations"]
    assert annotations["tessera.dev/chosen-resource"] == "nvidia.com/mig-7g.40gb"
    assert "no node offers nvidia.com/gpu" in annotations["tessera.dev/chosen-resource-reason"]
    assert list(find_warnings(pod, cluster("sliced", "half", "fixed"))) == []


@pytest.mark.parametrize(
    ("pod", "nodes"),
    [
        (wanting(), ("sliced", "whole")),  # a whole card is offered
        (wanting(), ("half", "fixed")),  # no whole card is cut on demand
        (needing(dict(CARD)), ("sliced",)),  # the pod does not say so
        (wanting({"cpu": "1"}), ("sliced",)),
    ],
)
def test_a_pod_stays_as_it_is(pod: dict[str, Any], nodes: tuple[str, ...]) -> None:
    assert list(decide_admission(pod, cluster(*nodes))) == []


def test_the_nodes_that_the_author_selects_decide() -> None:
    pod = wanting()
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "sliced"}
    after = decided(pod, cluster("sliced", "whole"))
    assert "nvidia.com/mig-7g.40gb" in after["spec"]["containers"][0]["resources"]["limits"]


def test_another_value_is_refused_with_the_right_one() -> None:
    with pytest.raises(PodRefused, match='"mig" is no value; the only one is slice'):
        decide_admission(wanting(value="mig"), cluster("sliced"))
    misspelt = needing(dict(CARD), whole_crad="slice")
    with pytest.raises(PodRefused, match="did you mean"):
        decide_admission(misspelt, cluster("sliced"))


def test_a_whole_cards_profile_is_a_part_of_no_other_card() -> None:
    parts = {
        resource_spelling(row.name)
        for model in MODELS
        if model.table is not None
        for row in model.table.profiles
        if row.max_count > 1
    }
    assert not parts & WHOLE_PROFILES.keys()
    assert {"7g.40gb": 40, "4g.24gb": 24, "7g.141gb": 141}.items() <= WHOLE_PROFILES.items()
