"""Admission changes pods that ask for slices."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.api.nodes import test_undecided_nodes as nodes

from tessera.api.nodes.node_cards import UndecidedNodes
from tessera.webhook import slice_admission
from tessera.webhook.base import PodRefused
from tessera.webhook.capabilities import Capabilities, GpuNode
from tessera.webhook.pod_json import Operation
from tessera.webhook.pod_json import apply_operations as with_patch

PROFILES = ("1g.5gb", "1g.5gb.me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def a100(*fixed: str) -> Capabilities:
    """A node whose A100 is cut on demand, and one with these profiles in a fixed layout."""
    nodes = [GpuNode(name="a100", labels={"nvidia.com/mig.config": "dynamic"}, on_demand=frozenset(PROFILES))]
    if fixed:
        nodes.append(GpuNode(name="fixed", labels={"nvidia.com/mig.config": "all-3g.20gb"}, fixed=frozenset(fixed)))
    return Capabilities.of(nodes)


A100 = a100()
GATE = {"name": "instaslice.redhat.com/accelerator"}
QUOTA = "instaslice.redhat.com/accelerator-memory-quota"


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    named = [{"name": f"c{i}", **container} for i, container in enumerate(containers)]
    return {"metadata": {"name": "p"}, "spec": {"containers": named, **spec}}


def asking(limits: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As the API server hands it over: requests are filled in from limits."""
    return {"resources": {"limits": limits, "requests": dict(limits)}, **more}


def patch(pod: dict[str, Any], capabilities: Capabilities) -> Sequence[Operation]:
    return slice_admission.patch_for_slices(pod, capabilities, capabilities.selected_by(pod["spec"]))


def applied(pod: dict[str, Any], capabilities: Capabilities = A100) -> Any:
    return with_patch(pod, patch(pod, capabilities))


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
    """The amount that a ResourceQuota charges for a pod, in Gi (k8s.io/component-helpers/resource, PodRequests)."""

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


def test_another_gate_stays_in_front() -> None:
    other = {"name": "kueue.x-k8s.io/admission"}
    after = applied(pod(asking({"nvidia.com/mig-3g.20gb": "1"}), schedulingGates=[other]))
    assert after["spec"]["schedulingGates"] == [other, GATE]


def test_limits_alone_are_enough() -> None:
    after = applied(pod({"resources": {"limits": {"nvidia.com/mig-3g.20gb": 1}}}))
    assert after["spec"]["containers"][0]["resources"]["requests"] == {QUOTA: "20Gi"}


def test_a_quota_that_the_author_wrote_right_stays() -> None:
    for amount in ("20Gi", "21474836480"):
        after = applied(pod(asking({"nvidia.com/mig-3g.20gb": "1", QUOTA: amount})))
        assert after["spec"]["containers"][0]["resources"]["limits"][QUOTA] == amount


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([asking({"nvidia.com/mig-3g.20gb": "1", QUOTA: "1Gi"})], ["1Gi of", "its slices are charged 20Gi"]),
        ([asking({"nvidia.com/mig-3g.20gb": "1", QUOTA: "1e999999999"})], ["its slices are charged 20Gi"]),
        ([asking({QUOTA: "100Gi"})], ["100Gi of", "it is charged for no slices"]),
        ([asking({QUOTA: "5Gi", "nvidia.com/gpu": "1"})], ["it is charged for no slices"]),
        ([{"resources": {"requests": {QUOTA: "5Gi"}}}], ["it is charged for no slices"]),
        ([asking({"nvidia.com/mig-3g.20gb": "1"}), asking({QUOTA: "5Gi"})], ['"c1"', "it is charged for no slices"]),
    ],
)
def test_who_asks_for_the_quota_without_the_slices_is_refused(
    containers: list[dict[str, Any]], words: list[str]
) -> None:
    """Nodes have a bounded amount of it; pods that take it in vain would keep slices from the others."""
    with pytest.raises(PodRefused) as caught:
        patch(pod(*containers), A100)
    for word in [*words, "leave this resource out"]:
        assert word in str(caught.value)


def test_no_amount_of_the_quota_is_no_request() -> None:
    assert patch(pod(asking({QUOTA: "0"})), A100) == ()


@pytest.mark.parametrize(
    ("resource", "meant"),
    [
        ("mig.das.com/1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("mig.das.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("mig.das.com/1g.5gb-plus-me", "nvidia.com/mig-1g.5gb.me"),
        ("mig.das.com/gpu", "nvidia.com/gpu"),
        ("instaslice.redhat.com/mig-1g.5gb", "nvidia.com/mig-1g.5gb"),
    ],
)
def test_another_slicers_name_is_refused_with_the_right_one_unless_a_node_has_it(resource: str, meant: str) -> None:
    foreign = pod(asking({resource: "1"}))
    with pytest.raises(PodRefused) as caught:
        patch(foreign, A100)
    assert f"here it is {meant}: write that in limits" in str(caught.value)
    beside = Capabilities.of([GpuNode(name="das", foreign=frozenset({resource}))])
    assert patch(foreign, beside) == ()


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
    capabilities = a100("1g.12gb", "3g.20gb")
    assert patch(pod(asking({"nvidia.com/mig-1g.12gb": "1"})), capabilities) == ()
    assert patch(pod(asking({"nvidia.com/mig-3g.20gb": "1"})), capabilities) != ()


def test_a_pod_that_selects_a_fixed_layout_is_left_to_it() -> None:
    capabilities = a100("3g.20gb")
    selecting = pod(asking({"nvidia.com/mig-3g.20gb": "1"}), nodeSelector={"nvidia.com/mig.config": "all-3g.20gb"})
    assert patch(selecting, capabilities) == ()
    on_demand = pod(asking({"nvidia.com/mig-3g.20gb": "1"}), nodeSelector={"nvidia.com/mig.config": "dynamic"})
    assert applied(on_demand, capabilities)["spec"]["schedulingGates"] == [GATE]


def test_without_any_card_in_sight_every_known_profile_may_wait() -> None:
    assert patch(pod(asking({"nvidia.com/mig-1g.12gb": "1"})), Capabilities()) != ()
    with pytest.raises(PodRefused, match="is a profile of no NVIDIA card"):
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
    with pytest.raises(PodRefused) as caught:
        patch(pod(asking(limits)), A100)
    for word in ['container "c0"', *words]:
        assert word in str(caught.value)


def test_devices_may_not_be_chosen_by_environment() -> None:
    sneaky = asking({"nvidia.com/mig-1g.5gb": "1"}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    with pytest.raises(PodRefused, match="NVIDIA_VISIBLE_DEVICES"):
        patch(pod(sneaky), A100)


def test_a_pod_that_its_author_bound_is_refused() -> None:
    with pytest.raises(PodRefused, match="cannot be bound by its author"):
        patch(pod(asking({"nvidia.com/mig-1g.5gb": "1"}), nodeName="n1"), A100)


def test_profiles_of_two_worlds_are_refused() -> None:
    capabilities = a100("1g.12gb")
    with pytest.raises(PodRefused, match="a pod gets its slices from one of them"):
        patch(pod(asking({"nvidia.com/mig-1g.12gb": "1"}), asking({"nvidia.com/mig-1g.5gb": "1"})), capabilities)


HALF = {"nvidia.com/mig.config": "dynamic-half"}
ON_DEMAND = GpuNode(name="on-demand", labels={"nvidia.com/mig.config": "dynamic"}, on_demand=frozenset({"3g.20gb"}))
FIXED = GpuNode(name="fixed", labels={"nvidia.com/mig.config": "all-3g.20gb", "rack": "a"}, fixed=ON_DEMAND.on_demand)
BOTH = GpuNode(name="both", labels=HALF, on_demand=frozenset({"3g.20gb"}), fixed=frozenset({"1g.5gb"}))
EVERY = Capabilities.of([ON_DEMAND, FIXED, BOTH])


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def config(sign: str, *values: str) -> dict[str, Any]:
    test = {"key": "nvidia.com/mig.config", "operator": sign}
    return {"matchExpressions": [{**test, "values": list(values)} if values else test]}


@pytest.mark.parametrize(
    ("profile", "where", "gated"),
    [
        pytest.param("3g.20gb", {}, True, id="on demand goes first"),
        pytest.param("1g.5gb", {}, False, id="the fixed cards of a node of both kinds"),
        pytest.param("3g.20gb", {"nodeSelector": HALF}, True, id="a node of both kinds"),
        pytest.param("3g.20gb", {"nodeSelector": {"rack": "a"}}, False, id="any label of the fixed node"),
        pytest.param("3g.20gb", required(config("In", "all-3g.20gb", "all-1g.5gb")), False, id="affinity to layouts"),
        pytest.param("3g.20gb", required(config("NotIn", "dynamic", "dynamic-half")), False, id="affinity away"),
        pytest.param("3g.20gb", required(config("In", "dynamic-half")), True, id="affinity to cards on demand"),
        pytest.param("3g.20gb", required(config("In", "all-3g.20gb"), config("Exists")), True, id="an alternative"),
        pytest.param("3g.20gb", {"nodeSelector": {"rack": "b"}}, True, id="no node of today, of any kind"),
        pytest.param(
            "3g.20gb",
            {"nodeSelector": {"rack": "b", "nvidia.com/mig.config": "all-balanced"}},
            False,
            id="no node of today, of a fixed kind",
        ),
        pytest.param(
            "3g.20gb",
            {"nodeSelector": {"rack": "b"}, **required(config("DoesNotExist"), config("NotIn", "dynamic"))},
            False,
            id="no node of today, not on demand",
        ),
        pytest.param(
            "3g.20gb", required(config("In", "dynamic-tomorrow")), True, id="no node of today, of a kind on demand"
        ),
        pytest.param("3g.20gb", required({}), True, id="a term that no node fulfils"),
    ],
)
def test_the_nodes_that_the_author_leaves_decide_whether_a_slice_is_on_demand(
    profile: str, where: dict[str, Any], gated: bool
) -> None:
    after = applied(pod(asking({f"nvidia.com/mig-{profile}": "1"}), **where), EVERY)
    assert ("schedulingGates" in after["spec"]) == gated
    assert patch(after, EVERY) in ([], ())


@pytest.mark.parametrize("capabilities", [A100, Capabilities()])
def test_a_share_of_a_slice_waits_for_a_node_that_has_it_like_any_other_resource(capabilities: Capabilities) -> None:
    for resource in ("nvidia.com/mig-1g.5gb.shared", "nvidia.com/mig-1g.5gb.me.shared"):
        assert patch(pod(asking({resource: "1"})), capabilities) == ()
    with pytest.raises(PodRefused, match=r"1g\.6gb\.shraed"):
        patch(pod(asking({"nvidia.com/mig-1g.6gb.shraed": "1"})), capabilities)


def with_new_node(*present: GpuNode) -> Capabilities:
    """The capabilities of these nodes beside one that has just registered."""
    new = UndecidedNodes(lambda: nodes.NOW)
    nodes.changed(new, nodes.node())
    capabilities = Capabilities(new_nodes=new)
    for node in present:
        capabilities.put(node)
    capabilities.set_groups(())
    return capabilities


UNREAD = GpuNode(name="unread", labels={"nvidia.com/mig.config": "dynamic"}, unread=True)
ON_DEMAND = GpuNode(name="a100", labels={"nvidia.com/mig.config": "dynamic"}, on_demand=frozenset(PROFILES))


@pytest.mark.parametrize(
    "capabilities", [with_new_node(ON_DEMAND), Capabilities.of([ON_DEMAND, UNREAD])], ids=["new", "unread"]
)
def test_a_profile_that_present_cards_lack_waits_while_a_node_has_not_told_its_cards(
    capabilities: Capabilities,
) -> None:
    other = pod(asking({"nvidia.com/mig-7g.80gb": "1"}))
    assert applied(other, capabilities)["spec"]["schedulingGates"] == [GATE]
    with pytest.raises(PodRefused, match=r"7g\.80gb is a profile of no card in this cluster\."):
        patch(other, A100)
    with pytest.raises(
        PodRefused, match=r"9g\.90gb is a profile of no NVIDIA card\..* cards of this cluster have 1g\.5gb"
    ):
        patch(pod(asking({"nvidia.com/mig-9g.90gb": "1"})), capabilities)
    with pytest.raises(PodRefused, match=r"big is not a MIG profile"):
        patch(pod(asking({"nvidia.com/mig-big": "1"})), capabilities)
