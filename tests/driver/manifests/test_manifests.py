"""DaemonSets and pods for drivers: what NVIDIA's images expect, names that hold for any kernel, and no waiting."""

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera.api.nodes.node_marks import DRIVER_SET_LABEL, DriverStrategy
from tessera.driver.driver_sets import DriverSet, PoolKey, make_set, set_of
from tessera.driver.manifests.configs import DriverConfigError, needed_config_maps
from tessera.driver.manifests.driver import driver_daemonset
from tessera.driver.manifests.host import validation_pod
from tessera.driver.manifests.toolkit import CONTAINERD, CRIO, runtime_class, toolkit_daemonset
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource, OperandSettings
from tessera.kube.resources.meta import ObjectMeta

UBUNTU = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
RHCOS = PoolKey(
    os_id="rhcos",
    os_version="4.15",
    kernel="5.14.0-284.54.1.el9_2.aarch64+64k",
    architecture="arm64",
    page_kib=64,
    ostree="415.92.202402130021-0",
)
SOURCE = ImageSource(repository="nvcr.io/nvidia", image="driver", version="525.125.06", pull_secrets=("pull",))
MANAGER = OperandSettings(
    source=ImageSource(repository="nvcr.io/nvidia/cloud-native", image="k8s-driver-manager", version="v1")
)
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def policy(**fields: Any) -> DriverPolicy:
    return DriverPolicy(**{"kind": "ClusterPolicy", "name": "p", "source": SOURCE, "manager": MANAGER, **fields})


def made(
    of: DriverPolicy, pool: PoolKey = UBUNTU, strategy: DriverStrategy = DriverStrategy.PRECOMPILED, toolkit: str = ""
) -> DriverSet:
    return make_set(of, pool, strategy, "nvcr.io/nvidia/driver@sha256:" + "a" * 64, toolkit=toolkit)


def daemonset(
    pool: PoolKey = UBUNTU, strategy: DriverStrategy = DriverStrategy.PRECOMPILED, toolkit: str = "", **fields: Any
) -> dict[str, Any]:
    of = policy(**fields)
    keys = dict.fromkeys(of.config_maps.values(), ("one", "two"))
    return driver_daemonset(of, made(of, pool, strategy, toolkit), keys)


def pod(of: dict[str, Any]) -> dict[str, Any]:
    return of["spec"]["template"]["spec"]  # type: ignore[no-any-return]


def container(of: dict[str, Any], name: str) -> dict[str, Any]:
    spec = pod(of)
    found: list[dict[str, Any]] = [*spec.get("initContainers", ()), *spec["containers"]]
    return next(each for each in found if each["name"] == name)


def env(of: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in of["env"] if "value" in each}


@pytest.mark.parametrize("pool", [UBUNTU, RHCOS, msgspec.structs.replace(UBUNTU, kernel="6.1.0-" + "x" * 90 + "_A+~")])
def test_names_and_labels_are_valid_for_any_kernel(pool: PoolKey) -> None:
    found = daemonset(pool)
    assert NAME.fullmatch(found["metadata"]["name"])
    for labels in (found["metadata"]["labels"], found["spec"]["template"]["metadata"]["labels"]):
        assert all(LABEL.fullmatch(value) for value in labels.values())


def test_what_a_daemonset_is_for_is_read_back_from_it() -> None:
    of = policy()
    written = driver_daemonset(of, made(of, RHCOS), {})["metadata"]
    meta = ObjectMeta(name=written["name"], labels=written["labels"], annotations=written["annotations"])
    assert set_of(meta) == made(of, RHCOS)


def test_an_object_that_only_looks_like_one_of_ours_is_none() -> None:
    of = policy()
    written = driver_daemonset(of, made(of), {})["metadata"]
    changes: list[dict[str, Any]] = [
        {"labels": {}},
        {"name": "another"},
        {"annotations": {"tessera.dev/driver-set": "{}"}},
    ]
    for wrong in changes:
        fields = {key: written[key] for key in ("name", "labels", "annotations")} | wrong
        assert set_of(ObjectMeta(**fields)) is None


def test_pods_go_where_the_label_is_whatever_the_nodes_taints_and_without_a_network_for_pods() -> None:
    found = daemonset()
    spec = pod(found)
    assert spec["nodeSelector"] == {DRIVER_SET_LABEL: found["metadata"]["name"].removeprefix("tessera-driver-")}
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["hostNetwork"] is True
    assert "hostNetwork" not in pod(daemonset(host_network=False))
    assert found["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_driver_container_is_what_nvidias_image_expects() -> None:
    driver = container(daemonset(), "nvidia-driver-ctr")
    assert (driver["command"], driver["args"]) == (["nvidia-driver"], ["init"])
    assert driver["securityContext"]["privileged"]
    assert env(driver)["NVIDIA_VISIBLE_DEVICES"] == "void"
    mounts = {each["mountPath"]: each for each in driver["volumeMounts"]}
    assert mounts["/run/nvidia"]["mountPropagation"] == "Bidirectional"
    assert {"/host-etc/os-release", "/lib/firmware", "/sys/module/firmware_class/parameters/path"} <= set(mounts)


@pytest.mark.parametrize("pool", [UBUNTU, RHCOS])
@pytest.mark.parametrize("strategy", [DriverStrategy.PRECOMPILED, DriverStrategy.BUILT])
def test_every_mount_has_its_volume_and_every_volume_a_mount(pool: PoolKey, strategy: DriverStrategy) -> None:
    maps = {"repoConfig": "repos", "certConfig": "certs", "kernelModuleConfig": "modules"}
    spec = pod(daemonset(pool, strategy, rdma=True, config_maps=maps))
    mounted = {each["name"] for one in [*spec["initContainers"], *spec["containers"]] for each in one["volumeMounts"]}
    assert mounted == {each["name"] for each in spec["volumes"]}


def test_the_startup_probe_looks_each_second_from_the_first_on_and_writes_the_marker() -> None:
    probe = container(daemonset(), "nvidia-driver-ctr")["startupProbe"]
    assert (probe["initialDelaySeconds"], probe["periodSeconds"]) == (0, 1)
    assert ".driver-ctr-ready" in probe["exec"]["command"][-1]


def probe_script(root: Path) -> str:
    """The probe's script, with the host's and the container's folders below one."""
    script: str = container(daemonset(), "nvidia-driver-ctr")["startupProbe"]["exec"]["command"][-1]
    for folder in ("/run/nvidia", "/sys/module", "/.tessera-run"):
        script = script.replace(folder, f"{root}{folder}")
    return script


def test_the_marker_says_that_this_run_of_the_container_has_come_to_its_end(tmp_path: Path) -> None:
    tools, module, driver = tmp_path / "bin", tmp_path / "sys/module/nvidia", tmp_path / "run/nvidia/driver"
    for folder in (tools, module, driver):
        folder.mkdir(parents=True)
    (tools / "nvidia-smi").write_text("#!/bin/sh\n")
    (tools / "nvidia-smi").chmod(0o755)
    marker = tmp_path / "run/nvidia/validations/.driver-ctr-ready"

    def look() -> tuple[int, str]:
        path = {"PATH": f"{tools}:/usr/bin:/bin"}
        done = subprocess.run(["sh", "-c", probe_script(tmp_path)], env=path, capture_output=True, text=True)
        return done.returncode, done.stdout

    assert look() == (1, "kernel module nvidia is not loaded\n")
    (module / "refcnt").write_text("1")
    marker.write_text("of an earlier run")
    code, words = look()
    assert code == 1
    assert "not at" in words
    assert not marker.exists()
    mounted = Path(f"{driver}{tmp_path}/.tessera-run")
    mounted.parent.mkdir(parents=True)
    mounted.write_text("another run's")
    assert look()[0] == 1
    mounted.write_text((tmp_path / ".tessera-run").read_text())
    assert look() == (0, "")
    assert marker.read_text().startswith("GDRCOPY_ENABLED: false")


def test_a_written_probe_says_how_long_a_driver_may_take_and_nobody_looks_later_for_it() -> None:
    upstreams = {"initialDelaySeconds": 60, "periodSeconds": 10, "failureThreshold": 120, "timeoutSeconds": 90}
    probe = container(daemonset(startup_probe=upstreams), "nvidia-driver-ctr")["startupProbe"]
    assert (probe["initialDelaySeconds"], probe["periodSeconds"]) == (0, 1)
    assert (probe["failureThreshold"], probe["timeoutSeconds"]) == (1260, 90)


def test_the_marker_goes_before_the_driver_does() -> None:
    stop = container(daemonset(), "nvidia-driver-ctr")["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "rm -f /run/nvidia/validations/.driver-ctr-ready" in stop


def test_on_rhcos_the_driver_toolkit_builds_beside_the_driver() -> None:
    found = daemonset(RHCOS, DriverStrategy.BUILT, toolkit="registry/driver-toolkit:415")
    assert container(found, "nvidia-driver-ctr")["command"] == ["ocp_dtk_entrypoint"]
    assert container(found, "openshift-driver-toolkit-ctr")["image"] == "registry/driver-toolkit:415"
    assert "RHCOS_IMAGE_MISSING" not in env(container(found, "nvidia-driver-ctr"))
    assert found["metadata"]["labels"]["nvidia.com/precompiled"] == "false"


def test_without_a_driver_toolkit_for_this_rhcos_the_drivers_own_image_builds() -> None:
    found = daemonset(RHCOS, DriverStrategy.BUILT)
    assert container(found, "openshift-driver-toolkit-ctr")["image"].startswith("nvcr.io/nvidia/driver@")
    assert env(container(found, "nvidia-driver-ctr"))["RHCOS_IMAGE_MISSING"] == "true"


def test_a_precompiled_driver_on_rhcos_needs_no_toolkit() -> None:
    found = daemonset(RHCOS)
    assert [each["name"] for each in pod(found)["containers"]] == ["nvidia-driver-ctr"]
    assert found["metadata"]["labels"]["nvidia.com/precompiled"] == "true"


def test_the_driver_manager_evicts_nobody() -> None:
    manager = container(daemonset(), "k8s-driver-manager")
    assert manager["image"] == "nvcr.io/nvidia/cloud-native/k8s-driver-manager:v1"
    assert env(manager)["ENABLE_GPU_POD_EVICTION"] == "false"
    assert env(manager)["ENABLE_AUTO_DRAIN"] == "false"
    assert "initContainers" not in pod(daemonset(manager=OperandSettings(enabled=False)))


def test_a_policys_variables_stand_but_do_not_say_which_node_it_is() -> None:
    written = ({"name": "KERNEL_MODULE_TYPE", "value": "open"}, {"name": "NODE_NAME", "value": "other"})
    driver = container(daemonset(env=written), "nvidia-driver-ctr")
    names = [each["name"] for each in driver["env"]]
    assert len(names) == len(set(names))
    assert env(driver)["KERNEL_MODULE_TYPE"] == "open"
    assert "NODE_NAME" not in env(driver)


def test_each_key_of_a_config_map_is_a_file_of_its_own() -> None:
    found = daemonset(strategy=DriverStrategy.BUILT, config_maps={"repoConfig": "repos"})
    mounts = container(found, "nvidia-driver-ctr")["volumeMounts"]
    assert [each["mountPath"] for each in mounts if each["name"] == "repos"] == [
        "/etc/apt/sources.list.d/one",
        "/etc/apt/sources.list.d/two",
    ]


def test_a_config_map_that_is_not_there_is_named() -> None:
    of = policy(config_maps={"kernelModuleConfig": "modules"})
    assert needed_config_maps(of, made(of)) == ["modules"]
    with pytest.raises(DriverConfigError, match="ConfigMap 'modules' is not in Tessera's namespace"):
        driver_daemonset(of, made(of), {})


@pytest.mark.parametrize(("runtime", "socket"), [(CONTAINERD, True), (CRIO, False)])
def test_the_toolkit_waits_for_the_driver_and_configures_the_nodes_runtime(runtime: Any, socket: bool) -> None:
    found = toolkit_daemonset(policy(toolkit=OperandSettings(source=SOURCE)), "tessera:1", runtime)
    assert container(found, "wait-for-driver")["command"] == ["tessera", "wait-for", ".driver-ctr-ready"]
    toolkit = container(found, "nvidia-container-toolkit-ctr")
    assert env(toolkit)["RUNTIME"] == runtime.name
    assert ("RUNTIME_SOCKET" in env(toolkit)) is socket
    assert toolkit["readinessProbe"]["periodSeconds"] == 1
    assert runtime.drop_in.rpartition("/")[2] in toolkit["readinessProbe"]["exec"]["command"][-1]
    assert runtime_class()["handler"] == "nvidia"


def test_pods_get_the_drivers_libraries_for_what_was_allocated_and_nothing_for_what_a_variable_says() -> None:
    """NVIDIA's runtime serves every pod, and finds its devices by mounts that only the agent makes."""
    toolkit = container(
        toolkit_daemonset(policy(toolkit=OperandSettings(source=SOURCE)), "tessera:1", CONTAINERD),
        "nvidia-container-toolkit-ctr",
    )
    expected = {
        "NVIDIA_RUNTIME_SET_AS_DEFAULT": "true",
        "NVIDIA_CONTAINER_RUNTIME_MODE": "auto",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS": "true",
        "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "false",
    }
    assert {name: env(toolkit).get(name) for name in expected} == expected


def test_a_validation_runs_on_one_node_through_its_runtime_and_asks_for_no_card() -> None:
    found = validation_pod("tessera:1", node="n1", node_uid="u1", driver_set="abc")
    assert found["spec"]["nodeName"] == "n1"
    assert [each["uid"] for each in found["metadata"]["ownerReferences"]] == ["u1"]
    assert found["spec"]["runtimeClassName"] == "nvidia"
    (one,) = found["spec"]["containers"]
    assert "resources" not in one
    assert one["command"] == ["tessera", "validate"]
