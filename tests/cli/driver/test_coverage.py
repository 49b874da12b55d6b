"""``tessera driver coverage``: the gate and its exit code, against a real registry and an API server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.driver.registry.programs import Image, registry

from tessera.cli.driver.coverage import (
    NOT_COVERED,
    NOT_KNOWN,
    describe_unknown,
    report_document,
    report_for_cluster,
    report_table,
)
from tessera.cli.driver.registry_access import Access
from tessera.cli.driver.subjects import announce_kernels
from tessera.cli.main import main
from tessera.clock import SystemClock
from tessera.doctor.manifests import install_manifests
from tessera.driver.kernels import CONFIG_MAP, NextKernel
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.resources import CONFIGMAPS, CRDS, NAMESPACES, NODES
from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.main.inprocess_transport import InProcessTransport
from tessera_lab.apiserver.main.server import ApiServer

K, K1 = "5.15.0-118-generic", "5.15.0-119-generic"
NAMESPACE = "tessera-system"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that has the driver for the kernel of today."""
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder / "storage") as running:
        running.fill(folder, {f"nvidia/driver:535-{K}-ubuntu22.04": Image()})
        yield running.host


def asked(host: str, *arguments: str) -> int:
    where = ["--repository", f"{host}/nvidia", "--plain-http", "--version", "535"]
    return main(["driver", "coverage", *where, "--os", "ubuntu22.04", *arguments])


def test_a_kernel_with_an_image_opens_the_gate(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(host, "--kernels", K) == 0
    shown = capsys.readouterr().out
    assert "ubuntu22.04 amd64: gate open" in shown
    assert shown.endswith("1/1 covered\n")
    assert f"nvidia/driver:535-{K}-ubuntu22.04" in shown


def test_a_kernel_without_an_image_closes_it(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(host, "--kernels", K1) == NOT_COVERED == 3
    shown = capsys.readouterr().out
    assert "ubuntu22.04 amd64: gate closed" in shown
    assert shown.endswith("0/1 covered\n")


def test_a_registry_that_does_not_answer_closes_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("127.0.0.1:1", "--kernels", K) == NOT_COVERED
    assert "gate closed" in capsys.readouterr().out


def test_programs_get_json(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(host, "--kernels", f"{K},{K1}", "-o", "json") == NOT_COVERED
    told = json.loads(capsys.readouterr().out)
    assert (told["summary"], told["open"], told["gates"]) == ("1/2 covered", False, {"ubuntu22.04 amd64": False})
    assert {each["kernel"]: each["covered"] for each in told["kernels"]} == {K: True, K1: False}


def test_the_newest_kernel_of_an_archive_is_what_is_to_come(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "Packages"
    index.write_text("".join(f"Package: linux-image-{name}\n\n" for name in ("5.15.0-69-generic", K1, K)))
    assert asked(host, "--apt-index", str(index)) == NOT_COVERED
    assert K1 in capsys.readouterr().out
    assert asked(host, "--apt-index", str(index), "--newer-than", "5.15.0-69-generic", "-o", "json") == NOT_COVERED
    assert len(json.loads(capsys.readouterr().out)["kernels"]) == 2


def test_a_file_of_kernels_is_a_source_too(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels"
    file.write_text(f"# next week\n{K} amd64\n")
    assert asked(host, "--kernel-list", str(file)) == 0
    assert "1/1 covered" in capsys.readouterr().out


def test_a_driver_toolkit_names_its_kernel(host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "driver-toolkit-release.json"
    file.write_text(json.dumps({"KERNEL_VERSION": "5.14.0-427.40.1.el9_4.x86_64", "RHEL_VERSION": "9.4"}))
    assert asked(host, "--toolkit-release", str(file)) == NOT_COVERED
    assert "535-5.14.0-427.40.1.el9_4.x86_64-rhel9.4" in capsys.readouterr().out


def test_the_kernel_with_large_pages_is_asked_for_too_where_nodes_run_it(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "driver-toolkit-release.json"
    file.write_text(json.dumps({"KERNEL_VERSION": "5.14.0-427.40.1.el9_4.aarch64", "RHEL_VERSION": "9.4"}))
    assert asked(host, "--toolkit-release", str(file), "--large-pages") == NOT_COVERED
    told = capsys.readouterr().out
    assert "rhel9.4 arm64: gate closed" in told
    assert "rhel9.4 arm64 64k: gate closed" in told
    assert "0/2 covered" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--kernels", K, "--os", "ubuntu22.04"], "give the driver's --version, or --cluster"),
        (["--version", "535"], "give kernels by --kernels, --kernel-list, --apt-index or"),
        (["--kernels", K, "--version", "535"], "--apt-index need --os"),
        (["--kernels", "latest", "--os", "ubuntu22.04", "--version", "535"], "write what uname -r says"),
        (
            ["--kernels", K, "--os", "ubuntu22.04", "--version", "535", "--announce"],
            "--announce writes into the cluster: add --cluster",
        ),
    ],
)
def test_what_cannot_be_asked_is_told_in_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["driver", "coverage", *arguments]) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_an_archive_without_the_flavour_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "Packages"
    index.write_text(f"Package: linux-image-{K}\n")
    assert asked("r.local", "--apt-index", str(index), "--flavour", "aws") == 1
    assert "no kernel of flavour 'aws'; try another --flavour" in capsys.readouterr().err


def test_nothing_known_to_come_blocks_no_reboot_unless_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "kernels"
    empty.write_text("# none yet\n")
    assert asked("r.local", "--kernel-list", str(empty)) == 0
    told = capsys.readouterr()
    assert told.out == "No next kernel is known.\n"
    assert told.err.count("\n") == 1
    for fact in ("warning: ", "the next kernel is unknown", "its driver image was not checked"):
        assert fact in told.err
    assert asked("r.local", "--kernel-list", str(empty), "--fail-if-unknown") == NOT_KNOWN == 4


def test_a_kernel_that_is_known_needs_no_warning(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(host, "--kernels", K, "--fail-if-unknown") == 0
    assert asked(host, "--kernels", K1, "--fail-if-unknown") == NOT_COVERED
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", ["--kernel-list", "--apt-index", "--toolkit-release"])
def test_a_file_that_cannot_be_read_is_named(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_bytes(b"5.15\xff")
    assert asked("r.local", option, str(tmp_path / "x")) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'x'}: ")


@pytest.fixture
async def cluster(host: str) -> Client:
    """A cluster with two nodes of one system and a policy for the registry's image."""
    clock = SystemClock()
    admin = UserInfo(name="admin", groups=("system:masters", "system:authenticated"))
    client = Client(InProcessTransport(ApiServer(clock), admin), field_manager="test", clock=clock)
    for each in install_manifests():
        if each["kind"] == "CustomResourceDefinition":
            await client.create(CRDS.as_dicts(), each)
    await client.create(NAMESPACES.as_dicts(), {"metadata": {"name": NAMESPACE}})
    for name in ("a", "b"):
        await client.create(
            NODES.as_dicts(), {"metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true"}}}
        )
        info = {"kernelVersion": K, "osImage": "Ubuntu 22.04.4 LTS", "architecture": "amd64"}
        await client.merge_patch(NODES, name, {"status": {"nodeInfo": info}}, subresource="status")
    driver: dict[str, Any] = {
        "usePrecompiled": True,
        "repository": f"{host}/nvidia",
        "image": "driver",
        "version": "535",
    }
    policy = {"metadata": {"name": "cluster-policy"}, "spec": {"driver": driver}}
    await client.create(CLUSTER_POLICIES, policy)
    return client


PLAIN = Access(plain=("*",))
NEXT = NextKernel(os_id="ubuntu", os_version="22.04", kernel=K1)


async def test_a_cluster_s_policy_says_which_image_is_wanted(cluster: Client) -> None:
    report = await report_for_cluster(cluster, PLAIN, [NEXT])
    assert report.summary == "0/1 covered"
    assert report.rows[0].policy == "ClusterPolicy/cluster-policy"
    assert report.gates == {"ubuntu22.04 amd64": False}


async def test_what_the_cluster_lists_counts_too(cluster: Client) -> None:
    data = {"ubuntu22.04": f"{K}\n", "rocky9.4": "5.14.0-427.40.1.el9_4.x86_64\n"}
    await cluster.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": CONFIG_MAP}, "data": data}, NAMESPACE)
    report = await report_for_cluster(cluster, PLAIN, [])
    assert report.gates == {"ubuntu22.04 amd64": True, "rocky9.4 amd64": False}  # its nodes may be scaled to zero
    assert report.complete


async def test_nodes_for_which_no_kernel_is_listed_are_told_of(cluster: Client) -> None:
    report = await report_for_cluster(cluster, PLAIN, [])
    assert (report.open, report.complete, report.unknown) == (True, False, ("ubuntu22.04 amd64",))
    assert list(report_table(report)) == [
        "ubuntu22.04 amd64: next kernel unknown",
        "No next kernel is known.",
    ]
    assert "the next kernel of ubuntu22.04 amd64 is unknown" in describe_unknown(report, cluster=True)
    assert "ConfigMap tessera-system/driver-next-kernels" in describe_unknown(report, cluster=True)
    assert report_document(report)["unknown"] == ("ubuntu22.04 amd64",)


async def test_a_line_of_the_list_that_is_none_is_not_knowing(cluster: Client) -> None:
    data = {"ubuntu22.04": f"{K}\nlatest\n"}
    await cluster.create(CONFIGMAPS.as_dicts(), {"metadata": {"name": CONFIG_MAP}, "data": data}, NAMESPACE)
    report = await report_for_cluster(cluster, PLAIN, [])
    assert (report.open, report.complete) == (True, False)
    assert describe_unknown(report, cluster=True).startswith("warning: some lines of the lists cannot be read")


async def test_in_a_lab_it_is_said_that_its_registries_are_elsewhere(
    cluster: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    await report_for_cluster(cluster, PLAIN, [NEXT])
    assert capsys.readouterr().err == ""
    info = {"containerRuntimeVersion": "simulated://1.0"}
    await cluster.merge_patch(NODES, "a", {"status": {"nodeInfo": info}}, subresource="status")
    await report_for_cluster(cluster, PLAIN, [NEXT])
    assert capsys.readouterr().err.startswith("note: this cluster is a lab. Its registries are simulated")


async def test_announced_kernels_stand_in_the_list_once_and_remarks_stay(cluster: Client) -> None:
    await announce_kernels(cluster, [NEXT])
    held = await cluster.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)
    assert held.data == {"ubuntu22.04": f"{K1}\n"}
    await cluster.merge_patch(CONFIGMAPS, CONFIG_MAP, {"data": {"ubuntu22.04": f"# ours\n{K1}"}}, NAMESPACE)
    arm = NextKernel(os_id="ubuntu", os_version="22.04", kernel=K1, architecture="arm64")
    await report_for_cluster(cluster, PLAIN, [NEXT, arm], announce=True)
    held = await cluster.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)
    assert held.data == {"ubuntu22.04": f"# ours\n{K1}\n{K1} arm64\n"}
