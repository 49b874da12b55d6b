"""Facts that are read from a Node before anybody has labelled it."""

import pytest

from tessera.api.nodes.node_marks import (
    DRIVER_ANNOTATION,
    DRIVER_CONDITION,
    DRIVER_SET_LABEL,
    HOST_DRIVER_ANNOTATION,
    has_driver_traces,
)
from tessera.driver.driver_sets import PoolKey
from tessera.driver.node_facts import RECORD_ANNOTATION, AgentsWord, page_kib, parse_os_image, read_node_facts
from tessera.kube.resources import Condition, Node, NodeStatus, NodeSystemInfo
from tessera.kube.resources.meta import ObjectMeta

NFD = "feature.node.kubernetes.io/"
GPU = {f"{NFD}pci-10de.present": "true"}


def node(os_image: str = "Ubuntu 22.04.4 LTS", kernel: str = "5.15.0-69-generic", **labels: str) -> Node:
    return Node(
        metadata=ObjectMeta(name="n1", labels=GPU | labels),
        status=NodeStatus(
            node_info=NodeSystemInfo(kernel_version=kernel, os_image=os_image, architecture="amd64"),
        ),
    )


@pytest.mark.parametrize(
    ("text", "os_id", "version", "ostree"),
    [
        ("Ubuntu 22.04.4 LTS", "ubuntu", "22.04", ""),
        ("Ubuntu 24.04 LTS", "ubuntu", "24.04", ""),
        ("Ubuntu 25.10", "ubuntu", "25.10", ""),
        (
            "Red Hat Enterprise Linux CoreOS 47.84.202102161611-0 (Ootpa)",
            "rhcos",
            "4.7",
            "47.84.202102161611-0",
        ),
        (
            "Red Hat Enterprise Linux CoreOS 415.92.202402130021-0 (Plow)",
            "rhcos",
            "4.15",
            "415.92.202402130021-0",
        ),
        ("Red Hat Enterprise Linux CoreOS 9.8.20260817-0 (Plow)", "rhel", "9.8", "9.8.20260817-0"),
        ("Red Hat Enterprise Linux CoreOS 10.2.20260817-0 (Coughlan)", "rhel", "10.2", "10.2.20260817-0"),
        ("Red Hat Enterprise Linux 9.4 (Plow)", "rhel", "9.4", ""),
        ("Rocky Linux 9.4 (Blue Onyx)", "rocky", "9.4", ""),
        ("AlmaLinux 9.4 (Seafoam Ocelot)", "almalinux", "9.4", ""),
        ("Oracle Linux Server 8.9", "ol", "8.9", ""),
        ("CentOS Stream 9", "centos", "9", ""),
        ("Fedora CoreOS 35.20220424.3.0", "fedora", "35", ""),
        ("Debian GNU/Linux 12 (bookworm)", "debian", "12", ""),
        ("SUSE Linux Enterprise Server 15 SP5", "sles", "15.5", ""),
        ("SUSE Linux Enterprise Micro 5.5", "sle-micro", "5.5", ""),
        ("Amazon Linux 2", "amzn", "2", ""),
        ("Amazon Linux 2023.4.20240528", "amzn", "2023", ""),
        ("Bottlerocket OS 1.19.4 (aws-k8s-1.28-nvidia)", "bottlerocket", "1.19.4", ""),
        ("Talos (v1.7.1)", "talos", "v1.7.1", ""),
        ("Flatcar Container Linux by Kinvolk 3815.2.2 (Oklo)", "flatcar", "3815.2.2", ""),
        ("Container-Optimized OS from Google", "cos", "", ""),
    ],
)
def test_the_operating_system_is_read_from_kubelets_text(text: str, os_id: str, version: str, ostree: str) -> None:
    found = parse_os_image(text)
    assert found is not None
    assert (found.id, found.version, found.ostree) == (os_id, version, ostree)


@pytest.mark.parametrize("text", ["", "Tessera lab (simulated)", "Windows Server 2022 Datacenter", "Ubuntu"])
def test_a_text_that_is_not_known_is_not_guessed(text: str) -> None:
    assert parse_os_image(text) is None


def test_a_node_has_its_pool_at_registration_without_any_label_of_node_feature_discovery() -> None:
    assert read_node_facts(node()).pool == PoolKey(
        os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64"
    )


def test_labels_say_what_kubelets_text_does_not() -> None:
    labels = {f"{NFD}system-os_release.ID": "rocky", f"{NFD}system-os_release.VERSION_ID": "8.10"}
    pool = read_node_facts(node("Our own rebuild", **labels)).pool
    assert pool is not None
    assert (pool.os_id, pool.os_version) == ("rocky", "8.10")


def test_after_an_upgrade_of_the_system_kubelets_text_counts_and_not_a_label_of_a_minute_ago() -> None:
    labels = {f"{NFD}system-os_release.ID": "ubuntu", f"{NFD}system-os_release.VERSION_ID": "22.04"}
    pool = read_node_facts(node("Ubuntu 24.04.1 LTS", **labels)).pool
    assert pool is not None
    assert pool.os_version == "24.04"


@pytest.mark.parametrize(
    ("kernel", "kib"),
    [
        ("5.14.0-284.54.1.el9_2.aarch64", 4),
        ("5.14.0-284.54.1.el9_2.aarch64+64k", 64),
        ("5.14.0-284.54.1.el9_2.aarch64_64k", 64),
        ("6.8.0-1013-nvidia-64k", 64),
    ],
)
def test_the_page_size_is_read_from_the_kernels_name(kernel: str, kib: int) -> None:
    assert page_kib(kernel) == kib


def test_a_missing_fact_is_named_with_what_there_is() -> None:
    facts = read_node_facts(node("Our own Linux", kernel=""))
    assert facts.pool is None
    assert [text.partition(" (")[0] for text in facts.missing] == [
        "the kernel's version",
        "the operating system",
        "the operating system's version",
    ]
    assert "osImage is 'Our own Linux'" in facts.missing[1]


def test_a_label_that_cannot_be_part_of_an_images_name_is_a_missing_fact() -> None:
    labels = {f"{NFD}system-os_release.ID": "a/../b", f"{NFD}system-os_release.VERSION_ID": "1"}
    facts = read_node_facts(node("Our own Linux", **labels))
    assert facts.pool is None
    assert "cannot be part of the name of an image" in facts.missing[0]


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.present": "true"},
        {"nvidia.com/mig.config": "all-disabled"},
        {f"{NFD}pci-0302_10de.present": "true"},
        {"cluster-api/accelerator": "nvidia-t4"},
        {"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"},
    ],
)
def test_any_of_many_labels_says_that_there_is_a_gpu(labels: dict[str, str]) -> None:
    assert read_node_facts(Node(metadata=ObjectMeta(name="n1", labels=labels))).is_gpu


def test_a_node_without_any_of_them_has_none() -> None:
    labels = {"nvidia.com/gpu.present": "false"}
    assert not read_node_facts(Node(metadata=ObjectMeta(name="n1", labels=labels))).is_gpu


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.deploy.operands": "false"},
        {"nvidia.com/gpu.deploy.driver": "false"},
        {"nvidia.com/gpu.workload.config": "vm-passthrough"},
    ],
)
def test_operators_labels_opt_a_node_out(labels: dict[str, str]) -> None:
    facts = read_node_facts(node(**labels))
    ((name, value),) = labels.items()
    assert name in facts.opted_out
    assert value in facts.opted_out


def test_a_driver_of_the_host_is_known_by_its_label_or_by_the_system() -> None:
    assert not read_node_facts(node()).preinstalled
    assert "pre-installed" in read_node_facts(node(**{"nvidia.com/gpu.deploy.driver": "pre-installed"})).preinstalled
    found = node_with({"tessera.dev/host-driver": "570.86.15"}, ("True", "Advertised"))
    assert read_node_facts(found).preinstalled == "its agent found 570.86.15 there"
    gone = node_with({"tessera.dev/host-driver": "570.86.15"}, ("False", "WaitingForDriver"))
    assert "kubectl annotate node n tessera.dev/host-driver-" in read_node_facts(gone).preinstalled
    silent = node_with({"tessera.dev/host-driver": "570.86.15"}, ("Unknown", "AgentStatusUnknown"))
    assert read_node_facts(silent).preinstalled == "its agent found 570.86.15 there"
    assert "GKE" in read_node_facts(node("Container-Optimized OS from Google")).preinstalled


def node_with(annotations: dict[str, str], said: tuple[str, str] | None = None, **labels: str) -> Node:
    """A node with what its agent says of the driver."""
    status, reason = said or ("", "")
    conditions = (Condition(type="GpuNodeReady", status=status, reason=reason),) if said else ()
    metadata = ObjectMeta(name="n", annotations=annotations, labels={"nvidia.com/gpu.present": "true", **labels})
    return Node(metadata=metadata, status=NodeStatus(conditions=conditions))


@pytest.mark.parametrize(
    ("said", "labels", "word"),
    [
        (None, {}, AgentsWord.NONE_YET),
        (None, {"nvidia.com/gpu.deploy.device-plugin": "false"}, AgentsWord.WITHOUT_DRIVER),
        (("True", "Advertised"), {}, AgentsWord.WITH_DRIVER),
        (("False", "WaitingForKubelet"), {}, AgentsWord.WITH_DRIVER),
        (("False", "NvmlFailed"), {}, AgentsWord.WITH_DRIVER),
        (("False", "WaitingForDriver"), {}, AgentsWord.WITHOUT_DRIVER),
        (("Unknown", "AgentStatusUnknown"), {}, AgentsWord.SILENT),
    ],
)
def test_what_the_agent_says_of_the_driver(
    said: tuple[str, str] | None, labels: dict[str, str], word: AgentsWord
) -> None:
    assert read_node_facts(node_with({}, said, **labels)).agent is word


@pytest.mark.parametrize(
    ("marked", "traces"),
    [
        (Node(metadata=ObjectMeta(name="n", labels={DRIVER_SET_LABEL: "s"})), True),
        (Node(metadata=ObjectMeta(name="n", annotations={DRIVER_ANNOTATION: "{}"})), True),
        (Node(metadata=ObjectMeta(name="n", annotations={RECORD_ANNOTATION: "{}"})), True),
        (Node(status=NodeStatus(conditions=(Condition(type=DRIVER_CONDITION, status="True"),))), True),
        (Node(metadata=ObjectMeta(name="n", annotations={HOST_DRIVER_ANNOTATION: "550.1"})), False),
        (Node(metadata=ObjectMeta(name="n", labels=GPU)), False),
    ],
)
def test_each_trace_that_a_plan_removes_starts_one(marked: Node, traces: bool) -> None:
    assert read_node_facts(marked).has_traces is traces
    assert has_driver_traces(marked) is traces
