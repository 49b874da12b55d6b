"""What a pod with requirements is given, and what its author reads when there is nothing for it."""

from typing import Any

import pytest

from tessera.mig.models import model_by_short_name
from tessera.placement.offers import CardKind, Offer, slices, whole_card
from tessera.webhook.translation import NotTranslated, translate

A100 = CardKind(product="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability=(8, 0), nvlink=True, ecc=True)
H100 = CardKind(product="NVIDIA H100 80GB HBM3", memory_mib=81559, compute_capability=(9, 0), nvlink=True, ecc=True)
T4 = CardKind(product="Tesla T4", memory_mib=15360, compute_capability=(7, 5), ecc=True)
TABLE = model_by_short_name("A100-40GB").geometry
SLICES = slices("mig", A100, TABLE, {"1g.5gb": 7, "2g.10gb": 3}, dynamic=True)


def pod(annotations: dict[str, str], *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    listed = list(containers) or [{"name": "main"}]
    metadata = {"annotations": {f"tessera.dev/{key}": value for key, value in annotations.items()}}
    return {"metadata": metadata, "spec": {"containers": listed, **spec}}


def patched(document: Any, operations: Any) -> Any:
    """The pod after the patch: every operation here is an ``add`` of a member."""
    for operation in operations:
        assert operation["op"] == "add"
        *parents, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
        at = document
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        at[last] = operation["value"]
    return document


def translated(document: dict[str, Any], *offers: Offer) -> Any:
    return patched(document, translate(document, offers))


def test_a_pod_without_requirements_is_left_alone() -> None:
    assert translate({"spec": {"containers": [{"name": "main"}]}}, SLICES) == ()
    assert translate(pod({"nvlink": "false"}), SLICES) == ()


def test_the_smallest_slice_is_asked_for_and_recorded() -> None:
    after = translated(pod({"gpu-memory": "10Gi"}), *SLICES, whole_card("full", A100, 8))
    wanted = {"nvidia.com/mig-2g.10gb": "1"}
    assert after["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}
    annotations = after["metadata"]["annotations"]
    assert annotations["tessera.dev/chosen-resource"] == "nvidia.com/mig-2g.10gb"
    assert "is the smallest that fulfils memory 10Gi" in annotations["tessera.dev/chosen-because"]
    assert "affinity" not in after["spec"]


def test_a_second_call_patches_nothing() -> None:
    after = translated(pod({"gpu-memory": "10Gi"}), *SLICES)
    assert translate(after, SLICES) == ()


def test_other_resources_of_the_container_stay() -> None:
    container = {"name": "main", "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1"}}}
    after = translated(pod({"gpu-memory": "5Gi"}, container), *SLICES)
    assert after["spec"]["containers"][0]["resources"] == {
        "limits": {"memory": "1Gi", "nvidia.com/mig-1g.5gb": "1"},
        "requests": {"cpu": "1", "nvidia.com/mig-1g.5gb": "1"},
    }


def test_the_default_container_gets_it() -> None:
    document = pod({"gpu-memory": "5Gi"}, {"name": "proxy"}, {"name": "train"})
    document["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = "train"
    proxy, train = translated(document, *SLICES)["spec"]["containers"]
    assert "resources" not in proxy
    assert train["resources"]["limits"] == {"nvidia.com/mig-1g.5gb": "1"}


def required(document: Any) -> Any:
    affinity = document["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return affinity["nodeSelectorTerms"]


def test_cards_of_another_model_are_kept_off_by_its_label() -> None:
    after = translated(pod({"product": "H100"}), whole_card("one", T4, 4), whole_card("two", H100, 8))
    assert required(after) == [
        {"matchExpressions": [{"key": "tessera.dev/count.NVIDIA-H100-80GB-HBM3", "operator": "Exists"}]}
    ]


def test_nodes_are_named_where_no_label_tells_them_apart() -> None:
    mixed = slices("mixed", A100, TABLE, {"7g.40gb": 1}, dynamic=False)
    after = translated(pod({"nvlink": "true"}), whole_card("one", A100, 8), whole_card("mixed", T4, 1), *mixed)
    assert required(after) == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["one"]}]}
    ]


def test_the_authors_own_affinity_holds_beside_ours() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    old = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": ["x"]}]}
    soft = [{"weight": 1}]
    affinity = {
        "podAffinity": {"y": 1},
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": old,
            "preferredDuringSchedulingIgnoredDuringExecution": soft,
        },
    }
    document = pod({"product": "H100"}, affinity=affinity)
    after = translated(document, whole_card("one", T4, 4), whole_card("two", H100, 8))
    ours = {"key": "tessera.dev/count.NVIDIA-H100-80GB-HBM3", "operator": "Exists"}
    assert required(after) == [
        {"matchExpressions": [zone, ours]},
        {"matchFields": ["x"], "matchExpressions": [ours]},
    ]
    assert after["spec"]["affinity"]["podAffinity"] == {"y": 1}
    assert after["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == soft


def test_a_term_that_matches_no_node_still_matches_none() -> None:
    affinity: Any = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}}
    document = pod({"product": "H100"}, affinity=affinity)
    assert required(translated(document, whole_card("one", T4, 4), whole_card("two", H100, 8))) == [{}]


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"gpu-memory": "200Gi"}, "the most memory that one has is 10Gi. The cluster has 3 nvidia.com/mig-2g.10gb"),
        ({"gpu-memory": "ten"}, '"ten" is no quantity'),
        ({"gpu-memroy": "10Gi"}, "did you mean tessera.dev/gpu-memory"),
    ],
)
def test_what_cannot_be_is_refused(annotations: dict[str, str], text: str) -> None:
    with pytest.raises(NotTranslated) as error:
        translate(pod(annotations), SLICES)
    assert text in str(error.value)


def test_requirements_beside_a_resource_are_refused() -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    with pytest.raises(NotTranslated, match="both say which GPU the pod gets"):
        translate(pod({"ecc": "true"}, container), SLICES)
