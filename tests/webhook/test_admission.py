"""What happens to a pod on its way in."""

import base64
from typing import Any

import msgspec
import pytest

from tessera.api.instaslice import Instaslice
from tessera.kube.resources import Node, NodeStatus, ObjectMeta
from tessera.webhook.admission import Refused, patch
from tessera.webhook.capabilities import Capabilities, dynamic_profiles, static_profiles
from tessera.webhook.review import Reviewer, ReviewError

A100 = Capabilities(dynamic=frozenset({"1g.5gb", "1g.5gb.me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}))
GATE = {"name": "instaslice.redhat.com/accelerator"}
QUOTA = "instaslice.redhat.com/accelerator-memory-quota"
QUOTA_PATH = "instaslice.redhat.com~1accelerator-memory-quota"


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    named = [{"name": f"c{i}", **container} for i, container in enumerate(containers)]
    return {"metadata": {"name": "p"}, "spec": {"containers": named, **spec}}


def asking(limits: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As the API server hands it over: requests are filled in from limits."""
    return {"resources": {"limits": limits, "requests": dict(limits)}, **more}


def applied(pod: dict[str, Any], capabilities: Capabilities = A100) -> dict[str, Any]:
    """The pod after the patch; only ``add`` of members and list items is known here."""
    result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(pod))
    for operation in patch(pod, capabilities):
        assert operation["op"] == "add"
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at: Any = result
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list):
            assert last == "-"
            at.append(operation["value"])
        else:
            at[last] = operation["value"]
    return result


def test_a_pod_gets_the_gate_and_the_quota_and_nothing_else() -> None:
    before = pod(asking({"nvidia.com/mig-3g.20gb": "1", "cpu": "1"}), nodeSelector={"a": "b"})
    after = applied(before)
    assert after["spec"].pop("schedulingGates") == [GATE]
    resources = after["spec"]["containers"][0]["resources"]
    assert (resources["limits"].pop(QUOTA), resources["requests"].pop(QUOTA)) == ("20Gi", "20Gi")
    assert after == before


def test_every_container_is_charged_for_its_own_slices() -> None:
    after = applied(
        pod(
            asking({"nvidia.com/mig-1g.5gb": "3", "nvidia.com/mig-3g.20gb": "1"}),
            asking({"cpu": "1"}),
            asking({"nvidia.com/mig-1g.5gb.me": "1"}),
            initContainers=[{"name": "i", **asking({"nvidia.com/mig-3g.20gb": "1"})}],
        )
    )
    charged = [c["resources"]["limits"].get(QUOTA) for c in after["spec"]["containers"]]
    assert charged == ["35Gi", None, "5Gi"]
    assert after["spec"]["initContainers"][0]["resources"]["requests"][QUOTA] == "20Gi"


def counted_by_kubernetes(spec: dict[str, Any]) -> int:
    """What a ResourceQuota charges for a pod, in Gi (k8s.io/component-helpers/resource, PodRequests)."""

    def own(container: dict[str, Any]) -> int:
        amounts: dict[str, str] = (container.get("resources") or {}).get("requests") or {}
        return int(amounts.get(QUOTA, "0Gi").removesuffix("Gi"))

    beside = peak = 0
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            beside += own(container)
        else:
            peak = max(peak, beside + own(container))
    return max(peak, beside + sum(own(container) for container in spec["containers"]))


def starting(profile: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": f"i-{profile}", **asking({f"nvidia.com/mig-{profile}": str(count)}), **more}


@pytest.mark.parametrize(
    ("containers", "init", "gib"),
    [
        pytest.param(
            [{}], [starting("4g.20gb"), starting("3g.20gb")], 40, id="only init containers, one after another"
        ),
        pytest.param([{"resources": {}}], [starting("1g.5gb"), starting("1g.10gb")], 15, id="no limits at all"),
        pytest.param([asking({"nvidia.com/mig-1g.5gb": "1"})], [starting("3g.20gb")], 25, id="another profile"),
        pytest.param([asking({"nvidia.com/mig-1g.5gb": "1"})], [starting("1g.5gb", 3)], 15, id="the same one"),
        pytest.param(
            [{}, asking({"nvidia.com/mig-1g.5gb": "2"})],
            [starting("1g.10gb", restartPolicy="Always"), starting("2g.10gb"), starting("1g.5gb")],
            30,
            id="a sidecar among them",
        ),
    ],
)
def test_a_pod_is_charged_for_every_slice_that_it_keeps(
    containers: list[dict[str, Any]], init: list[dict[str, Any]], gib: int
) -> None:
    """Kubelet keeps what init containers took until the pod ends; a quota must not see the largest of them only."""
    after = applied(pod(*containers, initContainers=init))
    assert counted_by_kubernetes(after["spec"]) == gib
    assert patch(after, A100) == []


def test_an_app_container_is_charged_for_others_only_if_kubernetes_would_not_count_them() -> None:
    init = [starting("1g.10gb", restartPolicy="Always"), starting("4g.20gb")]
    after = applied(pod({"name": "app"}, initContainers=init))
    assert after["spec"]["containers"] == [{"name": "app"}]
    assert counted_by_kubernetes(after["spec"]) == 30


def test_more_slices_than_any_node_has_are_refused() -> None:
    with pytest.raises(Refused, match="no node has more than 128"):
        patch(pod(asking({"nvidia.com/mig-1g.5gb": "1000000000"})), A100)


def test_a_second_call_changes_nothing() -> None:
    once = applied(pod(asking({"nvidia.com/mig-3g.20gb": "1"})))
    assert patch(once, A100) == []


def test_another_gate_stays_in_front() -> None:
    other = {"name": "kueue.x-k8s.io/admission"}
    after = applied(pod(asking({"nvidia.com/mig-3g.20gb": "1"}), schedulingGates=[other]))
    assert after["spec"]["schedulingGates"] == [other, GATE]


def test_limits_alone_are_enough() -> None:
    after = applied(pod({"resources": {"limits": {"nvidia.com/mig-3g.20gb": 1}}}))
    assert after["spec"]["containers"][0]["resources"]["requests"] == {QUOTA: "20Gi"}


def test_a_quota_that_the_author_wrote_is_replaced() -> None:
    after = applied(pod(asking({"nvidia.com/mig-3g.20gb": "1", QUOTA: "1Gi"})))
    assert after["spec"]["containers"][0]["resources"]["limits"][QUOTA] == "20Gi"


@pytest.mark.parametrize(
    "untouched",
    [
        pod({}),
        pod({"resources": {}}),
        pod(asking({"cpu": "1", "nvidia.com/gpu": "1"})),
        pod(asking({"nvidia.com/mig-3g.20gb": "0"})),
        pod({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
    ],
)
def test_a_pod_without_slices_is_left_alone(untouched: dict[str, Any]) -> None:
    assert patch(untouched, A100) == ()


def test_a_profile_that_only_a_fixed_layout_offers_is_left_to_it() -> None:
    capabilities = Capabilities(dynamic=A100.dynamic, static=frozenset({"1g.12gb", "3g.20gb"}))
    assert patch(pod(asking({"nvidia.com/mig-1g.12gb": "1"})), capabilities) == ()
    assert patch(pod(asking({"nvidia.com/mig-3g.20gb": "1"})), capabilities) != ()


def test_a_pod_that_selects_a_fixed_layout_is_left_to_it() -> None:
    capabilities = Capabilities(dynamic=A100.dynamic, static=frozenset({"3g.20gb"}))
    selecting = pod(asking({"nvidia.com/mig-3g.20gb": "1"}), nodeSelector={"nvidia.com/mig.config": "all-3g.20gb"})
    assert patch(selecting, capabilities) == ()
    on_demand = pod(asking({"nvidia.com/mig-3g.20gb": "1"}), nodeSelector={"nvidia.com/mig.config": "dynamic"})
    assert applied(on_demand, capabilities)["spec"]["schedulingGates"] == [GATE]


def test_without_any_card_in_sight_every_known_profile_may_wait() -> None:
    assert patch(pod(asking({"nvidia.com/mig-1g.12gb": "1"})), Capabilities()) != ()
    with pytest.raises(Refused, match="is a profile of no NVIDIA card"):
        patch(pod(asking({"nvidia.com/mig-9g.12gb": "1"})), Capabilities())


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"nvidia.com/mig-1g.50gb": "1"}, ["no card in this cluster", "1g.5gb", "7g.40gb"]),
        ({"nvidia.com/mig-3g.20g": "1"}, ["is not a MIG profile", "Did you mean nvidia.com/mig-3g.20gb?"]),
        ({"nvidia.com/mig-3g20gb": "1"}, ["is not a MIG profile", "Did you mean nvidia.com/mig-3g.20gb?"]),
        ({"nvidia.com/mig-3g.20gb": "500m"}, ["slices come whole"]),
        ({"nvidia.com/mig-3g.20gb": "-1"}, ["must not be negative"]),
        ({"nvidia.com/mig-3g.20gb": "1", "nvidia.com/gpu": "1"}, ["beside nvidia.com/gpu"]),
    ],
)
def test_bad_requests_are_refused_with_what_exists(limits: dict[str, str], words: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        patch(pod(asking(limits)), A100)
    for word in ['container "c0"', *words]:
        assert word in str(caught.value)


def test_devices_may_not_be_chosen_by_environment() -> None:
    sneaky = asking({"nvidia.com/mig-1g.5gb": "1"}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    with pytest.raises(Refused, match="NVIDIA_VISIBLE_DEVICES"):
        patch(pod(sneaky), A100)


def test_a_pod_that_its_author_bound_is_refused() -> None:
    with pytest.raises(Refused, match="cannot be bound by its author"):
        patch(pod(asking({"nvidia.com/mig-1g.5gb": "1"}), nodeName="n1"), A100)


def test_profiles_of_two_worlds_are_refused() -> None:
    capabilities = Capabilities(dynamic=A100.dynamic, static=frozenset({"1g.12gb"}))
    with pytest.raises(Refused, match="no single node has both"):
        patch(pod(asking({"nvidia.com/mig-1g.12gb": "1"}), asking({"nvidia.com/mig-1g.5gb": "1"})), capabilities)


def test_capabilities_follow_the_objects_and_the_nodes() -> None:
    table = {"1g.5gb+me": {"placements": [{"size": 1, "start": 0}], "giProfileId": 20, "ciProfileId": 0}}
    gpu = {"gpuUuid": "GPU-1", "gpuName": "A100", "gpuMemory": "40Gi"}
    item = msgspec.convert(
        {"metadata": {"name": "n"}, "status": {"nodeResources": {"nodeGpus": [gpu], "migPlacement": table}}}, Instaslice
    )
    assert dynamic_profiles([item]) == {"1g.5gb.me"}
    resources = msgspec.structs.replace(item.status.node_resources, node_gpus=())
    lost = msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, node_resources=resources))
    assert dynamic_profiles([lost]) == {"1g.5gb.me"}, "a card that does not answer for a while may be waited for"

    def node(name: str, labels: dict[str, str], **allocatable: str) -> Node:
        named = {f"nvidia.com/mig-{key}": value for key, value in allocatable.items()}
        return Node(metadata=ObjectMeta(name=name, labels=labels), status=NodeStatus(allocatable=named))

    nodes = [
        node("fixed", {"nvidia.com/mig.config": "all-1g.5gb"}, a="7", b="0"),
        node("plain", {}, c="1"),
        node("ours", {"nvidia.com/mig.config": "dynamic"}, d="7"),
    ]
    assert static_profiles(nodes) == {"a", "c"}


def request(body: dict[str, Any] | None, operation: str = "CREATE") -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "u", "operation": operation, "kind": {"kind": "Pod"}, "object": body},
        }
    )


def test_a_review_is_answered_with_a_json_patch() -> None:
    counted: list[str] = []
    reviewer = Reviewer(lambda: A100, counted.append)
    answer = msgspec.json.decode(reviewer.review(request(pod(asking({"nvidia.com/mig-3g.20gb": "1"})))))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u", True, "JSONPatch")
    assert msgspec.json.decode(base64.b64decode(response["patch"]))[0]["path"] == "/spec/schedulingGates"
    assert counted == ["patched"]


def test_a_review_of_a_pod_without_slices_has_no_patch() -> None:
    answer = msgspec.json.decode(Reviewer(lambda: A100).review(request(pod({}))))
    assert answer["response"] == {"uid": "u", "allowed": True}


def test_a_refusal_carries_its_text() -> None:
    answer = msgspec.json.decode(Reviewer(lambda: A100).review(request(pod(asking({"nvidia.com/mig-x": "1"})))))
    assert answer["response"]["allowed"] is False
    assert "is not a MIG profile" in answer["response"]["status"]["message"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"apiVersion":"v1","kind":"Pod","request":{"uid":"u"}}'])
def test_what_is_no_review_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(ReviewError, match="AdmissionReview"):
        Reviewer(lambda: A100).review(body)
