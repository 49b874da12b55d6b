"""The real kubectl against the HTTPS front.

One of the long proofs: `make test` has the same commands in :mod:`tests.conformance.test_kubectl`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tessera.clock import SystemClock
from tessera_lab.apiserver.authz.certificates import CertificateAuthority
from tessera_lab.apiserver.main.http_server import HttpServer, kubeconfig
from tessera_lab.apiserver.main.server import ApiServer

pytestmark = pytest.mark.soak

Kubectl = Callable[..., Awaitable[str]]

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: busybox, env: [{name: A, value: "1"}]}]}
"""
CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets, shortNames: [wd]}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: what is wanted
            properties: {size: {type: integer, description: how big}}
"""


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """Runs kubectl as cluster administrator; a ``-f -`` reads ``stdin``. What it says goes back, errors included."""
    clock = SystemClock()
    authority = CertificateAuthority(clock.now())
    front = HttpServer(ApiServer(clock), authority)
    await front.start()
    config = tmp_path / "config"
    config.write_text(
        kubeconfig(front.url, authority, authority.issue_client_certificate("admin", ("system:masters",)))
    )

    async def run(line: str, *, stdin: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *line.split(),
            env={"KUBECONFIG": str(config), "HOME": str(tmp_path), "PATH": "/usr/local/bin:/usr/bin:/bin"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(30):
            said, _ = await process.communicate(stdin.encode())
        return said.decode()

    yield run
    await front.close()


async def test_apply_on_the_client_and_on_the_server(kubectl: Kubectl) -> None:
    assert await kubectl("apply -f -", stdin=WEB) == "deployment.apps/web created\n"
    assert await kubectl("apply -f -", stdin=WEB) == "deployment.apps/web unchanged\n"
    changed = WEB.replace("replicas: 2", "replicas: 3")
    conflict = await kubectl("apply --server-side -f -", stdin=changed)
    assert 'conflict with "kubectl-client-side-apply" using apps/v1: .spec.replicas' in conflict
    assert "serverside-applied" in await kubectl("apply --server-side --force-conflicts -f -", stdin=changed)
    assert (await kubectl("get deploy web -o jsonpath={.spec.replicas}")) == "3"


async def test_everyday_changes(kubectl: Kubectl) -> None:
    await kubectl("apply -f -", stdin=WEB)
    assert "scaled" in await kubectl("scale deploy web --replicas=5")
    assert "labeled" in await kubectl("label deploy web x=y")
    assert "annotated" in await kubectl("annotate deploy web a=b")
    assert "image updated" in await kubectl("set image deploy/web c=busybox:2")
    assert "patched" in await kubectl('patch deploy web -p {"spec":{"paused":true}}')
    shown = json.loads(await kubectl("get deploy web -o json"))
    assert (shown["spec"]["replicas"], shown["spec"]["paused"]) == (5, True)
    assert shown["spec"]["template"]["spec"]["containers"][0]["image"] == "busybox:2"
    assert shown["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    table = await kubectl("get deploy -l x=y -o wide")
    assert table.split()[:5] == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert "Replicas:               5 desired" in await kubectl("describe deploy web")
    assert "deleted" in await kubectl("delete deploy web")


async def test_create_sends_protobuf(kubectl: Kubectl) -> None:
    for line, said in (
        ("create ns team", "namespace/team created"),
        ("create configmap c --from-literal=a=b", "configmap/c created"),
        ("create secret generic s --from-literal=a=b", "secret/s created"),
        ("create sa z", "serviceaccount/z created"),
        ("create deployment d --image=nginx", "deployment.apps/d created"),
        ("create job j --image=busybox", "job.batch/j created"),
    ):
        assert (await kubectl(line)).strip() == said
    assert await kubectl("get cm c -o jsonpath={.data.a}") == "b"
    assert (await kubectl("create token z")).count(".") == 2


async def test_pods_and_namespaces(kubectl: Kubectl) -> None:
    assert "pod/p created" in await kubectl("run p --image=busybox")
    assert "Pending" in await kubectl("get pods")
    assert "QoS Class:        BestEffort" in await kubectl("describe pod p")
    assert await kubectl("get pods -A --field-selector status.phase=Running") == "No resources found\n"
    assert 'pods "ghost" not found' in await kubectl("get pod ghost")
    assert "deleted" in await kubectl("delete pod p --now")


async def test_custom_resources(kubectl: Kubectl) -> None:
    assert "created" in await kubectl("apply -f -", stdin=CRD)
    assert "condition met" in await kubectl("wait --for=condition=Established crd/widgets.example.com --timeout=5s")
    widget = '{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"size":3}}'
    assert "widget.example.com/w created" in await kubectl("apply -f -", stdin=widget)
    assert (await kubectl("get wd -o name")).strip() == "widget.example.com/w"
    explained = await kubectl("explain widget.spec")
    assert "what is wanted" in explained
    assert "how big" in explained
    bad = await kubectl("apply -f -", stdin=widget.replace('"size":3', '"colour":1'))
    assert 'unknown field "spec.colour"' in bad


async def test_rights(kubectl: Kubectl) -> None:
    assert (await kubectl("auth can-i create pods")).strip() == "yes"
    assert (await kubectl("auth can-i create pods --as nobody")).strip() == "no"
    assert 'User "nobody" cannot list resource "pods"' in await kubectl("get pods --as nobody")
