"""Preferences: among places that cost the packing nothing more, a pod gets one on a node that it prefers."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import msgspec
import pytest
from tests.support.slicer_cluster import SlicerCluster

from tessera.api.names import PLACEMENT_LABEL, PLACEMENT_MANAGED, NodeName
from tessera.clock import rfc3339
from tessera.controller.base import PREFERENCE_PRICES
from tessera.controller.cluster.volumes import MODELS, NodeModels, read_models
from tessera.controller.objects.node_info import read_node
from tessera.controller.objects.pod_constraints import read_images
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.pod_preferences import PREFERENCES, read_preferences
from tessera.controller.slicing.state.events import NodeObserved, StorageObserved
from tessera.kube.resources import Node, Pod
from tessera.limits import NODE_IMAGES

HOST = "kubernetes.io/hostname"


def pod_with(**spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"namespace": "default"}, "spec": spec}, Pod)


def near(app: str, weight: int = 100) -> list[dict[str, Any]]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": HOST}
    return [{"weight": weight, "podAffinityTerm": term}]


def on_nodes(key: str, *values: str, weight: int = 100) -> dict[str, Any]:
    tests = [{"key": key, "operator": "In", "values": list(values)}]
    preferred = [{"weight": weight, "preference": {"matchExpressions": tests}}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def beside(app: str, weight: int = 100) -> dict[str, Any]:
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": near(app, weight)}}


def apart(app: str, weight: int = 100) -> dict[str, Any]:
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": near(app, weight)}}


SPREAD = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": HOST,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }
    ]
}


@pytest.fixture
def cluster() -> SlicerCluster:
    """Eight empty nodes; the data is on one in the middle."""
    made = SlicerCluster()
    made.pass_time(0)
    for number in range(8):
        made.node(f"n{number}")
    made.pod("data", gates=(), node="n5", labels=(("app", "data"),))
    made.settle()
    return made


def create(cluster: SlicerCluster, name: str, *profiles: str, **spec: Any) -> PodInfo:
    preferences = read_preferences(pod_with(**spec))
    assert preferences
    return cluster.pod(
        name, *profiles, preferences=preferences, labels=(("app", "web"),), created=rfc3339(cluster.date)
    )


def nodes(cluster: SlicerCluster, *pods: PodInfo) -> list[str]:
    cluster.settle()
    return [cluster.where(pod)[0][0] for pod in pods]


@pytest.mark.parametrize("profiles", [("7g.40gb",), ("3g.20gb", "3g.20gb")])
@pytest.mark.parametrize(
    ("affinity", "node"),
    [
        pytest.param(on_nodes(HOST, "n3"), "n3", id="a node"),
        pytest.param(beside("data"), "n5", id="beside a pod"),
        pytest.param({**on_nodes(HOST, "n3", weight=1), **beside("data", 2)}, "n5", id="the stronger preference"),
        pytest.param(
            {**on_nodes(HOST, "n3", weight=2), **beside("data", 1)}, "n3", id="the stronger preference, reversed"
        ),
    ],
)
def test_a_pod_gets_a_place_on_a_node_that_it_prefers(
    cluster: SlicerCluster, profiles: tuple[str, ...], affinity: dict[str, Any], node: str
) -> None:
    assert nodes(cluster, create(cluster, "pod", *profiles, affinity=affinity)) == [node]


@pytest.mark.parametrize("spec", [{"affinity": apart("web")}, SPREAD], ids=["apart", "spread"])
@pytest.mark.parametrize("together", [True, False])
def test_replicas_go_to_nodes_of_their_own(cluster: SlicerCluster, spec: dict[str, Any], together: bool) -> None:
    pods = []
    for number in range(8):
        pods.append(create(cluster, f"web-{number}", "7g.40gb", **spec))
        if not together:
            cluster.settle()
    assert sorted(nodes(cluster, *pods)) == [f"n{number}" for number in range(8)]


def test_a_preference_costs_the_packing_nothing(cluster: SlicerCluster) -> None:
    first = cluster.pod("first", "4g.20gb", created=rfc3339(cluster.date))
    (home,) = nodes(cluster, first)
    other = next(f"n{number}" for number in range(8) if f"n{number}" != home)
    assert nodes(cluster, create(cluster, "pod", "3g.20gb", affinity=on_nodes(HOST, other))) == [home]


def test_a_preference_that_no_node_meets_keeps_no_pod_waiting(cluster: SlicerCluster) -> None:
    assert nodes(cluster, create(cluster, "pod", "7g.40gb", affinity=on_nodes(HOST, "nowhere")))


def test_a_full_node_is_no_place_however_much_it_is_preferred(cluster: SlicerCluster) -> None:
    first = create(cluster, "first", "7g.40gb", affinity=beside("data"))
    second = create(cluster, "second", "7g.40gb", affinity=beside("data"))
    found = nodes(cluster, first, second)
    assert found[0] == "n5"
    assert found[1] != "n5"


def test_only_some_preferences_of_a_pod_count() -> None:
    terms = [each for number in range(PREFERENCES + 5) for each in near(f"app-{number}")]
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    assert len(read_preferences(pod_with(affinity={"podAffinity": rule}))) == PREFERENCES


# Replicas of one owner, whose pods say nothing

WEB = {"owner": "uid-web", "maker": "ReplicaSet/web-1"}


def replica(cluster: SlicerCluster, name: str, *profiles: str, **facts: Any) -> PodInfo:
    return cluster.pod(name, *profiles, created=rfc3339(cluster.date), **{**WEB, **facts})


@pytest.fixture
def halves() -> SlicerCluster:
    """Four nodes with two cards each, on all of which half is taken; all places for a 3g cost the same."""
    made = SlicerCluster()
    made.pass_time(0)
    for number in range(4):
        made.node(f"n{number}", count=2)
    for number in range(8):
        made.pod(f"other-{number}", "4g.20gb", created=rfc3339(made.date))
        made.settle()
    return made


@pytest.mark.parametrize("profiles", [("3g.20gb",), ("3g.20gb", "3g.20gb")], ids=["a slice", "slices"])
@pytest.mark.parametrize("together", [True, False])
def test_replicas_of_one_owner_go_to_nodes_of_their_own(
    halves: SlicerCluster, profiles: tuple[str, ...], together: bool
) -> None:
    pods = []
    for number in range(4):
        pods.append(replica(halves, f"web-{number}", *profiles))
        if not together:
            halves.settle()
    assert sorted(nodes(halves, *pods)) == ["n0", "n1", "n2", "n3"]


def test_with_more_replicas_than_nodes_each_node_has_as_many() -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    for number in range(3):
        cluster.node(f"n{number}", count=4)
    found = []
    for number in range(6):
        found += nodes(cluster, replica(cluster, f"web-{number}", "7g.40gb"))
    assert sorted(found) == ["n0", "n0", "n1", "n1", "n2", "n2"]


@pytest.mark.parametrize(
    "facts",
    [
        {"owner": "", "maker": ""},
        {"maker": "Job/train"},
        {"namespace": "elsewhere"},
    ],
    ids=["no owner", "a job", "a made-up owner in another namespace"],
)
def test_other_pods_fill_a_node_first(halves: SlicerCluster, facts: dict[str, Any]) -> None:
    pods = [replica(halves, "web-0", "3g.20gb", **({} if "namespace" in facts else facts))]
    halves.settle()
    pods.append(replica(halves, "web-1", "3g.20gb", **facts))
    assert len(set(nodes(halves, *pods))) == 1


def test_a_replica_that_is_being_deleted_keeps_no_other_away(halves: SlicerCluster) -> None:
    old = replica(halves, "web-0", "3g.20gb")
    (home,) = nodes(halves, old)
    halves.put(replace(old, terminating=True))
    assert nodes(halves, replica(halves, "web-1", "3g.20gb")) == [home]


@pytest.mark.parametrize("first", ["a", "b"])
def test_replicas_go_to_cards_of_their_own_where_there_is_one_node(first: str) -> None:
    cluster = SlicerCluster()
    cluster.pass_time(0)
    cluster.node("n0", count=2)
    pods = {owner: replica(cluster, f"{owner}-0", "4g.20gb", owner=owner) for owner in ("a", "b")}
    cluster.settle()
    pods["second"] = replica(cluster, "second", "3g.20gb", owner=first)
    cluster.settle()
    slices = cluster.read("n0").spec.pod_allocation_requests
    card = {name: slices[pod.uid].slices[0].gpu_uuid for name, pod in pods.items()}
    assert card["a"] != card["b"]
    assert card["second"] != card[first]


def test_what_the_manifest_prefers_goes_before_the_spread_of_replicas(halves: SlicerCluster) -> None:
    pods = []
    for number in range(2):
        preferences = read_preferences(pod_with(affinity=on_nodes(HOST, "n2", weight=1)))
        pods.append(replica(halves, f"web-{number}", "3g.20gb", preferences=preferences))
        halves.settle()
    assert nodes(halves, *pods) == ["n2", "n2"]


def test_replicas_share_a_card_before_they_cost_the_packing_an_empty_one(cluster: SlicerCluster) -> None:
    pods = [replica(cluster, f"web-{number}", profile) for number, profile in enumerate(("4g.20gb", "3g.20gb"))]
    assert len(set(nodes(cluster, *pods))) == 1


@pytest.fixture
def machines() -> SlicerCluster:
    """Four empty nodes with whole cards, on which Tessera places the pods of one namespace; the data is on one."""
    made = SlicerCluster()
    made.pass_time(0)
    made.namespace("default", **{PLACEMENT_LABEL: PLACEMENT_MANAGED})
    for number in range(4):
        made.device_node(f"n{number}")
    made.pod("data", gates=(), node="n2", labels=(("app", "data"),))
    made.settle()
    return made


@pytest.mark.parametrize("spec", [{"affinity": beside("data")}, {"affinity": on_nodes(HOST, "n2")}])
@pytest.mark.parametrize("count", [1, 2])
def test_a_pod_with_whole_cards_gets_a_node_that_it_prefers(
    machines: SlicerCluster, spec: dict[str, Any], count: int
) -> None:
    pod = machines.whole("web", count, preferences=read_preferences(pod_with(**spec)))
    machines.settle()
    assert machines.pods[pod.uid].hostname == "n2"


def test_a_pod_with_whole_cards_opens_no_node_for_what_it_prefers(machines: SlicerCluster) -> None:
    machines.whole("other", gated=False, node=NodeName("n3"))
    pod = machines.whole("web", preferences=read_preferences(pod_with(affinity=beside("data"))))
    machines.settle()
    assert machines.pods[pod.uid].hostname == "n3"


def test_a_replica_with_a_whole_card_goes_to_an_equal_node_apart_from_others(machines: SlicerCluster) -> None:
    web: dict[str, Any] = {"maker": "ReplicaSet/web", "owner": "web"}
    machines.whole("other", gated=False, node=NodeName("n1"))
    first = machines.whole("web-a", **web)
    machines.settle()
    assert machines.pods[first.uid].hostname == "n1"
    for name in ("a", "b"):  # then both nodes have as much left
        machines.whole(f"others-{name}", gated=False, node=NodeName("n0"))
    machines.settle()
    second = machines.whole("web-b", **web)
    machines.settle()
    assert machines.pods[second.uid].hostname == "n0"


# What preferences may cost


def two_halves(price: float) -> tuple[SlicerCluster, str, str]:
    """Two nodes with a card each, on one of which a half is taken; returns that node and the other one."""
    made = SlicerCluster(preference_price=price)
    made.pass_time(0)
    for number in range(2):
        made.node(f"n{number}")
    (home,) = nodes(made, made.pod("first", "4g.20gb", created=rfc3339(made.date)))
    return made, home, next(name for name in ("n0", "n1") if name != home)


@pytest.mark.parametrize(("price", "moves"), [(0.0, False), (100.0, True), (inf, True)])
def test_a_preference_may_cost_the_cards_what_the_setting_says(price: float, moves: bool) -> None:
    made, home, other = two_halves(price)
    found = nodes(made, create(made, "pod", "3g.20gb", affinity=on_nodes(HOST, other)))
    assert found == [other if moves else home]


def test_a_weak_preference_may_cost_less_than_a_strong_one() -> None:
    places = []
    for weight in (1, 100):
        made, _, other = two_halves(2.0)
        places.append(nodes(made, create(made, "pod", "3g.20gb", affinity=on_nodes(HOST, other, weight=weight)))[0])
    assert places[0] != places[1] == other


@pytest.mark.parametrize("mode", PREFERENCE_PRICES)
def test_replicas_that_say_nothing_cost_the_cards_nothing(mode: str) -> None:
    made, home, _ = two_halves(PREFERENCE_PRICES[mode])
    made.put(replace(made.pods["uid-first"], owner=WEB["owner"], maker=WEB["maker"]))
    assert nodes(made, replica(made, "web-1", "3g.20gb")) == [home]


def test_first_opens_a_node_with_whole_cards(machines: SlicerCluster) -> None:
    machines.slicer.state.preference_price = inf
    machines.whole("other", gated=False, node=NodeName("n3"))
    pod = machines.whole("web", preferences=read_preferences(pod_with(affinity=beside("data"))))
    machines.settle()
    assert machines.pods[pod.uid].hostname == "n2"


@pytest.fixture
def many() -> SlicerCluster:
    """Nodes of which most are compared with no pod."""
    made = SlicerCluster()
    made.pass_time(0)
    for number in range(200):
        made.node(f"n{number:03}", count=1)
    return made


def test_the_one_node_that_a_pod_prefers_is_found_among_many(many: SlicerCluster) -> None:
    assert nodes(many, create(many, "pod", "7g.40gb", affinity=on_nodes(HOST, "n100"))) == ["n100"]


def test_many_replicas_go_to_nodes_of_their_own(many: SlicerCluster) -> None:
    pods = [replica(many, f"web-{number}", "3g.20gb") for number in range(2)]
    pods += [replica(many, f"web-{number}", "7g.40gb") for number in range(2, 150)]
    assert len(set(nodes(many, *pods))) >= 149


# Images and data on nodes, of which the manifest says nothing

MIB = 1 << 20


def change_node(cluster: SlicerCluster, name: str, **facts: Any) -> None:
    node = cluster.nodes[NodeName(name)] = replace(cluster.nodes[NodeName(name)], **facts)
    cluster.slicer.handle(NodeObserved(node))


def with_images(cluster: SlicerCluster, node: str, images: Mapping[str, int]) -> None:
    change_node(cluster, node, images=images)


@pytest.mark.parametrize("profiles", [("7g.40gb",), ("3g.20gb", "3g.20gb")])
def test_a_pod_goes_where_its_image_is(cluster: SlicerCluster, profiles: tuple[str, ...]) -> None:
    with_images(cluster, "n6", {"docker.io/vllm/vllm:1": 9000 * MIB})
    pod = cluster.pod("pod", *profiles, images=("docker.io/vllm/vllm:1",), created=rfc3339(cluster.date))
    assert nodes(cluster, pod) == ["n6"]


def test_an_image_that_has_gone_or_is_small_decides_nothing(cluster: SlicerCluster) -> None:
    first = cluster.pod("plain", "7g.40gb", created=rfc3339(cluster.date))
    plain = nodes(cluster, first)
    cluster.remove(first)
    cluster.settle()
    with_images(cluster, "n6", {"big:1": 9000 * MIB, "small:1": 20 * MIB})
    with_images(cluster, "n6", {"small:1": 20 * MIB})
    pod = cluster.pod("pod", "7g.40gb", images=("big:1", "small:1"), created=rfc3339(cluster.date))
    assert nodes(cluster, pod) == plain


@pytest.mark.parametrize("size", [0, 1, 1 << 62])
def test_what_a_node_says_of_an_images_size_counts_for_no_other_node(cluster: SlicerCluster, size: int) -> None:
    with_images(cluster, "n6", {"big:1": 9000 * MIB})
    with_images(cluster, "n7", {"big:1": size})
    change_node(cluster, "n7", cordoned=True)
    pod = cluster.pod("pod", "7g.40gb", images=("big:1",), created=rfc3339(cluster.date))
    assert nodes(cluster, pod) == ["n6"]
    with_images(cluster, "n7", {})
    met = cluster.slicer.planner.preferences_met(pod, NodeName("n6"))
    assert [(each.text, *found) for each, found in met.items()] == [("nodes with the image big:1", True, 1, 1)]


def test_what_the_manifest_prefers_and_other_replicas_go_before_images(cluster: SlicerCluster) -> None:
    with_images(cluster, "n6", {"big:1": 9000 * MIB})
    first = replica(cluster, "web-0", "3g.20gb", images=("big:1",))
    assert nodes(cluster, first) == ["n6"]
    cluster.pod("full", "4g.20gb", created=rfc3339(cluster.date))
    cluster.settle()
    second = replica(cluster, "web-1", "7g.40gb", images=("big:1",))
    assert nodes(cluster, second) != ["n6"]
    wants = replica(
        cluster,
        "web-2",
        "7g.40gb",
        images=("big:1",),
        preferences=read_preferences(pod_with(affinity=on_nodes(HOST, "n2"))),
    )
    assert nodes(cluster, wants) == ["n2"]


def test_images_are_read_by_the_names_that_nodes_give_them() -> None:
    spec = pod_with(
        containers=[{"image": "nginx"}, {"image": "vllm/vllm:1"}, {"image": "localhost/x:2"}],
        initContainers=[{"image": "quay.io:443/a@sha256:00"}],
        volumes=[{"name": "m", "image": {"reference": "r.local/model:3"}}],
    ).spec
    assert set(read_images(spec)) == {
        "docker.io/library/nginx:latest",
        "docker.io/vllm/vllm:1",
        "localhost/x:2",
        "quay.io:443/a@sha256:00",
        "r.local/model:3",
    }


def test_a_pod_with_a_dataset_of_fluid_goes_where_its_cache_is(cluster: SlicerCluster) -> None:
    labels = cluster.nodes["n6"].labels
    change_node(cluster, "n6", labels={**labels, "fluid.io/s-default-llama": "true"})
    pod = cluster.pod("pod", "7g.40gb", claims=("default/llama",), created=rfc3339(cluster.date))
    assert nodes(cluster, pod) == ["n6"]
    assert [each.text for each in cluster.slicer.planner.preferences_met(pod, NodeName("n6"))] == [
        "nodes with the cache of dataset default/llama (Fluid)"
    ]


MODEL = ("internal.serving.kserve.io/localmodel", "llama")


@pytest.mark.parametrize(
    ("labels", "home"),
    [((MODEL,), "n6"), ((MODEL, ("internal.serving.kserve.io/localmodel-namespace", "default")), "n5")],
)
def test_a_pod_of_kserve_goes_where_its_model_is(cluster: SlicerCluster, labels: Any, home: str) -> None:
    downloaded = {"modelStatus": {"llama": "ModelDownloaded", "other": "ModelDownloaded"}}
    for item in (
        {"metadata": {"name": "n6"}, "status": downloaded},
        {"metadata": {"name": "n5"}, "status": {"modelStatus": {"default/llama": "ModelDownloaded"}}},
        {"metadata": {"name": "n4"}, "status": {"modelStatus": {"llama": "ModelDownloading", "default/llama": {}}}},
        {"metadata": {"name": "gone"}, "status": downloaded},
    ):
        found = read_models(item)
        assert found is not None
        cluster.slicer.handle(StorageObserved(found, deleted=found.node == "gone"))
    facts = {"claims": ("default/llama-gpus",), "labels": labels, "created": rfc3339(cluster.date)}
    pod = cluster.pod("pod", "7g.40gb", **facts)
    assert nodes(cluster, pod) == [home]
    met = cluster.slicer.planner.preferences_met(pod, NodeName(home))
    model = "llama" if home == "n6" else "default/llama"
    assert [(each.text, *found) for each, found in met.items()] == [
        (f"nodes with the cached model {model} (KServe)", True, 1, 1)
    ]
    cluster.remove(pod)
    for node in ("n6", "n5"):
        cluster.slicer.handle(StorageObserved(NodeModels(node, frozenset()), deleted=True))
    assert nodes(cluster, cluster.pod("later", "7g.40gb", **facts)) != [home]


@pytest.mark.parametrize(
    "labels",
    [
        (MODEL, ("internal.serving.kserve.io/localmodel-namespace", "team-b")),
        (("internal.serving.kserve.io/localmodel", ""),),
    ],
)
def test_a_pod_prefers_no_cache_of_another_namespace(cluster: SlicerCluster, labels: Any) -> None:
    models = frozenset({"team-b/llama", ""})
    cluster.slicer.handle(StorageObserved(NodeModels("n6", models), deleted=False))
    pod = cluster.pod("pod", "7g.40gb", labels=labels, created=rfc3339(cluster.date))
    assert not cluster.slicer.planner.preferences_met(pod, NodeName("n6"))


@pytest.mark.parametrize("status", [None, [], {"modelStatus": ["llama"]}, {"modelStatus": None}, {}])
def test_a_status_of_kserve_that_is_none_names_no_model(status: Any) -> None:
    assert read_models({"metadata": {"name": "n"}, "status": status}) == NodeModels("n", frozenset())


def test_of_a_node_that_claims_very_many_models_few_count() -> None:
    status = {"modelStatus": {f"m{number}": "ModelDownloaded" for number in range(2 * MODELS)}}
    found = read_models({"metadata": {"name": "n"}, "status": status})
    assert found is not None
    assert len(found.models) == MODELS


# Odd manifests


def test_a_manifest_with_hundreds_of_preferences_is_placed_at_once(many: SlicerCluster) -> None:
    terms = [
        {"weight": 100, "preference": {"matchExpressions": [{"key": f"k{number % 3}", "operator": "Exists"}]}}
        for number in range(100)
    ]
    rule = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    wanted = {"nodeAffinity": rule, **beside("nobody"), **apart("nobody")}
    steps = many.slicer.steps
    pods = [create(many, f"pod-{number}", "7g.40gb", affinity=wanted) for number in range(20)]
    assert len(set(nodes(many, *pods))) == 20
    assert many.slicer.steps - steps < 20_000


def test_of_a_node_that_lists_very_many_images_and_names_few_count() -> None:
    listed = [
        {"names": [f"image-{number}:{tag}" for tag in range(10)], "sizeBytes": MIB} for number in range(2 * NODE_IMAGES)
    ]
    node = msgspec.convert({"metadata": {"name": "n"}, "status": {"images": listed}}, Node)
    assert len(read_node(node).images) == 5 * NODE_IMAGES


@pytest.mark.parametrize("count", [10, 1_000])
def test_very_many_images_and_labels_of_nodes_cost_a_pod_few_steps(many: SlicerCluster, count: int) -> None:
    for name, facts in list(many.nodes.items()):
        labels = {f"example.com/{name}-{number}": "x" for number in range(count // 10)}
        images = {f"{name}-{number}:1": 9000 * MIB for number in range(count)}
        change_node(many, name, images=images, labels={**facts.labels, **labels})
    steps = many.slicer.steps
    wanted = [f"n{number:03}" for number in range(20)]
    pods = [replica(many, f"web-{each}", "7g.40gb", images=(f"{each}-5:1",), claims=("default/x",)) for each in wanted]
    assert nodes(many, *pods) == wanted
    assert many.slicer.steps - steps < 100 * len(pods)


@pytest.mark.parametrize("operator", ["Near", "", "Gt", "Lt"])
def test_an_operator_that_tests_nothing_keeps_no_pod_waiting(cluster: SlicerCluster, operator: str) -> None:
    tests = [{"key": "a", "operator": operator, "values": ["x", "y"]}]
    rule = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {"matchExpressions": tests}}]
    }
    pod = cluster.pod(
        "pod",
        "7g.40gb",
        preferences=read_preferences(pod_with(affinity={"nodeAffinity": rule})),
        created=rfc3339(cluster.date),
    )
    assert nodes(cluster, pod)
