"""The resource that a pod with requirements gets, and the refusal that its author reads if no GPU fits."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.offers.offered import Placed, slices, whole_card

from tessera.api.nodes.node_cards import count_label
from tessera.api.nodes.offers import NodeOffer, OfferKind
from tessera.mig.models import model_by_short_name
from tessera.offers import CardProperties, Offer
from tessera.webhook.base import PodRefused
from tessera.webhook.capabilities import Capabilities, GpuNode
from tessera.webhook.decision import translate_requirements
from tessera.webhook.pod_json import apply_operations

A100 = CardProperties(
    product="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability=(8, 0), nvlink=True, ecc=True
)
H100 = CardProperties(
    product="NVIDIA H100 80GB HBM3", memory_mib=81559, compute_capability=(9, 0), nvlink=True, ecc=True
)
T4 = CardProperties(product="Tesla T4", memory_mib=15360, compute_capability=(7, 5), ecc=True)
TABLE = model_by_short_name("A100-40GB").geometry
OFFER = NodeOffer(
    resource="example.com/half",
    kind=OfferKind.SHARE,
    product=A100.product,
    card_memory_mib=A100.memory_mib,
    memory_mib=A100.memory_mib // 2,
    compute_capability="8.0",
    count=16,
    replicas=2,
)
SLICES = slices("mig", A100, TABLE, {"1g.5gb": 7, "2g.10gb": 3}, dynamic=True)


def pod(annotations: dict[str, str], *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    listed = list(containers) or [{"name": "main"}]
    metadata = {"annotations": {f"tessera.dev/{key}": value for key, value in annotations.items()}}
    return {"metadata": metadata, "spec": {"containers": listed, **spec}}


def cluster(*offers: Placed, **undescribed: str) -> Capabilities:
    """Nodes with these offers and the labels of their cards, and others that do not say what a resource is there."""
    names = sorted({offer.node for offer in offers})
    own = {name: tuple(each.offer for each in offers if each.node == name) for name in names}
    return Capabilities.of(
        [
            *(GpuNode(name=name, labels=labels(name, own[name]), compared=own[name]) for name in names),
            *(GpuNode(name=name, undescribed=frozenset({resource})) for name, resource in undescribed.items()),
        ]
    )


def labels(name: str, offers: tuple[Offer, ...]) -> dict[str, str]:
    return {"kubernetes.io/hostname": f"{name}.host"} | {count_label(offer.card.product): "1" for offer in offers}


def translated(document: dict[str, Any], *offers: Placed) -> Any:
    return apply_operations(document, translate_requirements(document, cluster(*offers)))


def test_a_pod_without_requirements_is_left_alone() -> None:
    assert translate_requirements({"spec": {"containers": [{"name": "main"}]}}, cluster(*SLICES)) == ()
    assert translate_requirements(pod({"nvlink": "false"}), cluster(*SLICES)) == ()


def test_the_smallest_slice_is_asked_for_and_recorded() -> None:
    after = translated(pod({"gpu-memory": "10Gi"}), *SLICES, whole_card("full", A100, 8))
    wanted = {"nvidia.com/mig-2g.10gb": "1"}
    assert after["spec"]["containers"][0]["resources"] == {"limits": wanted, "requests": wanted}
    annotations = after["metadata"]["annotations"]
    assert annotations["tessera.dev/chosen-resource"] == "nvidia.com/mig-2g.10gb"
    assert "is the smallest that fulfils memory 10Gi" in annotations["tessera.dev/chosen-resource-reason"]
    assert "affinity" not in after["spec"]


def test_a_second_call_patches_nothing() -> None:
    after = translated(pod({"gpu-memory": "10Gi"}), *SLICES)
    assert translate_requirements(after, cluster(*SLICES)) == ()


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
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["one.host"]}]}
    ]


def test_the_authors_own_affinity_holds_beside_ours() -> None:
    zone = {"key": "zone", "operator": "NotIn", "values": ["a"]}
    field = {"key": "metadata.name", "operator": "In", "values": ["two"]}
    old = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [field]}]}
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
        {"matchFields": [field], "matchExpressions": [ours]},
    ]
    assert after["spec"]["affinity"]["podAffinity"] == {"y": 1}
    assert after["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == soft


def test_a_term_that_matches_no_node_still_matches_none() -> None:
    written = [{}, {"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}]
    affinity: Any = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": written}}}
    document = pod({"product": "H100"}, affinity=affinity)
    assert required(translated(document, whole_card("one", T4, 4), whole_card("two", H100, 8)))[0] == {}


def test_offers_of_nodes_that_the_author_rules_out_do_not_count() -> None:
    selecting = pod({"gpu-memory": "5Gi"}, nodeSelector={"kubernetes.io/hostname": "full.host"})
    after = translated(selecting, *SLICES, whole_card("full", A100, 8))
    assert after["metadata"]["annotations"]["tessera.dev/chosen-resource"] == "nvidia.com/gpu"
    assert "affinity" not in after["spec"], "its own selector keeps it off the others"


def test_a_pod_that_its_author_bound_gets_what_that_node_has() -> None:
    after = translated(pod({"gpu-memory": "10Gi"}, nodeName="full"), *SLICES, whole_card("full", A100, 8))
    assert after["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_a_pod_without_containers_is_left_to_the_api_server() -> None:
    document = pod({"gpu-memory": "10Gi"})
    del document["spec"]["containers"]
    assert translate_requirements(document, cluster(*SLICES)) == ()


def test_nodes_that_do_not_say_what_they_give_out_are_kept_off() -> None:
    known = cluster(whole_card("one", A100, 8), other="nvidia.com/gpu", third="nvidia.com/mig-1g.5gb")
    document = pod({"gpu-memory": "5Gi"})
    assert required(apply_operations(document, translate_requirements(document, known))) == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["one.host"]}]}
    ]


def test_a_label_that_a_node_lacks_does_not_keep_pods_off_it() -> None:
    known = cluster(whole_card("one", T4, 4), whole_card("two", H100, 8))
    bare = Capabilities.of(replace(node, labels={}) for node in known.nodes(known.every))
    document = pod({"product": "H100"})
    assert required(apply_operations(document, translate_requirements(document, bare))) == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["two"]}]}
    ]


@pytest.mark.parametrize(
    ("annotations", "facts"),
    [
        ({"gpu-memory": "200Gi"}, ("the most memory that one has is 10Gi", "has 3 nvidia.com/mig-2g.10gb")),
        ({"gpu-memory": "ten"}, ('"ten" is no quantity',)),
        ({"gpu-memroy": "10Gi"}, ("did you mean tessera.dev/gpu-memory",)),
    ],
)
def test_what_cannot_be_is_refused(annotations: dict[str, str], facts: tuple[str, ...]) -> None:
    with pytest.raises(PodRefused) as error:
        translate_requirements(pod(annotations), cluster(*SLICES))
    for fact in facts:
        assert fact in str(error.value)


def test_requirements_beside_a_resource_are_refused() -> None:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    with pytest.raises(PodRefused, match="both say which GPU the pod gets"):
        translate_requirements(pod({"ecc": "true"}, container), cluster(*SLICES))


def test_a_renamed_resource_is_known_from_the_nodes_that_have_it() -> None:
    node = GpuNode(name="n", offers=(OFFER,))
    container = {"name": "main", "resources": {"limits": {"example.com/half": 1}}}
    with pytest.raises(PodRefused, match=r'resource "example\.com/half" both say'):
        translate_requirements(pod({"ecc": "true"}, container), Capabilities.of([node]))


def test_a_refusal_says_that_the_author_has_left_little() -> None:
    with pytest.raises(PodRefused, match="the pod's node selector and affinity leave offers no GPUs"):
        translate_requirements(pod({"ecc": "true"}, nodeSelector={"zone": "b"}), cluster(*SLICES))
