"""Every path of every port of Tessera's pods, and what a reader needs for it: a new one needs a row here.

The table is compared with the ports of all forms of installation, and played in a lab whose tenants have pods: without
what a row asks for there is no page, and no answer names a pod, a namespace or a node.
"""

import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from tests.deploy.conftest import ROOT, rendered
from tests.support.running_lab import TIMEOUT, RunningLab

#: A stranger's context, which trusts whoever answers.
ANY_SERVER = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
ANY_SERVER.check_hostname, ANY_SERVER.verify_mode = False, ssl.CERT_NONE
NAMES = ("holder-of-team", "team-secret", "node-1", "waiting-of-team")


class Row(NamedTuple):
    """A path of a port.

    Attributes:
        path: the path.
        stranger: the status for one who shows nothing; 0 if the handshake is refused.
        reader: the account whose token opens it; empty if no token does.
    """

    path: str
    stranger: int
    reader: str = ""


PROBES = (Row("/healthz", 200), Row("/readyz", 200))
#: The ports of each workload, and the paths of each port.
PORTS: Mapping[tuple[str, int], Sequence[Row]] = {
    ("tessera-agent", 8082): (
        *PROBES,
        Row("/metrics", 401, "tessera-reader"),
        Row("/usage", 401, "tessera-reader"),
        Row("/queue", 404),
    ),
    ("tessera-controller", 8081): (
        *PROBES,
        Row("/metrics", 401, "tessera-reader"),
        Row("/queue", 401, "tessera-reader"),
        Row("/usage", 404),
    ),
    # Numbers of reviews by verdict and rule.
    ("tessera-webhook", 8081): (*PROBES, Row("/metrics", 200)),
    # An AdmissionReview is answered to whoever sends one, from what it has and the cards of the cluster.
    ("tessera-webhook", 9443): (Row("/mutate-v1-pod", 405), Row("/", 404)),
    ("tessera-dashboard", 8081): (*PROBES, Row("/metrics", 404)),
    ("tessera-dashboard", 8088): (
        Row("/", 200),
        Row("/assets/page.js", 200),
        Row("/assets/page.css", 200),
        Row("/assets/icon.svg", 200),
        Row("/assets/login.js", 200),
        Row("/login", 200),
        Row("/healthz", 200),
        Row("/whoami", 401, "tessera-reader"),
        Row("/feed", 401, "tessera-reader"),
        Row("/why/team-secret/waiting-of-team", 401),
        Row("/events/team-secret/waiting-of-team", 401),
        Row("/metrics", 404),
    ),
    # Only with the certificate of the API server's front proxy: tests/dashboard/view/test_view_port.py.
    ("tessera-dashboard", 8443): (Row("/apis/view.tessera.dev/v1alpha1/namespaces/team-secret/usages", 0),),
}
#: In its own form of installation only: probes, and no other page (tests/cli/install/test_operator.py).
OPERATOR = ["8081"]


def ports_of(manifests: Sequence[Any]) -> Iterator[tuple[str, int]]:
    for each in manifests:
        pod = (each.get("spec") or {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            yield from ((each["metadata"]["name"], port["containerPort"]) for port in container.get("ports", ()))


def test_the_table_has_every_port_of_every_form() -> None:
    shipped = {*ports_of(rendered("deploy").objects), *ports_of(rendered("deploy/options/dashboard").objects)}
    assert shipped == set(PORTS)
    operator = (ROOT / "bundle" / "operator.yaml").read_text(encoding="utf-8")
    assert re.findall(r"containerPort: (\d+)", operator) == OPERATOR


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "1xA100-40GB,1xT4"]


@pytest.fixture(scope="module")
def lab(cluster: RunningLab) -> RunningLab:
    """A lab with a pod on a card, and one that waits, in a namespace of a tenant."""
    cluster.tessera("install", "--dashboard")
    cluster.kubectl("create", "namespace", "team-secret")
    for name in NAMES[0], NAMES[3]:
        made = RunningLab.pod(name, {"nvidia.com/mig-7g.40gb": 1})
        cluster.apply(made, "team-secret")
    cluster.kubectl("-n", "team-secret", "wait", f"pod/{NAMES[0]}", "--for=condition=Ready", "--timeout=180s")
    workloads = {name for name, _ in PORTS}
    cluster.eventually(lambda: all(addresses(cluster, name) for name in workloads))
    return cluster


def addresses(lab: RunningLab, name: str) -> list[str]:
    """The addresses of the pods of a workload that are ready."""
    pods = lab.get("pods", "-n", "tessera-system", "-l", f"app.kubernetes.io/name={name}")["items"]
    ready = [{"type": "Ready", "status": "True"}.items() for _ in pods]
    return [
        each["status"]["podIP"]
        for each, wanted in zip(pods, ready, strict=True)
        if any(wanted <= condition.items() for condition in each["status"].get("conditions", ()))
    ]


@pytest.mark.parametrize(("workload", "port"), PORTS)
def test_a_stranger_gets_no_name_on_any_path(lab: RunningLab, workload: str, port: int) -> None:
    for address in addresses(lab, workload):
        for row in PORTS[workload, port]:
            for token in ("", "forged"):
                status, text = get(address, port, row.path, token)
                assert status == row.stranger, (workload, port, row.path, token, text)
                assert not [name for name in NAMES if name in text.replace(row.path, "")], (workload, port, row.path)


@pytest.mark.parametrize(("workload", "port"), [("tessera-agent", 8082), ("tessera-controller", 8081)])
def test_the_account_for_readers_gets_the_names(lab: RunningLab, workload: str, port: int) -> None:
    token = lab.page_token()
    for row in PORTS[workload, port]:
        if row.reader:
            found = [get(each, port, row.path, token) for each in addresses(lab, workload)]
            assert {status for status, _ in found} == {200}
    named = {"tessera-agent": ("/usage", NAMES[0]), "tessera-controller": ("/queue", NAMES[3])}[workload]
    lab.eventually(lambda: any(named[1] in get(each, port, named[0], token)[1] for each in addresses(lab, workload)))


def get(address: str, port: int, path: str, token: str = "") -> tuple[int, str]:
    """Status and text; status 0 if the handshake is refused."""
    tls = port in (8443, 9443)
    headers = {"Host": "localhost", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(f"http{'s' if tls else ''}://{address}:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=ANY_SERVER if tls else None) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return 0, ""
