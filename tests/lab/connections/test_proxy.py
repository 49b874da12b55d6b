"""``services/proxy`` and ``pods/proxy`` to simulated servers."""

import json

import pytest
from tests.lab.connections.conftest import RunningCluster
from tests.support.conformance_api import Kubectl

from tessera.kube.resources import SERVICES
from tessera_lab.apiserver.interfaces import UserInfo

NAMESPACE = "/api/v1/namespaces/default"


@pytest.fixture
async def served(running: RunningCluster) -> RunningCluster:
    """A pod that serves on port 8080, behind port 80 of a Service."""
    declared = json.dumps({"port": 8080, "model": "m"})
    await running.run("p", labels={"app": "p"}, annotations={"lab.tessera.dev/http": declared})
    ports = [{"name": "http", "port": 80, "targetPort": 8080}, {"name": "none", "port": 81}]
    spec = {"selector": {"app": "p"}, "ports": ports}
    await running.client.create(SERVICES.as_dicts(), {"metadata": {"name": "s"}, "spec": spec}, "default")
    await running.kubectl()("wait", "endpoints/s", "--for=jsonpath={.subsets[0].addresses}", "--timeout=60s")
    return running


@pytest.mark.parametrize("target", ["pods/p:8080", "services/s:80", "services/s:http", "services/http:s:80"])
async def test_a_request_reaches_the_server(served: RunningCluster, target: str) -> None:
    kubectl = served.kubectl()
    path = f"{NAMESPACE}/{target}/proxy/v1"
    assert json.loads(await kubectl("get", "--raw", f"{path}/models"))["data"][0]["id"] == "m"
    asked = {"prompt": "a", "max_tokens": 1}
    answer = json.loads(await kubectl("create", "--raw", f"{path}/completions", "-f", "-", manifest=asked))
    assert answer["choices"][0]["text"] == " simulated:"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("services/s", 'no endpoints available for service "s"'),
        ("services/s:82", 'no service port 82 found for service "s"'),
        ("services/s:other", 'no endpoints available for service "s"'),
        ("services/none:80", 'services "none" not found'),
        ("services/s:81", "the proxy subresource of pods that do not listen"),
        ("pods/p:81", "the proxy subresource of pods that do not listen"),
        ("pods/none", 'pods "none" not found'),
    ],
)
async def test_what_is_not_there_is_said(served: RunningCluster, target: str, said: str) -> None:
    assert said in await served.kubectl()("get", "--raw", f"{NAMESPACE}/{target}/proxy/", fails=True)


async def test_only_who_may_connect(served: RunningCluster, kubectl: Kubectl) -> None:
    ana = served.kubectl(UserInfo(name="ana", groups=("users",)))
    path = f"{NAMESPACE}/services/s:80/proxy/health"
    assert 'User "ana" cannot get resource "services/proxy"' in await ana("get", "--raw", path, fails=True)
    granted = ["--verb=get", "--resource=services/proxy,pods,pods/portforward"]
    await kubectl("create", "role", "r", *granted)
    await kubectl("create", "rolebinding", "r", "--role=r", "--user=ana")
    assert await ana("get", "--raw", path) == ""
    refused = await ana("port-forward", "pod/p", ":8080", fails=True)
    assert 'User "ana" cannot create resource "pods/portforward"' in refused


async def test_a_declaration_that_is_not_valid_stops_the_container(running: RunningCluster, kubectl: Kubectl) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"lab.tessera.dev/http": "{prot: 80}"}},
        "spec": {"containers": [{"name": "c", "image": "server"}]},
    }
    await kubectl("create", "-f", "-", manifest=pod)
    reason = "{.status.containerStatuses[0].state.waiting.reason}=CreateContainerConfigError"
    await kubectl("wait", "pod/p", f"--for=jsonpath={reason}", "--timeout=60s")
    message = await kubectl("get", "pod", "p", "-o", "jsonpath={.status.containerStatuses[0].state.waiting.message}")
    assert message == "annotation lab.tessera.dev/http: Object contains unknown field `prot`"
    assert "not running. Current status=Pending" in await kubectl("port-forward", "pod/p", ":80", fails=True)
