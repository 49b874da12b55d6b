"""Install, upgrade, rollback and uninstall by the real Helm, through the same commands on any cluster.

``TESSERA_CONFORMANCE_KUBECONFIG`` names the kubeconfig of a cluster without Tessera, with cluster-admin rights and at
least one node of MIG cards; without it a lab is started, and of it only its kubeconfig is used. The cluster pulls both
images of Tessera, that of this version and that of the one before; ``TESSERA_CONFORMANCE_VALUES`` names a file of the
chart's values, such as their registry, its pull secrets, or ``tessera.agent.simulate`` where no node has cards.

On the lab it is one of the long proofs: each change of version starts all processes anew. `make test` has the parts:
:mod:`tests.e2e.test_helm` follows upgrades, a rollback and an uninstallation by Helm, :mod:`tests.e2e.test_upgrade` an
upgrade from the version before under running pods.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from charts.files import FOLDER
from tests.support.cluster_user import ClusterUser
from tests.support.command_line import start_lab
from tests.support.previous_version import previous_chart, previous_version, unpack_previous

import tessera
from tessera_lab.daemon.lab_folder import stop

pytestmark = pytest.mark.soak

SYSTEM = ("-n", "tessera-system")
RELEASE = ("--namespace", "kube-system")
CONFIG = "nvidia.com/mig.config"
POD = "tessera-conformance"


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    """The cluster under test."""
    given = os.environ.get("TESSERA_CONFORMANCE_KUBECONFIG")
    if given:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp") as folder:
        code = unpack_previous(Path(folder) / "code")
        image = f"tessera:{previous_version()}={code}"
        arguments = ["--no-tessera", "--mig-config", "", "--nodes", "2*1xA100-40GB", "--image", image]
        lab = Path(folder) / "lab"
        try:
            yield Path(start_lab(lab, arguments).kubeconfig)
        finally:
            stop(lab)


@pytest.fixture(scope="module")
def user(kubeconfig: Path) -> Iterator[ClusterUser]:
    """Its user; afterwards Tessera and the pod are gone, also if a test failed."""
    cluster = ClusterUser(kubeconfig)
    there = cluster.run("kubectl", "get", "namespace", "tessera-system", "-o", "name").stdout
    assert not there, f"{kubeconfig}: Tessera is installed in this cluster; use one without it"
    yield cluster
    cluster.run("kubectl", "delete", "pod", POD, "-n", "default", "--ignore-not-found", "--now")
    cluster.run("kubectl", "label", "nodes", "-l", f"{POD}=chosen", f"{CONFIG}-", f"{POD}-")
    if "tessera" in cluster.helm("list", *RELEASE, "--short").split():
        cluster.helm("uninstall", "tessera", *RELEASE)
    cluster.tessera("uninstall", "--yes")


@pytest.fixture(scope="module")
def values() -> list[str]:
    """Helm's options with the values that this cluster needs."""
    given = os.environ.get("TESSERA_CONFORMANCE_VALUES")
    return ["--values", given] if given else []


def agents_run(cluster: ClusterUser, version: str) -> bool:
    pods = cluster.get("pods", *SYSTEM, "-l", "app.kubernetes.io/name=tessera-agent")["items"]
    return bool(pods) and all(
        each["image"].endswith(f":{version}") and each["ready"]
        for pod in pods
        for each in pod["status"].get("containerStatuses", [{"image": "", "ready": False}])
    )


def settle(cluster: ClusterUser, version: str) -> None:
    """Waits until every process is of a version and ready."""
    for name in ("deployment/tessera-controller", "deployment/tessera-webhook", "daemonset/tessera-agent"):
        cluster.kubectl("rollout", "status", name, *SYSTEM, "--timeout=170s")
    cluster.eventually(lambda: agents_run(cluster, version))


def smallest_slices(node: Mapping[str, Any]) -> list[str]:
    """The resource of the smallest slices that a node offers."""
    offered = node["status"]["allocatable"]
    return sorted(each for each in offered if each.startswith("nvidia.com/mig-1g.") and offered[each] != "0")


def pod_state(cluster: ClusterUser) -> dict[str, Any]:
    """What must not change of the pod."""
    pod = cluster.get("pod", POD, "-n", "default")
    (container,) = pod["status"]["containerStatuses"]
    return {
        "uid": pod["metadata"]["uid"],
        "node": pod["spec"]["nodeName"],
        "phase": pod["status"]["phase"],
        "restarts": container["restartCount"],
        "devices": [line for line in cluster.kubectl("logs", POD, "-n", "default").splitlines() if "NVIDIA" in line],
    }


@pytest.fixture(scope="module")
def node(user: ClusterUser, values: list[str]) -> str:
    """A node of slices on demand, under the version before, with a pod that runs on a slice."""
    previous = str(previous_chart())
    user.helm("upgrade", "-i", "tessera", previous, *RELEASE, *values, "--wait", "--timeout", "170s")
    settle(user, previous_version())
    name = str(user.eventually(lambda: nodes_with_cards(user))[0])
    user.kubectl("label", "node", name, f"{CONFIG}=dynamic", f"{POD}=chosen", "--overwrite")
    resource = user.eventually(lambda: smallest_slices(user.get("node", name)))[0]
    pod = user.pod(POD, {resource: 1})
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": user.get("node", name)["metadata"]["labels"][HOSTNAME]}
    user.apply(pod, "default")
    user.kubectl("wait", f"pod/{POD}", "-n", "default", "--for=condition=Ready", "--timeout=170s")
    return name


HOSTNAME = "kubernetes.io/hostname"


def nodes_with_cards(cluster: ClusterUser) -> list[str]:
    found = cluster.get("nodes", "-l", "nvidia.com/mig.capable=true")["items"]
    return [each["metadata"]["name"] for each in found]


def test_an_upgrade_and_a_rollback_leave_the_pod_as_it_is(user: ClusterUser, values: list[str], node: str) -> None:
    before = pod_state(user)
    assert (before["node"], before["restarts"], before["phase"]) == (node, 0, "Running")
    user.helm("upgrade", "tessera", str(FOLDER), *RELEASE, *values, "--reset-then-reuse-values")
    settle(user, tessera.__version__)
    assert pod_state(user) == before
    assert before["uid"] in user.slices(node)

    user.helm("rollback", "tessera", "1", *RELEASE)
    settle(user, previous_version())
    assert pod_state(user) == before
    # Not by rollback: Helm 3 refuses to take over a definition that stays and that the older version did not have.
    user.helm("upgrade", "tessera", str(FOLDER), *RELEASE, *values, "--reset-then-reuse-values")
    settle(user, tessera.__version__)
    assert pod_state(user) == before


def test_an_uninstallation_leaves_the_pod_and_nothing_else(user: ClusterUser, values: list[str], node: str) -> None:
    if not agents_run(user, tessera.__version__):
        user.helm("upgrade", "tessera", str(FOLDER), *RELEASE, *values, "--reset-then-reuse-values")
        settle(user, tessera.__version__)
    before = pod_state(user)
    user.helm("uninstall", "tessera", *RELEASE)
    assert pod_state(user) == before
    found = user.get("node", node)
    ours = [
        key for key in (*found["metadata"]["labels"], *found["metadata"].get("annotations", {})) if "tessera." in key
    ]
    assert ours == []
    assert not smallest_slices(found)
    kinds = "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies"
    left = user.kubectl("get", kinds, "-A", "-o", "name").split()
    assert not [each for each in left if "tessera" in each.rpartition("/")[2]]
    assert user.tessera("uninstall", "--yes").endswith("Tessera is removed\n"), "the definitions, which Helm keeps"
