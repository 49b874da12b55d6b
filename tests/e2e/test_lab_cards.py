"""Cards of a lab break and are mended by hand, pods take memory, and Tessera acts on what it sees."""

import json
from typing import Any

import pytest
from tests.support.running_lab import RunningLab

from tessera.api.names import GPU_CONDITION
from tessera.cli.health import NOT_HEALTHY
from tessera.nvml.errors import XIDS


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "2xA100-40GB,2xT4", "--mig-config", "", "--virtual-time"]


@pytest.fixture(scope="module")
def shared(cluster: RunningLab) -> RunningLab:
    """The lab with four time slices for each T4, two pods on one of them, and agents that end what takes too much."""
    values = ("--values", "examples/sharing/values.yaml", "--namespace", "kube-system")
    cluster.tessera("install", *values, "--no-drivers", "--memory-limits", "kill")
    cluster.kubectl("apply", "-f", "examples/sharing/time-slicing-config.yaml")
    cluster.kubectl("rollout", "status", "-n", "tessera-system", "daemonset/tessera-agent", "--timeout=180s")
    cluster.kubectl("label", "node", "node-2", "nvidia.com/device-plugin.config=slice-4")
    cluster.eventually(lambda: allocatable(cluster, "node-2").get("nvidia.com/gpu.shared") == "8")
    return cluster


def allocatable(cluster: RunningLab, node: str) -> dict[str, str]:
    found: dict[str, str] = cluster.get("node", node)["status"]["allocatable"]
    return found


def condition(cluster: RunningLab, node: str, kind: str) -> Any:
    found = cluster.get("node", node)["status"]["conditions"]
    return next((each for each in found if each["type"] == kind), None)


def test_a_lost_card_is_withheld_until_it_is_mended(cluster: RunningLab) -> None:
    assert "simulated" in cluster.tessera("lab", "break", "gpu", "node-1/0", "--xid", "79")
    cluster.eventually(lambda: condition(cluster, "node-1", "GpuHealthy")["status"] == "False")
    assert "XID 79" in condition(cluster, "node-1", "GpuHealthy")["message"]
    cluster.eventually(lambda: allocatable(cluster, "node-1")["nvidia.com/gpu"] == "1")
    cluster.eventually(lambda: cluster.run_tessera("health", "node-1").returncode == NOT_HEALTHY)  # its next sample
    health = cluster.run_tessera("health", "node-1")
    assert "node-1/0 NVIDIA A100-SXM4-40GB: lost" in health.stdout
    told = f"XID 79, {XIDS[79].text}; not allocated until the node is rebooted"
    assert told in " ".join(health.stdout.split())
    refused = cluster.tessera("lab", "break", "gpu", "node-1/0", "--fault", "heat", fails=True)
    assert "tessera lab mend gpu node-1/0" in refused
    assert "node-1 reboots" in cluster.tessera("lab", "mend", "gpu", "node-1/0")
    cluster.eventually(lambda: condition(cluster, "node-1", "GpuHealthy")["status"] == "True")
    cluster.eventually(lambda: allocatable(cluster, "node-1")["nvidia.com/gpu"] == "2")


def test_a_card_that_asks_for_a_reset_gets_it(cluster: RunningLab) -> None:
    cluster.tessera("lab", "break", "gpu", "node-1/1", "--fault", "ecc")
    resets = ("get", "events", "--field-selector=reason=GpuReset", "-o", "name")
    cluster.eventually(lambda: cluster.kubectl(*resets))
    cluster.pass_time(90)
    assert condition(cluster, "node-1", "GpuHealthy")["status"] == "True"


def test_the_fault_of_a_pods_card_is_told_in_one_sentence_wherever_one_looks(cluster: RunningLab) -> None:
    pod = cluster.pod("owner", {"nvidia.com/gpu": 2})
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "node-1"}
    cluster.apply(pod)
    cluster.kubectl("wait", "pod/owner", "--for=condition=Ready", "--timeout=180s")
    cluster.tessera("lab", "break", "gpu", "node-1/0", "--xid", "48")
    cluster.kubectl("wait", "pod/owner", "--for=condition=tessera.dev/GpuHealthy=False", "--timeout=180s")
    conditions = cluster.get("pod", "owner")["status"]["conditions"]
    (sentence,) = (each["message"] for each in conditions if each["type"] == GPU_CONDITION)
    assert sentence.startswith(f"GPU 0: XID 48, {XIDS[48].text}; not allocated until it is reset")
    fault = sentence.removeprefix("GPU 0: ")
    assert sentence in cluster.kubectl("get", "events", "--field-selector=involvedObject.name=owner")
    assert sentence in " ".join(cluster.tessera("why", "owner").split())
    cluster.eventually(lambda: f"default/owner on node-1/0: {fault}" in cluster.tessera("top", "--by", "pods"))
    assert fault in " ".join(cluster.run_tessera("health", "node-1").stdout.split())
    cluster.eventually(lambda: "kubelet reports 1 unhealthy device" in cluster.tessera("why", "owner"))
    cluster.kubectl("delete", "pod", "owner", "--wait=true")
    cluster.pass_time(90)
    cluster.eventually(lambda: condition(cluster, "node-1", "GpuHealthy")["status"] == "True")


def test_a_card_that_cannot_be_read_is_named_and_comes_back(cluster: RunningLab) -> None:
    cluster.tessera("lab", "break", "gpu", "node-1/0", "--fault", "unreadable", "--code", "8")
    cluster.pass_time(90)
    assert allocatable(cluster, "node-1")["nvidia.com/gpu"] == "1"
    text = "the card cannot be read: card 0: NVML error 8"
    cluster.eventually(lambda: text in condition(cluster, "node-1", "GpuHealthy")["message"])
    cluster.eventually(lambda: cluster.run_tessera("health", "node-1").returncode == NOT_HEALTHY)
    health = " ".join(cluster.run_tessera("health", "node-1").stdout.split())
    assert "node-1/0 NVIDIA A100-SXM4-40GB: withheld" in health
    assert "not allocated until it can be read again" in health
    assert text in health
    cluster.tessera("lab", "mend", "gpu", "node-1/0")
    cluster.pass_time(90)
    assert allocatable(cluster, "node-1")["nvidia.com/gpu"] == "2"
    refused = cluster.tessera("lab", "break", "gpu", "node-1/0", "--fault", "heat", "--code", "8", fails=True)
    assert "error of the fault unreadable" in refused


@pytest.mark.parametrize(
    ("card", "facts"),
    [
        ("node-9/0", ("no node 'node-9'", "node-1, node-2")),
        ("node-1/7", ("no card '7'", "index 0 to 1")),
        ("node-1", ("NODE/INDEX",)),
    ],
)
def test_a_card_that_is_not_there_is_answered_with_those_that_are(
    cluster: RunningLab, card: str, facts: tuple[str, ...]
) -> None:
    said = cluster.tessera("lab", "break", "gpu", card, "--xid", "48", fails=True)
    assert all(fact in said for fact in facts), said


def test_a_card_is_cordoned_and_given_back_by_hand(cluster: RunningLab) -> None:
    said = cluster.tessera("cordon", "node-1/1", "--reason", "fan is loud")
    assert "running pods stay" in said
    cluster.eventually(lambda: allocatable(cluster, "node-1")["nvidia.com/gpu"] == "1")
    cluster.eventually(lambda: condition(cluster, "node-1", "GpuHealthy")["reason"] == "CardCordoned")
    assert condition(cluster, "node-1", "GpuHealthy")["status"] == "True"
    assert "cordoned already: fan is loud" in cluster.tessera("cordon", "node-1/1", "--reason", "x", fails=True)
    cluster.eventually(lambda: "cordoned by hand: fan is loud" in cluster.run_tessera("health").stdout)
    assert cluster.run_tessera("health").returncode == NOT_HEALTHY
    assert "cordoned" in cluster.tessera("map")
    assert "fan is loud" in cluster.tessera("why", "node/node-1")
    assert "is not cordoned any more" in cluster.tessera("uncordon", "node-1/1")
    cluster.eventually(lambda: allocatable(cluster, "node-1")["nvidia.com/gpu"] == "2")
    assert "is not cordoned" in cluster.tessera("uncordon", "node-1/1", fails=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("node-9/0", "--reason", "x"), "there is no node node-9"),
        (("node-1/7", "--reason", "x"), "node node-1 has no card 7; it has 0 (GPU-"),
        (("node-1", "--reason", "x"), "write NODE/INDEX, such as gpu-1/0"),
        (("node-1/0",), "--reason"),
        (("node-1/0", "--reason", "two\nlines"), "a reason is one printable line"),
        (("node-1/0", "--reason", "x" * 300), "at most 256 characters"),
    ],
)
def test_a_cordon_that_cannot_be_is_answered_with_what_to_write(
    cluster: RunningLab, arguments: tuple[str, ...], said: str
) -> None:
    assert said in " ".join(cluster.tessera("cordon", *arguments, fails=True).split())


def test_a_pod_that_takes_its_neighbours_memory_is_ended(shared: RunningLab) -> None:
    for name in ("neighbour", "hog"):
        shared.apply(shared.pod(name, {"nvidia.com/gpu.shared": 1}))
    shared.kubectl("wait", "pod/neighbour", "pod/hog", "--for=condition=Ready", "--timeout=180s")
    assert "is e.g. 12Gi" in shared.tessera("lab", "use-memory", "hog", "much", fails=True)
    assert "default/hog" in shared.tessera("lab", "use-memory", "nobody", "1Gi", fails=True)
    assert "cannot use 40.00 GiB" in shared.tessera("lab", "use-memory", "hog", "40Gi", fails=True)
    shared.tessera("lab", "use-memory", "neighbour", "1Gi")
    shared.tessera("lab", "use-memory", "hog", "12Gi")
    shared.pass_time(90)
    ended = shared.get("pod", "hog")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 128 + 15
    assert shared.get("pod", "neighbour")["status"]["phase"] == "Running"
    reasons = shared.kubectl("get", "events", "--field-selector=involvedObject.name=hog", "-o", "name", "-o", "yaml")
    assert "GpuMemoryProcessTerminated" in reasons


def test_a_scenario_plays_until_it_is_stopped(cluster: RunningLab) -> None:
    assert "idle-holder " in cluster.tessera("lab", "scenario")
    assert "did you mean idle-holder?" in cluster.tessera("lab", "scenario", "idle-holdr", fails=True)
    file = cluster.folder / "My scenario.yaml"
    file.write_text("about: x\nlasts: soon\n")
    assert "a span is a number" in cluster.tessera("lab", "scenario", str(file), fails=True)
    step = {"at": "10s", "card": "node-1/1", "fault": "heat"}
    file.write_text(json.dumps({"about": "x", "lasts": "2m", "steps": [step]}))
    assert "My-scenario plays" in cluster.tessera("lab", "scenario", str(file))
    cluster.eventually(lambda: "My-scenario is over" in cluster.tessera("lab", "scenario"))
    assert is_hot(cluster)
    assert "is stopped" in cluster.tessera("lab", "scenario", "--stop")
    cluster.eventually(lambda: "no scenario plays" in cluster.tessera("lab", "scenario"))
    cluster.pass_time(30)
    assert not is_hot(cluster)


def is_hot(cluster: RunningLab) -> bool:
    return "hw_thermal" in cluster.tessera("top", "--by", "cards")
