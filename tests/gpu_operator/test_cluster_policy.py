"""A ClusterPolicy as it stands in a cluster: what it says about drivers, what has no effect, what is wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.documents import load_document
from tessera.api.problems import FileRefused
from tessera.driver.driver_sets import PoolKey
from tessera.driver.images import ImageKind, ImageQuery, candidates
from tessera.gpu_operator.driver_policy import (
    DrainSettings,
    ImageSource,
    PodDeletionSettings,
    UpgradePolicy,
    WaitForCompletion,
)
from tessera.gpu_operator.field_reader import ReadPolicy
from tessera.gpu_operator.keys import POLICY, Leaf
from tessera.gpu_operator.policy_objects import asks_for_drivers, find_other_manager, read_cluster_policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "drivers" / "cluster-policy.yaml"


def obj(spec: Any, **metadata: Any) -> dict[str, Any]:
    metadata = {"name": "cluster-policy", "uid": "u1", "creationTimestamp": "2026-01-02T03:04:05Z", **metadata}
    return {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": metadata, "spec": spec}


def read(text: str, **metadata: Any) -> ReadPolicy:
    return read_cluster_policy(obj(load_document(text), **metadata))


def driver(text: str, **metadata: Any) -> ReadPolicy:
    """A policy whose driver has an image, and more."""
    named = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580.65.06"}
    return read_cluster_policy(obj({"driver": {**named, **load_document(text)}}, **metadata))


def notes(found: ReadPolicy) -> Mapping[str, str]:
    return {each.path: each.text for each in found.notices}


def problems(spec: Any, **metadata: Any) -> list[str]:
    with pytest.raises(FileRefused) as refused:
        read_cluster_policy(obj(spec, **metadata))
    return list(map(str, refused.value.problems))


def test_the_articles_snippet_works_as_written() -> None:
    policy = read_cluster_policy(load_document(EXAMPLE.read_text())).policy
    assert policy.enabled
    assert policy.use_precompiled
    assert policy.source == ImageSource(repository="quay.io/vemporop", image="nvidia-gpu-driver", version="525.125.06")
    assert policy.toolkit.source.image == "container-toolkit"


def test_an_object_knows_whose_policy_it_is() -> None:
    policy = read("{}").policy
    assert (policy.kind, policy.name, policy.uid, policy.created) == (
        "ClusterPolicy",
        "cluster-policy",
        "u1",
        "2026-01-02T03:04:05Z",
    )


def test_every_field_about_drivers_counts() -> None:
    found = read("""
      driver:
        enabled: true
        usePrecompiled: true
        kernelModuleType: open
        repository: registry.local:5000/gpu
        image: driver
        version: "580"
        imagePullPolicy: Always
        imagePullSecrets: [pull-a, pull-b]
        startupProbe: {initialDelaySeconds: 5, periodSeconds: 2, timeoutSeconds: 30, failureThreshold: 600}
        rdma: {enabled: true, useHostMofed: true}
        upgradePolicy:
          autoUpgrade: true
          maxParallelUpgrades: 4
          maxUnavailable: 2
          waitForCompletion: {podSelector: app=train, timeoutSeconds: 60}
          podDeletion: {force: true, timeoutSeconds: 30, deleteEmptyDir: true}
          drain: {enable: true, force: true, podSelector: a=b, timeoutSeconds: 90, deleteEmptyDir: true}
        manager: {repository: r.io/m, image: manager, version: v1, env: [{name: ENABLE_AUTO_DRAIN, value: "true"}]}
        env: [{name: A, value: b}, {name: C, valueFrom: {secretKeyRef: {name: s, key: k}}}]
        args: [init]
        resources: {limits: {memory: 2Gi}, requests: {cpu: 1}}
        hostNetwork: false
        secretEnv: secrets
        repoConfig: {configMapName: repos}
        certConfig: {name: certs}
        licensingConfig: {secretName: licence}
        virtualTopology: {config: topology}
        kernelModuleConfig: {name: modules}
      toolkit: {enabled: true, repository: r.io, image: toolkit, version: v2, installDir: /opt/nvidia,
                env: [{name: CONTAINERD_CONFIG, value: /etc/c.toml}]}
      daemonsets:
        labels: {a: b}
        annotations: {c: d}
        tolerations: [{key: gpu, operator: Exists}]
        priorityClassName: high
      hostPaths: {driverInstallDir: /srv/driver/}
    """)
    policy = found.policy
    assert policy.use_precompiled
    assert policy.kernel_module_type == "open"
    assert policy.source == ImageSource(
        repository="registry.local:5000/gpu",
        image="driver",
        version="580",
        pull_policy="Always",
        pull_secrets=("pull-a", "pull-b"),
    )
    assert policy.startup_probe == {
        "initialDelaySeconds": 5,
        "periodSeconds": 2,
        "timeoutSeconds": 30,
        "failureThreshold": 600,
    }
    assert (policy.rdma, policy.rdma_host_mofed) == (True, True)
    assert policy.upgrade == UpgradePolicy(
        auto_upgrade=True,
        max_parallel=4,
        max_unavailable=2,
        wait_for_completion=WaitForCompletion(pod_selector="app=train", timeout_seconds=60),
        pod_deletion=PodDeletionSettings(force=True, timeout_seconds=30, delete_empty_dir=True),
        drain=DrainSettings(enable=True, force=True, pod_selector="a=b", timeout_seconds=90, delete_empty_dir=True),
    )
    assert policy.manager.source == ImageSource(repository="r.io/m", image="manager", version="v1")
    assert policy.manager.env == {"ENABLE_AUTO_DRAIN": "true"}
    assert [each["name"] for each in policy.env] == ["A", "C"]
    assert policy.env[1]["valueFrom"] == {"secretKeyRef": {"name": "s", "key": "k"}}
    assert policy.args == ("init",)
    assert policy.resources == {"limits": {"memory": "2Gi"}, "requests": {"cpu": 1}}
    assert policy.host_network is False
    assert policy.secret_env == "secrets"
    assert policy.config_maps == {
        "repoConfig": "repos",
        "certConfig": "certs",
        "virtualTopology": "topology",
        "kernelModuleConfig": "modules",
    }
    assert policy.licensing_secret == "licence"
    assert policy.toolkit.source == ImageSource(repository="r.io", image="toolkit", version="v2")
    assert (policy.toolkit.install_dir, policy.toolkit.env) == ("/opt/nvidia", {"CONTAINERD_CONFIG": "/etc/c.toml"})
    assert (policy.labels, policy.annotations) == ({"a": "b"}, {"c": "d"})
    assert policy.tolerations == ({"key": "gpu", "operator": "Exists"},)
    assert policy.priority_class == "high"
    assert policy.driver_root == "/srv/driver"
    assert found.notices == ()


def test_what_upstream_does_not_have_stands_in_annotations() -> None:
    policy = driver(
        "{}",
        annotations={
            "tessera.dev/driver-canary": "2",
            "tessera.dev/driver-failure-budget": "3",
            "tessera.dev/driver-mirrors": "mirror.local/nvidia, registry.local:5000/gpu",
            "tessera.dev/driver-build-repository": "registry.local:5000/built",
            "tessera.dev/driver-build-secret": "push",
        },
    ).policy
    assert (policy.upgrade.canary, policy.upgrade.failure_budget) == (2, 3)
    assert policy.mirrors == ("mirror.local/nvidia", "registry.local:5000/gpu")
    assert (policy.build_repository, policy.build_secret) == ("registry.local:5000/built", "push")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("driver-canary", "-1", "must be a whole number of 0 or more"),
        ("driver-failure-budget", "0", "must be a whole number of 1 or more"),
        ("driver-mirrors", "https://mirror.local/nvidia", "write it without https://"),
        (
            "driver-mirrors",
            ",".join(f"r{n}.local" for n in range(9)),
            "names 9 repositories; at most 8",
        ),
        ("driver-build-repository", "Registry.Local/Built", "is no repository"),
        ("driver-build-secret", "a b", "is no name of an object"),
    ],
)
def test_a_wrong_annotation_is_refused_with_its_name(name: str, value: str, words: str) -> None:
    (found,) = problems({"driver": {"enabled": True}}, annotations={f"tessera.dev/{name}": value})
    assert found.startswith(f'metadata.annotations["tessera.dev/{name}"]: ')
    assert words in found


def test_drivers_are_enabled_unless_they_are_not_as_upstream_has_it() -> None:
    assert read("{}").policy.enabled
    assert read("driver: {}").policy.enabled
    off = read("driver: {enabled: false, version: half, repository: ''}")
    assert not off.policy.enabled
    assert off.notices == ()


def test_an_object_that_names_no_image_gets_the_charts_and_says_so() -> None:
    found = read("driver: {usePrecompiled: true}")
    assert found.policy.source == ImageSource(repository="nvcr.io/nvidia", image="driver", version="595.91.07")
    assert "595.91.07 is taken, as in NVIDIA's chart" in notes(found)["spec.driver.image"]


DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("nvcr.io/nvidia/driver:525.85.03", "nvcr.io/nvidia/driver:525.85.03-ubuntu22.04"),
        ("registry.local:5000/gpu/driver:580", "registry.local:5000/gpu/driver:580-ubuntu22.04"),
        ("driver:580", "docker.io/library/driver:580-ubuntu22.04"),
        (f"nvcr.io/nvidia/driver@{DIGEST}", f"nvcr.io/nvidia/driver@{DIGEST}"),
        (f"nvcr.io/nvidia/driver:580@{DIGEST}", f"nvcr.io/nvidia/driver:580@{DIGEST}"),
        ("registry.local:5000/gpu/driver", "registry.local:5000/gpu/driver"),
    ],
)
def test_a_reference_with_a_tag_is_completed_with_the_operating_system(image: str, wanted: str) -> None:
    source = read(f"driver: {{image: '{image}'}}").policy.source
    ubuntu = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
    first, *_ = candidates(ImageQuery(source=source, pool=ubuntu, kind=ImageKind.BUILDER))
    assert first.reference == wanted


def test_a_reference_that_names_the_operating_system_is_found_as_it_is_too() -> None:
    image = "registry.local:5000/gpu/driver:580.65.06-ubuntu22.04"
    source = read(f"driver: {{image: '{image}'}}").policy.source
    ubuntu = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
    found = candidates(ImageQuery(source=source, pool=ubuntu, kind=ImageKind.BUILDER))
    assert [each.reference for each in found] == [f"{image}-ubuntu22.04", image]


def test_precompiled_images_of_one_reference_have_the_kernel_in_their_tag() -> None:
    source = read("driver: {usePrecompiled: true, image: 'nvcr.io/nvidia/driver:525'}").policy.source
    ubuntu = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
    first, *_ = candidates(ImageQuery(source=source, pool=ubuntu, kind=ImageKind.PRECOMPILED))
    assert first.reference == "nvcr.io/nvidia/driver:525-5.15.0-69-generic-ubuntu22.04"


@pytest.mark.parametrize("image", [f"nvcr.io/nvidia/driver@{DIGEST}", f"nvcr.io/nvidia/driver:525@{DIGEST}"])
def test_a_digest_in_a_reference_is_none_of_precompiled_images(image: str) -> None:
    (found,) = problems({"driver": {"image": image, "usePrecompiled": True}})
    for fact in ("spec.driver.image: ", "has a digest", "which is one image", "usePrecompiled needs one for"):
        assert fact in found


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"version": "580"}, ["repository", "image"]),
        ({"repository": "nvcr.io/nvidia"}, ["image", "version"]),
        ({"repository": "nvcr.io/nvidia", "image": "driver"}, ["version"]),
        ({"image": "driver", "version": "580"}, ["repository"]),
    ],
)
def test_repository_image_and_version_belong_together(fields: dict[str, str], missing: list[str]) -> None:
    found = problems({"driver": fields})
    assert [each.partition(":")[0] for each in found] == [f"spec.driver.{key}" for key in missing]
    assert all("belong together" in each for each in found)


@pytest.mark.parametrize(("written", "meant"), [("525", "525"), ("'525.60'", "525.60"), ("525.125.06", "525.125.06")])
def test_a_branch_may_be_a_number_and_a_version_is_text(written: str, meant: str) -> None:
    assert driver(f"version: {written}").policy.source.version == meant


def test_a_number_with_a_point_has_lost_its_zeros() -> None:
    named = {"repository": "r.io", "image": "driver", "version": 525.60}
    (found,) = problems({"driver": named})
    for fact in (
        "spec.driver.version: ",
        "must be text",
        "not the number 525.6",
        "zeros are lost",
        "put it in quotes",
    ):
        assert fact in found


def test_a_digest_is_a_version_but_none_of_precompiled_images() -> None:
    digest = "sha256:" + "a" * 64
    assert driver(f"version: '{digest}'").policy.source.version == digest
    named = {"repository": "r.io", "image": "driver", "version": digest}
    (found,) = problems({"driver": {**named, "usePrecompiled": True}})
    assert found.startswith("spec.driver.version: is a digest")


@pytest.mark.parametrize("part", ["gds", "gdrcopy"])
def test_precompiled_images_have_no_modules_of_other_features(part: str) -> None:
    (found,) = problems({"driver": {"usePrecompiled": True}, part: {"enabled": True}})
    assert found.startswith(f"spec.driver.usePrecompiled: cannot be true together with {part}")
    told = notes(read_cluster_policy(obj({"driver": {}, part: {"enabled": True}})))
    assert told[f"spec.{part}"].startswith("no effect: ")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"enabled": "true"}, 'spec.driver.enabled: must be true or false, not "true"'),
        ({"usePrecompiled": "yes"}, "spec.driver.usePrecompiled: must be true or false"),
        ({"kernelModuleType": "opne"}, "did you mean open?"),
        ({"imagePullPolicy": "always"}, "must be IfNotPresent, Always or Never"),
        ({"imagePullSecrets": [{"name": "a"}]}, 'imagePullSecrets[0]: {"name": "a"} is no name of an object'),
        ({"startupProbe": {"periodSeconds": 0}}, "startupProbe.periodSeconds: must be 1 or more, not 0"),
        ({"startupProbe": {"successThreshold": 2}}, "must be 1"),
        ({"upgradePolicy": {"maxUnavailable": "a few"}}, "must be a number of nodes such as 2"),
        ({"upgradePolicy": {"maxUnavailable": "101%"}}, "must be a number of nodes such as 2"),
        ({"upgradePolicy": {"waitForCompletion": {"podSelector": "app in"}}}, "waitForCompletion.podSelector: "),
        ({"upgradePolicy": {"maxParallelUpgrades": -1}}, "must be 0 or more, not -1"),
        ({"upgradePolicy": {"drain": {"timeoutSeconds": 10**20}}}, "must be less than 2147483648"),
        ({"env": [{"name": "A=B"}]}, "is no name of an environment variable"),
        ({"args": "init"}, "spec.driver.args: must be a list"),
        ({"resources": {"limits": {"memory": "much"}}}, "is no amount; write one such as 500m or 2Gi"),
        ({"secretEnv": "My Secret"}, "is no name of an object"),
        ({"repository": "https://nvcr.io", "image": "i", "version": "v"}, "write it without https://"),
        ({"repository": "r.io", "image": "Driver", "version": "v"}, "is no image of an image"),
        ({"repository": "r.io", "image": "driver", "version": "a b"}, "is part of no tag"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_refused_with_its_path(fields: dict[str, Any], words: str) -> None:
    (found,) = problems({"driver": fields})
    assert words in found


def test_a_number_in_the_environment_is_refused_with_the_right_form() -> None:
    (found,) = problems({"driver": {"env": [{"name": "A", "value": 1}]}})
    for fact in ("spec.driver.env[0].value: ", "must be text, not 1", "put it in quotes"):
        assert fact in found


def test_all_mistakes_are_told_at_once() -> None:
    spec = {"driver": {"enabled": 1, "kernelModuleType": "x"}, "hostPaths": {"driverInstallDir": "run"}}
    assert len(problems(spec)) == 3


def test_an_unknown_key_of_a_live_object_is_a_notice_with_what_was_meant() -> None:
    found = driver("{vresion: '580', upgradePolicy: {autoUpgrade: true, maxParalel: 2}}")
    assert notes(found)["spec.driver.vresion"].endswith("did you mean version?")
    assert "spec.driver.upgradePolicy.maxParalel" in notes(found)
    assert notes(read("dirver: {enabled: false}"))["spec.dirver"].endswith("did you mean driver?")


def test_a_mistake_about_something_else_is_a_notice() -> None:
    found = read("driver: {}\ndcgm: {enabled: 'no'}\nmigManager: {env: [{value: a}]}")
    assert 'must be true or false, not "no"' in notes(found)["spec.dcgm.enabled"]
    assert "spec.migManager.env[0].name" in notes(found)


def test_everything_else_that_asks_for_something_is_a_notice_with_the_reason() -> None:
    found = read("""
      driver:
        useOpenKernelModules: true
        livenessProbe: {periodSeconds: 5}
        nodeSelector: {a: b}
        upgradePolicy: {autoUpgrade: true, gpuPodDeletion: {force: true}}
      toolkit: {resources: {limits: {cpu: 1}}}
      daemonsets: {updateStrategy: OnDelete, podSecurityContext: {runAsUser: 1}}
      hostPaths: {rootFS: /host}
      dcgmExporter: {enabled: true}
      validator: {plugin: {env: []}, image: v}
      migManager: {config: {name: layouts}}
      devicePlugin: {enabled: false, config: {name: profiles}}
    """)
    assert {path.removeprefix("spec.") for path, text in notes(found).items() if text.startswith("no effect")} == {
        "driver.useOpenKernelModules",
        "driver.livenessProbe",
        "driver.nodeSelector",
        "driver.upgradePolicy.gpuPodDeletion",
        "toolkit.resources",
        "daemonsets.updateStrategy",
        "daemonsets.podSecurityContext",
        "hostPaths",
        "dcgmExporter",
        "validator",
        "migManager",
    }
    assert "tessera install --values" in notes(found)["spec.migManager"]


def test_without_automatic_upgrade_nothing_that_serves_is_replaced_as_upstream_has_it() -> None:
    found = driver("{}")
    assert not found.policy.upgrade.auto_upgrade
    assert "is not replaced" in notes(found)["spec.driver.upgradePolicy.autoUpgrade"]


@pytest.mark.parametrize(
    ("written", "window", "probe"),
    [
        ("{}", 0, {}),
        ("{initialDelaySeconds: 60, periodSeconds: 10, timeoutSeconds: 60, failureThreshold: 120}", 1260, (0, 1, 60)),
        ("{failureThreshold: 300}", 3000, (0, 1, 60)),
        ("{periodSeconds: 10, failureThreshold: 30, timeoutSeconds: 5}", 300, (0, 1, 5)),
        ("{initialDelaySeconds: 30, periodSeconds: 7, failureThreshold: 10}", 100, (30, 7, 60)),
    ],
)
def test_the_charts_waits_are_not_followed_but_the_time_to_start_stays(written: str, window: int, probe: Any) -> None:
    found = driver(f"startupProbe: {written}").policy.startup_probe
    if not probe:
        assert found == {}
        return
    assert tuple(found[key] for key in ("initialDelaySeconds", "periodSeconds", "timeoutSeconds")) == probe
    assert found["initialDelaySeconds"] + found["periodSeconds"] * found["failureThreshold"] >= window


def test_where_nvidia_driver_objects_say_what_is_installed_the_rest_of_driver_has_no_effect() -> None:
    found = read("driver: {useNvidiaDriverCRD: true, version: '580', upgradePolicy: {autoUpgrade: true}}")
    assert found.policy.use_driver_crd
    assert [path for path in notes(found) if path.startswith("spec.driver")] == ["spec.driver.version"]
    assert "NVIDIADriver objects" in notes(found)["spec.driver.version"]


def test_a_toolkit_that_is_off_is_the_hosts_and_its_image_is_not_judged() -> None:
    found = driver("{upgradePolicy: {autoUpgrade: true}}")
    assert found.policy.toolkit.enabled
    off = read("driver: {}\ntoolkit: {enabled: false, version: v1}")
    assert not off.policy.toolkit.enabled
    assert "spec.toolkit.image" not in notes(off)
    without = read("driver: {enabled: false}\ntoolkit: {enabled: true}")
    assert not without.policy.toolkit.enabled
    assert "driver.enabled is false" in notes(without)["spec.toolkit"]


@pytest.mark.parametrize("spec", ["text", [1], 5])
def test_a_spec_that_is_no_mapping_is_refused(spec: Any) -> None:
    assert problems(spec) == [
        f"spec: must be a mapping of keys to values, not {load_document(repr(spec))!r}".replace("'", '"')
    ]


def test_an_object_without_a_name_is_refused() -> None:
    with pytest.raises(FileRefused, match=r"metadata\.name: missing"):
        read_cluster_policy({"spec": {}})


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ("driver: {version: '580'}", True),
        ("driver: {repository: r}", True),
        ("driver: {image: i}", True),
        ("driver: {usePrecompiled: true}", True),
        ("driver: {usePrecompiled: false}", False),
        ("driver: {nvidiaDriverCRD: {enabled: true}}", True),
        ("driver: {useNvidiaDriverCRD: true}", True),
        ("driver: {enabled: true}", False),
        ("driver: {enabled: false, version: '580'}", False),
        ("driver: {env: [{name: A}]}", False),
        ("{}", False),
        ("driver: text", False),
    ],
)
def test_a_file_asks_for_drivers_by_naming_one(spec: str, asks: bool) -> None:
    assert asks_for_drivers(load_document(spec)) is asks


def test_a_policy_whose_status_another_operator_writes_is_left_to_it() -> None:
    entries = [{"manager": "gpu-operator", "operation": "Update", "subresource": "status"}]
    assert find_other_manager(obj({}, managedFields=entries)) == "gpu-operator"
    assert find_other_manager(obj({}, managedFields=[{"manager": "helm", "operation": "Update"}])) == ""
    for manager in ("tessera-controller", "kubectl-edit"):
        own = [{"manager": manager, "operation": "Update", "subresource": "status"}]
        assert find_other_manager(obj({}, managedFields=own)) == ""
    assert find_other_manager(obj({}, managedFields=entries, annotations={"tessera.dev/drivers": "managed"})) == ""
    assert find_other_manager(obj({})) == ""


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = [key for key in ("driver", "toolkit", "daemonsets", "hostPaths", "gds", "dcgm", "migManager") if key in POLICY]


@given(st.data())
def test_whatever_stands_in_an_object_it_is_read_or_refused_with_paths(data: st.DataObject) -> None:
    spec: dict[str, Any] = {}
    for part in data.draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=3)):
        shape = POLICY[part]
        names = [] if isinstance(shape, Leaf) else sorted(shape)
        spec[part] = data.draw(st.dictionaries(st.sampled_from(names), ANYTHING, max_size=4) | ANYTHING)
    try:
        read_cluster_policy(obj(spec))
    except FileRefused as refused:
        paths = [each.path for each in refused.problems]
    else:
        paths = []
    assert all(path.startswith(("spec", "metadata")) for path in paths)


def test_a_toolkit_that_obeys_the_environment_of_images_is_told_of() -> None:
    name = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
    for value, told in (("true", True), ("false", False)):
        found = read(f"driver: {{}}\ntoolkit: {{env: [{{name: {name}, value: '{value}'}}]}}")
        assert ("images and ConfigMaps" in notes(found).get(f"spec.toolkit.env.{name}", "")) is told


@pytest.mark.parametrize("value", ["etc/config.toml", "/etc/../config.toml", "/etc/containerd/", "config.toml", "~/c"])
@pytest.mark.parametrize("name", ["CONTAINERD_CONFIG", "RUNTIME_DROP_IN_CONFIG", "DOCKER_SOCKET", "NRI_SOCKET"])
def test_a_file_of_a_runtime_that_cannot_be_mounted_refuses_the_policy(name: str, value: str) -> None:
    found = problems({"driver": {}, "toolkit": {"env": [{"name": name, "value": value}]}})
    assert len(found) == 1
    assert f"spec.toolkit.env.{name}" in found[0]
    assert "must be an absolute path of a file on the host" in found[0]


def test_a_handler_other_than_the_runtime_class_names_is_told_of() -> None:
    found = read("driver: {}\ntoolkit: {env: [{name: CONTAINERD_RUNTIME_CLASS, value: mine}]}")
    assert "no effect" in notes(found)["spec.toolkit.env.CONTAINERD_RUNTIME_CLASS"]
    usual = read("driver: {}\ntoolkit: {env: [{name: CONTAINERD_RUNTIME_CLASS, value: nvidia}]}")
    assert "spec.toolkit.env.CONTAINERD_RUNTIME_CLASS" not in notes(usual)


def test_a_toolkit_that_is_a_plugin_of_the_runtime_is_told_what_it_does_not_bring() -> None:
    found = read("driver: {}\ncdi: {nriPluginEnabled: true}")
    assert found.policy.nri_plugin
    assert "libraries" in notes(found)["spec.cdi.nriPluginEnabled"]
    assert "spec.cdi" not in notes(found)
    assert not read("driver: {}\ncdi: {enabled: true}").policy.nri_plugin
