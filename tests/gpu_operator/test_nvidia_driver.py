"""An NVIDIADriver: a driver for a part of the nodes."""

from typing import Any

import pytest
from tests.support.refused_problems import refused_problems

from tessera.api.documents import load_document
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource, OperandSettings
from tessera.gpu_operator.field_reader import ReadPolicy
from tessera.gpu_operator.policy_objects import read_nvidia_driver

NAMED = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580"}


def read(text: str, cluster: DriverPolicy | None = None, **metadata: Any) -> ReadPolicy:
    spec = {**NAMED, "upgradePolicy": {"autoUpgrade": True}, **load_document(text)}
    return read_nvidia_driver({"metadata": {"name": "a", **metadata}, "spec": spec}, cluster)


def problems(text: str) -> list[str]:
    return refused_problems(read, text)


def test_every_field_counts() -> None:
    found = read("""
      driverType: gpu
      usePrecompiled: true
      kernelModuleType: proprietary
      nodeSelector: {pool: a100}
      nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}
      labels: {a: b}
      annotations: {c: d}
      tolerations: [{operator: Exists}]
      priorityClassName: high
      repoConfig: {name: repos}
      virtualTopologyConfig: {name: topology}
      licensingConfig: {name: licence}
      manager: {repository: r.io, image: m, version: v1}
      rdma: {enabled: true}
      imagePullSecrets: [pull]
      env: [{name: A, value: b}]
      hostNetwork: true
    """)
    policy = found.policy
    assert (policy.kind, policy.name) == ("NVIDIADriver", "a")
    assert policy.source == ImageSource(
        repository="nvcr.io/nvidia", image="driver", version="580", pull_secrets=("pull",)
    )
    assert policy.use_precompiled
    assert policy.kernel_module_type == "proprietary"
    assert policy.node_selector == {"pool": "a100"}
    assert "requiredDuringSchedulingIgnoredDuringExecution" in policy.node_affinity
    assert (policy.labels, policy.annotations) == ({"a": "b"}, {"c": "d"})
    assert policy.tolerations == ({"operator": "Exists"},)
    assert policy.priority_class == "high"
    assert policy.config_maps == {"repoConfig": "repos", "virtualTopology": "topology", "licensingConfig": "licence"}
    assert policy.manager.source == ImageSource(repository="r.io", image="m", version="v1")
    assert (policy.rdma, policy.host_network) == (True, True)
    assert policy.env == ({"name": "A", "value": "b"},)
    assert found.notices == ()


def test_what_it_does_not_say_is_the_cluster_policys() -> None:
    toolkit = OperandSettings(source=ImageSource(image="toolkit"), install_dir="/opt/nvidia")
    cluster = DriverPolicy(
        kind="ClusterPolicy", name="c", toolkit=toolkit, driver_root="/srv/driver", priority_class="high"
    )
    policy = read("{}", cluster).policy
    assert (policy.toolkit, policy.driver_root, policy.priority_class) == (toolkit, "/srv/driver", "high")
    assert read("{}").policy.priority_class == "system-node-critical"
    assert read("priorityClassName: low", cluster).policy.priority_class == "low"


def test_a_default_one_has_no_selector() -> None:
    assert read("default: true").policy.default
    assert "cannot be set together with default" in problems("{default: true, nodeSelector: {a: b}}")[0]


def test_the_label_that_says_what_was_selected_selects_nothing() -> None:
    (found,) = problems("nodeSelector: {nvidia.com/gpu-operator.driver.owner: a}")
    assert "cannot name nvidia.com/gpu-operator.driver.owner" in found


@pytest.mark.parametrize("part", ["gds", "gdrcopy"])
def test_precompiled_is_refused_together_with_other_modules(part: str) -> None:
    (found,) = problems(f"{{usePrecompiled: true, {part}: {{enabled: true}}}}")
    assert found.startswith(f"spec.usePrecompiled: cannot be true together with {part}")
    (notice,) = read(f"{part}: {{enabled: true, version: v2}}").notices
    assert notice.text.startswith("no effect")
    assert read(f"{part}: {{enabled: false, version: v2}}").notices == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("driverType: vgpu-host-manager", "Tessera does not install; write gpu"),
        ("driverType: gpus", "must be gpu, vgpu or vgpu-host-manager"),
        ("version: sha256:ab", "is part of no tag"),
        ("repository: ''", "spec.repository: missing"),
        ("nodeSelector: {a: 1}", "spec.nodeSelector.a: must be text, not 1"),
    ],
)
def test_what_cannot_be_is_refused(text: str, words: str) -> None:
    assert words in problems(text)[0]


def test_an_unknown_key_is_a_notice() -> None:
    (found,) = read("nodeSelektor: {a: b}").notices
    assert (found.path, found.text.rpartition("; ")[2]) == ("spec.nodeSelektor", "did you mean nodeSelector?")


def test_settings_of_its_rollout_stand_in_annotations() -> None:
    assert read("{}", annotations={"tessera.dev/driver-canary": "0"}).policy.upgrade.canary == 0


def test_the_image_that_nvidias_definition_writes_by_itself_is_nvidias_driver() -> None:
    written = "repository: null\nimage: nvcr.io/nvidia/driver\n"
    usual = ImageSource(repository="nvcr.io/nvidia", image="driver", version="570")
    assert read(f"{written}version: '570'").policy.source == usual
    found = read(f"{written}version: null")
    assert found.policy.source == ImageSource(repository="nvcr.io/nvidia", image="driver", version="595.91.07")
    assert "is taken, as in NVIDIA's chart" in found.notices[0].text
