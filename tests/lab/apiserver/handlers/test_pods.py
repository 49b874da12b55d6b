"""Pods: what is filled in, what is refused, what may change. Words are kube-apiserver's."""

from typing import Any

import pytest
from tests.support.api_user import ApiUser

PODS = "/api/v1/namespaces/default/pods"
GATE = {"name": "instaslice.redhat.com/accelerator"}


def asking(make_pod: Any, limits: Any, requests: Any = None) -> Any:
    made = make_pod("a")
    made["spec"]["containers"][0]["resources"] = {"limits": limits, **({"requests": requests} if requests else {})}
    return made


async def test_what_a_pod_does_not_say_is_filled_in(api: ApiUser, make_pod: Any) -> None:
    spec = (await api("POST", PODS, make_pod("a")))["spec"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"], spec["dnsPolicy"]) == (
        "Always",
        30,
        "ClusterFirst",
    )
    assert (spec["schedulerName"], spec["serviceAccountName"], spec["priority"]) == ("default-scheduler", "default", 0)
    assert [t["key"] for t in spec["tolerations"]] == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
    assert spec["containers"][0]["imagePullPolicy"] == "Always"


async def test_limits_become_requests_in_canonical_form(api: ApiUser, make_pod: Any) -> None:
    made = await api("POST", PODS, asking(make_pod, {"cpu": 0.5, "nvidia.com/mig-3g.20gb": 1, "memory": "1024Mi"}))
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "500m", "nvidia.com/mig-3g.20gb": "1", "memory": "1Gi"}
    assert resources["requests"] == resources["limits"]
    assert made["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    ("limits", "requests", "text"),
    [
        (
            {"nvidia.com/gpu": "500m"},
            None,
            'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "500m": must be an integer',
        ),
        (
            {"nvidia.com/gpu": "2"},
            {"nvidia.com/gpu": "1"},
            'spec.containers[0].resources.requests: Invalid value: "1": must be equal to nvidia.com/gpu limit of 2',
        ),
        (
            {},
            {"nvidia.com/gpu": "1"},
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ),
        (
            {"cpu": "1"},
            {"cpu": "2"},
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"nvidia.com/gpu": "-1"},
            None,
            (
                'spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: "-1": '
                "must be greater than or equal to 0"
            ),
        ),
    ],
)
async def test_amounts_that_make_no_sense_are_refused(
    api: ApiUser, make_pod: Any, limits: Any, requests: Any, text: str
) -> None:
    refused = await api("POST", PODS, asking(make_pod, limits, requests))
    assert refused["code"] == 422
    assert text in refused["message"]


async def test_a_gated_pod_is_pinned_and_ungated_in_one_patch(api: ApiUser, make_pod: Any) -> None:
    made = await api("POST", PODS, make_pod("a", schedulingGates=[GATE]))
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    selector = {"kubernetes.io/hostname": "n1"}
    patch = {"metadata": {"uid": made["metadata"]["uid"]}, "spec": {"nodeSelector": selector, "schedulingGates": []}}
    now = await api.merge(f"{PODS}/a", patch)
    assert now["spec"]["nodeSelector"] == selector
    assert not now["spec"].get("schedulingGates")


async def test_gates_may_only_go(api: ApiUser, make_pod: Any) -> None:
    await api("POST", PODS, make_pod("a", schedulingGates=[GATE]))
    refused = await api.merge(f"{PODS}/a", {"spec": {"schedulingGates": [GATE, {"name": "example.com/more"}]}})
    assert (
        "spec.schedulingGates: Forbidden: only deletion is allowed, but found new scheduling gate" in refused["message"]
    )


async def test_an_ungated_pod_is_not_pinned(api: ApiUser, make_pod: Any) -> None:
    await api("POST", PODS, make_pod("a"))
    refused = await api.merge(f"{PODS}/a", {"spec": {"nodeSelector": {"x": "y"}}})
    assert refused["code"] == 422
    assert (
        "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`" in refused["message"]
    )


async def test_images_and_further_tolerations_may_change(api: ApiUser, make_pod: Any) -> None:
    made = await api("POST", PODS, make_pod("a"))
    made["spec"]["containers"][0]["image"] = "busybox:2"
    made["spec"]["tolerations"].append({"key": "x", "operator": "Exists"})
    now = await api("PUT", f"{PODS}/a", made)
    assert now["spec"]["containers"][0]["image"] == "busybox:2"
    now["spec"]["tolerations"] = []
    refused = await api("PUT", f"{PODS}/a", now)
    assert "existing toleration can not be modified except its tolerationSeconds" in refused["message"]


async def test_a_priority_class_gives_the_priority(api: ApiUser, make_pod: Any) -> None:
    made = await api("POST", PODS, make_pod("a", priorityClassName="system-node-critical"))
    assert made["spec"]["priority"] == 2_000_001_000
    refused = await api("POST", PODS, make_pod("b", priorityClassName="ghost"))
    assert refused["message"] == 'pods "b" is forbidden: no PriorityClass with name ghost was found'


async def test_wrong_types_are_refused_before_anything_looks_inside(api: ApiUser, make_pod: Any) -> None:
    assert (await api("POST", PODS, {**make_pod("a"), "spec": "x"}))["code"] == 400
    assert (await api("POST", PODS, make_pod("a", containers=[1])))["code"] == 400


async def test_unknown_fields_warn_or_refuse_as_asked(api: ApiUser, make_pod: Any) -> None:
    await api("POST", f"{PODS}?fieldValidation=Warn", make_pod("a", colour="red"))
    assert api.headers["warning"] == '299 - "unknown field \\"spec.colour\\""'
    refused = await api("POST", f"{PODS}?fieldValidation=Strict", make_pod("b", colour="red"))
    assert 'strict decoding error: unknown field "spec.colour"' in refused["message"]
    await api("POST", f"{PODS}?fieldValidation=Ignore", make_pod("c", colour="red"))
    assert "warning" not in api.headers


async def test_a_pod_is_bound_once(api: ApiUser, make_pod: Any) -> None:
    await api("POST", PODS, make_pod("a"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": "n1"},
    }
    assert (await api("POST", f"{PODS}/a/binding", binding))["status"] == "Success"
    now = await api("GET", f"{PODS}/a")
    assert now["spec"]["nodeName"] == "n1"
    assert {c["type"]: c["status"] for c in now["status"]["conditions"]} == {"PodScheduled": "True"}
    refused = await api("POST", f"{PODS}/a/binding", binding)
    assert refused["message"] == (
        'Operation cannot be fulfilled on pods/binding "a": pod a is already assigned to node "n1"'
    )


async def test_eviction_respects_a_budget(api: ApiUser, make_pod: Any) -> None:
    made = make_pod("a", nodeName="n1")
    made["metadata"]["labels"] = {"app": "x"}
    await api("POST", PODS, made)
    await api.merge(f"{PODS}/a/status", {"status": {"phase": "Running"}})
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    await api("POST", budgets, budget)
    allowed = {"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 1, "currentHealthy": 1}
    await api.merge(f"{budgets}/b/status", {"status": {**allowed, "expectedPods": 1}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    refused = await api("POST", f"{PODS}/a/eviction", eviction)
    assert refused["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused["code"] == 429
    await api("DELETE", f"{budgets}/b")
    assert (await api("POST", f"{PODS}/a/eviction", eviction))["status"] == "Success"
    assert (await api("GET", f"{PODS}/a"))["metadata"]["deletionTimestamp"]


async def test_a_pod_with_claimed_devices_is_refused_since_none_are_served(api: ApiUser, make_pod: Any) -> None:
    made = make_pod("a")
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    answer = await api("POST", PODS, made)
    assert answer["code"] == 422
    for place in ("spec.resourceClaims", "spec.containers[0].resources.claims"):
        assert f"{place}: Forbidden: this simulated cluster serves no dynamic resource allocation" in answer["message"]
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": made["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}
    assert "spec" in await api("POST", "/apis/apps/v1/namespaces/default/deployments", workload)
