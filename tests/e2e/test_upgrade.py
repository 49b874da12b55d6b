"""From the chart of the version before to this one and back, by the real Helm, under running pods of every kind.

Controller, webhook and agents of the version before are real processes with its code; those of this version run in the
lab. Cards, kubelet and the pods' containers are simulated.
"""

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from charts.files import FOLDER
from tests.support.helm_program import HELM
from tests.support.previous_version import previous_chart, previous_version, unpack_previous
from tests.support.running_lab import RunningLab

import tessera
from tessera.agent.base.node_files import STATE_VERSION

SYSTEM = ("-n", "tessera-system")
#: The nodes by what their cards are used for, with their labels, and the pods that use them.
LABELS = {
    "node-1": ("nvidia.com/mig.config=dynamic",),
    "node-2": ("nvidia.com/device-plugin.config=slice-4",),
    "node-3": ("nvidia.com/device-plugin.config=mps-4",),
    "node-4": ("nvidia.com/mig.config=all-1g.5gb",),
}
PODS = {
    "slice": "nvidia.com/mig-3g.20gb",
    "share": "nvidia.com/gpu.shared",
    "client": "nvidia.com/gpu.mps",
    "fixed": "nvidia.com/mig-1g.5gb",
}


@pytest.fixture(scope="module")
def code() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tp-", dir="/tmp") as folder:
        yield unpack_previous(Path(folder))


@pytest.fixture(scope="module")
def lab_arguments(code: Path) -> list[str]:
    image = f"tessera:{previous_version()}={code}"
    return ["--no-tessera", "--mig-config", "", "--nodes", "4*2xA100-40GB", "--image", image]


def helm(cluster: RunningLab, *arguments: str) -> None:
    cluster.helm(*arguments, *SYSTEM)


def versions(cluster: RunningLab) -> dict[str, set[str]]:
    """The image tags of the pods that run, by component."""
    found: dict[str, set[str]] = {}
    for pod in cluster.get("pods", *SYSTEM)["items"]:
        component = pod["metadata"]["labels"]["app.kubernetes.io/name"]
        tags = {each["image"].rpartition(":")[2] for each in pod["spec"]["containers"]}
        found.setdefault(component, set()).update(tags)
    return found


def ready(cluster: RunningLab) -> bool:
    return all(
        each["ready"] for pod in cluster.get("pods", *SYSTEM)["items"] for each in pod["status"]["containerStatuses"]
    )


def settle(cluster: RunningLab, version: str) -> None:
    """Waits until only processes of a version run, and all of them are ready; MPS hosts keep theirs."""
    components = ("tessera-agent", "tessera-controller", "tessera-webhook")
    cluster.eventually(lambda: all(versions(cluster).get(each) == {version} for each in components))
    cluster.eventually(lambda: ready(cluster))


def pod_states(cluster: RunningLab) -> dict[str, Any]:
    """What must not change of the users' pods: identity, restarts, start, node, and devices."""
    found = {}
    for pod in cluster.get("pods", "-n", "default")["items"]:
        (container,) = pod["status"]["containerStatuses"]
        name = pod["metadata"]["name"]
        lines = cluster.kubectl("logs", name).splitlines()
        found[name] = {
            "uid": pod["metadata"]["uid"],
            "node": pod["spec"]["nodeName"],
            "restarts": container["restartCount"],
            "state": container["state"],
            "devices": [line for line in lines if "NVIDIA_VISIBLE_DEVICES" in line],
        }
    return found


def cards(cluster: RunningLab) -> dict[str, Any]:
    """The instances and MPS daemons on the cards, with their ids."""
    found = {}
    for node in LABELS:
        machine = json.loads((cluster.folder / "n" / node / "cards.json").read_text(encoding="utf-8"))
        found[node] = (
            [card["instances"] for card in machine["cards"] if card.get("instances")],
            [(each["id"], each["clients"]) for each in machine["mps_daemons"]],
        )
    return found


class AllocatableWatch:
    """Every value of the nodes' GPU resources that the API server shows, from start to end."""

    def __init__(self, cluster: RunningLab) -> None:
        self._log = cluster.folder / "nodes.jsonl"
        with self._log.open("wb") as output:
            command = ("kubectl", "get", "nodes", "-o", "json", "--watch", "--output-watch-events")
            self._process = subprocess.Popen(command, env=cluster.env, stdout=output)
        cluster.eventually(lambda: len(self._nodes()) >= len(LABELS))

    def end(self) -> dict[str, set[str]]:
        """The different values by node and resource."""
        found: dict[str, set[str]] = {}
        for node in self._nodes():
            for resource, amount in node["status"]["allocatable"].items():
                if resource.startswith("nvidia.com/"):
                    found.setdefault(f"{node['metadata']['name']} {resource}", set()).add(amount)
        self._process.kill()
        self._process.wait()
        return found

    def _nodes(self) -> list[dict[str, Any]]:
        decoder, text, nodes = json.JSONDecoder(), self._log.read_text(encoding="utf-8"), []
        while text.lstrip():
            try:
                event, end = decoder.raw_decode(text.lstrip())
            except json.JSONDecodeError:  # the rest of it is still on its way
                break
            nodes.append(event["object"])
            text = text.lstrip()[end:]
        return nodes


@pytest.fixture(scope="module")
def under_load(cluster: RunningLab) -> RunningLab:
    """A cluster with the version before and a running pod of every kind."""
    helm(cluster, "install", "tessera", str(previous_chart()), "--create-namespace", "--wait", "--timeout", "180s")
    for node, labels in LABELS.items():
        cluster.kubectl("label", "node", node, *labels)
    cluster.eventually(lambda: all(offered(cluster, resource) for resource in PODS.values()))
    for name, resource in PODS.items():
        cluster.apply(cluster.pod(name, {resource: 1}))
    cluster.kubectl("wait", "pod", "--all", "--for=condition=Ready", "--timeout=120s")
    settle(cluster, previous_version())
    return cluster


def offered(cluster: RunningLab, resource: str) -> bool:
    return any(node["status"]["allocatable"].get(resource, "0") != "0" for node in cluster.get("nodes")["items"])


def test_the_version_before_is_another_one_than_this() -> None:
    assert previous_version() != tessera.__version__


def test_an_upgrade_and_a_downgrade_disturb_no_pod_and_no_resource(under_load: RunningLab) -> None:
    cluster = under_load
    pods, on_cards, watch = pod_states(cluster), cards(cluster), AllocatableWatch(cluster)
    assert {each["restarts"] for each in pods.values()} == {0}
    (daemons,) = (daemons for instances, daemons in on_cards.values() if daemons)
    assert [len(clients) for _, clients in daemons] == [1]

    helm(cluster, "upgrade", "tessera", str(FOLDER), "--reset-then-reuse-values")
    settle(cluster, tessera.__version__)
    assert pod_states(cluster) == pods
    assert cards(cluster) == on_cards
    assert versions(cluster)["tessera-mps"] == {previous_version()}, "an update leaves the MPS hosts alone"
    more = cluster.pod("more", {"nvidia.com/mig-1g.5gb": 1})
    more["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    cluster.apply(more)
    cluster.kubectl("wait", "pod/more", "--for=condition=Ready", "--timeout=120s")
    pods, on_cards = pod_states(cluster), cards(cluster)

    helm(cluster, "rollback", "tessera", "1")
    settle(cluster, previous_version())
    assert pod_states(cluster) == pods
    assert cards(cluster) == on_cards

    changed = {name: amounts for name, amounts in watch.end().items() if len(amounts) > 1}
    assert changed == {"node-1 nvidia.com/mig-1g.5gb.me": {"14", "2"}}, "once per card in this version"


def test_the_end_of_an_mps_host_ends_its_clients_work(under_load: RunningLab) -> None:
    cluster = under_load
    cluster.kubectl("delete", "pod", *SYSTEM, "-l", "app.kubernetes.io/name=tessera-mps")
    cluster.eventually(lambda: cluster.get("pod", "client")["status"]["phase"] == "Failed")
    assert {each["restarts"] for each in pod_states(cluster).values()} == {0}
    cluster.eventually(lambda: offered(cluster, "nvidia.com/gpu.mps"))


def test_the_chart_puts_no_older_definition_in_place_of_a_newer_one(under_load: RunningLab) -> None:
    name = "instaslices.inference.redhat.com"
    under_load.kubectl("annotate", "crd", name, "tessera.dev/format=2", "--overwrite")
    done = under_load.run(HELM, "upgrade", "tessera", str(FOLDER), *SYSTEM)
    assert done.returncode != 0
    assert f"CustomResourceDefinition {name}: the cluster has format 2, this chart knows formats up to 1" in done.stderr
    under_load.kubectl("annotate", "crd", name, "tessera.dev/format=1", "--overwrite")


def test_an_agent_refuses_files_of_a_newer_one_which_goes_on(under_load: RunningLab) -> None:
    cluster = under_load
    file = cluster.folder / "n" / "node-2" / "state" / "owners.json"
    before = file.read_bytes()
    data = before.splitlines()[0] + f'\n"version:{STATE_VERSION + 1}"'.encode()
    newer = data + f'\n"sha256:{hashlib.sha256(data).hexdigest()}"\n'.encode()
    file.write_bytes(newer)
    old = agent_of(cluster, "node-2")["metadata"]["name"]

    cluster.kubectl("set", "image", "daemonset/tessera-agent", *SYSTEM, f"agent=tessera:{tessera.__version__}")
    unready = cluster.eventually(lambda: unready_agents(cluster, "node-2"))
    assert old not in unready, "the update stops, and the agent before goes on"
    assert offered(cluster, "nvidia.com/gpu.shared")
    assert file.read_bytes() == newer

    cluster.kubectl("delete", "pod", old, *SYSTEM)
    cluster.eventually(lambda: condition(cluster)["reason"] == "StateOfNewerVersion")
    assert "Install the newer version again" in condition(cluster)["message"]
    file.write_bytes(before)
    cluster.eventually(lambda: condition(cluster)["status"] == "True")


def agent_of(cluster: RunningLab, node: str) -> dict[str, Any]:
    pods = cluster.get("pods", *SYSTEM, "-l", "app.kubernetes.io/name=tessera-agent")["items"]
    return next(each for each in pods if each["spec"].get("nodeName") == node)


def unready_agents(cluster: RunningLab, node: str) -> list[str]:
    pods = cluster.get("pods", *SYSTEM, "-l", "app.kubernetes.io/name=tessera-agent")["items"]
    there = [each for each in pods if each["spec"].get("nodeName") == node and "containerStatuses" in each["status"]]
    return [each["metadata"]["name"] for each in there if not each["status"]["containerStatuses"][0]["ready"]]


def condition(cluster: RunningLab) -> dict[str, str]:
    found = cluster.get("node", "node-2")["status"]["conditions"]
    return next(each for each in found if each["type"] == "GpuNodeReady")
