"""Defaults that the server fills in, and fields that it leaves as their author wrote them.

The rules are those of ``pkg/apis/*/v1/defaults.go``. Pods and pod templates differ: what a pod alone gets would be a
field of the template that nobody wrote, and the next ``kubectl apply`` would trip over it.
"""

from typing import Any

import pytest
from tests.support.conformance_api import Api, Kubectl, deployment, gated_pod

DRY = "?dryRun=All"
#: A resource that admission leaves alone where Tessera runs.
THING = "example.com/thing"
GPUS = ("nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb")

Obj = dict[str, Any]


def _workload(kind: str, template: Obj) -> tuple[str, Obj]:
    """Path below the namespace's group and an object of the kind around the template."""
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": template}
    spec: Obj = {"template": template, "selector": {"matchLabels": labels}}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        spec.pop("selector")
    if kind == "StatefulSet":
        spec["serviceName"] = "a"
    group = "batch/v1" if kind == "Job" else "apps/v1"
    return f"{group}|{kind.lower()}s", {"metadata": {"name": "a"}, "spec": spec}


async def _template(api: Api, namespace: str, kind: str, **spec: Any) -> Obj:
    """The template's spec as the server keeps it."""
    path, body = _workload(kind, spec)
    group, _, plural = path.partition("|")
    made = (await api("POST", f"/apis/{group}/namespaces/{namespace}/{plural}{DRY}", body)).ok()
    found: Obj = made["spec"]["template"]["spec"]
    return found


KINDS = ("Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Job")


@pytest.mark.parametrize("size", GPUS)
async def test_another_gpu_size_can_be_applied(kubectl: Kubectl, size: str) -> None:
    def sized(resource: str) -> Obj:
        made = deployment("sized")
        made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {resource: 1}}
        return made

    other = next(each for each in GPUS if each != size)
    assert "created" in await kubectl("apply", "-f", "-", manifest=sized(size))
    assert "configured" in await kubectl("apply", "-f", "-", manifest=sized(other))
    limits = "{.spec.template.spec.containers[0].resources}"
    assert await kubectl("get", "deployment", "sized", "-o", f"jsonpath={limits}") == f'{{"limits":{{"{other}":"1"}}}}'


@pytest.mark.parametrize("kind", KINDS)
async def test_a_template_keeps_limits_without_requests(api: Api, namespace: str, kind: str) -> None:
    container = {"name": "a", "image": "example.com/a:1", "resources": {"limits": {GPUS[0]: "1", "cpu": "500m"}}}
    spec = await _template(api, namespace, kind, containers=[container], initContainers=[{**container, "name": "b"}])
    for each in (*spec["containers"], *spec["initContainers"]):
        assert each["resources"] == {"limits": {GPUS[0]: "1", "cpu": "500m"}}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_template_gets_neither_host_ports_nor_service_links(api: Api, namespace: str, kind: str) -> None:
    container = {"name": "a", "image": "example.com/a:1", "ports": [{"containerPort": 80}]}
    spec = await _template(api, namespace, kind, containers=[container], hostNetwork=True)
    assert spec["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert "enableServiceLinks" not in spec


async def test_a_template_gets_what_every_pod_spec_gets(api: Api, namespace: str) -> None:
    spec = await _template(api, namespace, "Deployment", containers=[{"name": "a", "image": "example.com/a"}])
    assert {key: spec[key] for key in spec if key != "containers"} == {
        "dnsPolicy": "ClusterFirst",
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    }
    assert spec["containers"][0] == {
        "name": "a",
        "image": "example.com/a",
        "imagePullPolicy": "Always",
        "resources": {},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }


async def test_a_pod_requests_what_it_limits(api: Api, core: str) -> None:
    pod = gated_pod("a", limits={THING: "1", "cpu": "500m"})
    pod["spec"]["initContainers"] = [{**pod["spec"]["containers"][0], "name": "b"}]
    spec = (await api("POST", f"{core}/pods{DRY}", pod)).ok()["spec"]
    for each in (*spec["containers"], *spec["initContainers"]):
        assert each["resources"]["requests"] == {THING: "1", "cpu": "500m"}
    assert spec["enableServiceLinks"] is True


async def test_ports_of_a_pod_on_the_hosts_network_are_the_hosts(api: Api, core: str) -> None:
    pod = gated_pod("a")
    pod["spec"]["hostNetwork"] = True
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 8080}]
    made = (await api("POST", f"{core}/pods{DRY}", pod)).ok()
    assert made["spec"]["containers"][0]["ports"] == [{"containerPort": 8080, "hostPort": 8080, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("example.com:5000/a", "Always"),
        ("example.com/a:latest", "Always"),
        ("example.com/a:1", "IfNotPresent"),
        (f"example.com/a@sha256:{'0' * 64}", "IfNotPresent"),
        (f"example.com/a:latest@sha256:{'0' * 64}", "Always"),
    ],
)
async def test_images_whose_tag_moves_are_always_pulled(api: Api, core: str, image: str, policy: str) -> None:
    pod = gated_pod("a")
    pod["spec"]["containers"][0]["image"] = image
    made = (await api("POST", f"{core}/pods{DRY}", pod)).ok()
    assert made["spec"]["containers"][0]["imagePullPolicy"] == policy


async def test_volumes_and_hooks_of_a_pod_have_defaults(api: Api, core: str) -> None:
    pod = gated_pod("a")
    pod["spec"]["containers"][0]["lifecycle"] = {"preStop": {"httpGet": {"port": 80}}}
    field = {"path": "a", "fieldRef": {"fieldPath": "metadata.name"}}
    pod["spec"]["volumes"] = [
        {"name": "empty"},
        {"name": "host", "hostPath": {"path": "/a"}},
        {"name": "down", "downwardAPI": {"items": [field]}},
        {"name": "all", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
    ]
    spec = (await api("POST", f"{core}/pods{DRY}", pod)).ok()["spec"]
    made = {each["name"]: each for each in spec["volumes"]}
    assert made["empty"] == {"name": "empty", "emptyDir": {}}
    assert made["host"]["hostPath"] == {"path": "/a", "type": ""}
    assert made["down"]["downwardAPI"]["items"][0]["fieldRef"] == {"apiVersion": "v1", "fieldPath": "metadata.name"}
    assert made["all"]["projected"] == {
        "defaultMode": 420,
        "sources": [{"serviceAccountToken": {"expirationSeconds": 3600, "path": "t"}}],
    }
    hook = spec["containers"][0]["lifecycle"]["preStop"]["httpGet"]
    assert hook == {"path": "/", "port": 80, "scheme": "HTTP"}


async def test_amounts_are_rounded_up_to_a_thousandth(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/pods{DRY}", gated_pod("a", limits={"cpu": "100u"}))).ok()
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1m"}


async def test_a_job_takes_the_labels_of_its_template(api: Api, namespace: str) -> None:
    _, body = _workload("Job", {"containers": [{"name": "a", "image": "example.com/a:1"}]})
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs{DRY}"
    assert (await api("POST", path, body)).ok()["metadata"]["labels"]["app"] == "a"
    body["metadata"]["labels"] = {"mine": "1"}
    assert (await api("POST", path, body)).ok()["metadata"]["labels"] == {"mine": "1"}


async def test_a_jobs_failure_policy_decides_about_its_other_defaults(api: Api, namespace: str) -> None:
    _, body = _workload("Job", {"containers": [{"name": "a", "image": "example.com/a:1"}]})
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs{DRY}"
    plain = (await api("POST", path, body)).ok()["spec"]
    assert (plain["podReplacementPolicy"], plain["backoffLimit"]) == ("TerminatingOrFailed", 6)
    body["spec"] |= {"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1}
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    body["spec"]["podFailurePolicy"] = {"rules": [rule]}
    made = (await api("POST", path, body)).ok()["spec"]
    assert made["backoffLimit"] == 2**31 - 1
    assert made["podReplacementPolicy"] == "Failed"
    assert made["podFailurePolicy"]["rules"][0]["onPodConditions"] == [{"status": "True", "type": "DisruptionTarget"}]


async def test_a_stateful_sets_strategy_is_completed_only_where_its_author_said_nothing(
    api: Api, namespace: str
) -> None:
    _, body = _workload("StatefulSet", {"containers": [{"name": "a", "image": "example.com/a:1"}]})
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets{DRY}"
    made = (await api("POST", path, body)).ok()["spec"]["updateStrategy"]
    assert (made["type"], made["rollingUpdate"]["partition"]) == ("RollingUpdate", 0)
    body["spec"]["updateStrategy"] = {"type": "RollingUpdate"}
    assert (await api("POST", path, body)).ok()["spec"]["updateStrategy"] == {"type": "RollingUpdate"}


async def test_a_service_for_the_outside_has_defaults_of_its_own(api: Api, core: str) -> None:
    service = {"metadata": {"name": "a"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}
    spec = (await api("POST", f"{core}/services{DRY}", service)).ok()["spec"]
    assert spec["externalTrafficPolicy"] == "Cluster"
    assert spec["allocateLoadBalancerNodePorts"] is True
    service["spec"] = {"sessionAffinity": "ClientIP", "ports": [{"port": 80}]}
    spec = (await api("POST", f"{core}/services{DRY}", service)).ok()["spec"]
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    assert "externalTrafficPolicy" not in spec


async def test_ports_of_endpoints_are_tcp(api: Api, core: str, namespace: str) -> None:
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}
    made = (await api("POST", f"{core}/endpoints{DRY}", {"metadata": {"name": "a"}, "subsets": [subset]})).ok()
    assert made["subsets"][0]["ports"] == [{"port": 80, "protocol": "TCP"}]
    body = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [], "ports": [{"port": 80}]}
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices{DRY}"
    assert (await api("POST", path, body)).ok()["ports"] == [{"name": "", "port": 80, "protocol": "TCP"}]
