"""`tessera config check` on an installation of NVIDIA's gpu-operator."""

import pytest

from tessera.cli.config.files import check_file
from tessera.cli.config.parts import PartReport, parse_node

VALUES = """\
mig: {strategy: mixed}
driver: {version: "510.47.03"}
migManager: {config: {name: nvidia-mig-config, default: all-disabled}}
devicePlugin: {config: {name: nvidia-time-slicing-config}}
"""
POLICY = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec:
  mig: {strategy: single}
  devicePlugin: {config: {name: plugin-config, default: any}}
status: {state: ready, namespace: gpu-operator}
"""


def only(text: str) -> PartReport:
    (part,) = check_file(text, [])
    return part


def test_a_values_file_says_which_config_maps_count_and_what_is_ignored() -> None:
    part = only(VALUES)
    assert (part.name, part.kind) == ("file", "values of gpu-operator")
    installed = "in the namespace of the installation"
    facts_of_lines: tuple[tuple[str, ...], ...] = (
        ("MIG strategy mixed",),
        ("sharing profiles: ", "ConfigMap nvidia-time-slicing-config", installed),
        ("  chosen by the node label nvidia.com/device-plugin.config", "without it", "named default", "the only one"),
        ("MIG layouts: ", "ConfigMap nvidia-mig-config", installed),
        ("  chosen by the node label nvidia.com/mig.config", "without it", "all-disabled"),
        ("driver: nvcr.io/nvidia/driver:510.47.03-<os>", "the node compiles its kernel modules"),
        ("  upgrades change 1 node first", "1 at a time", "at most 25% out of service", "stop after 1 failed node"),
        ("container toolkit: nvcr.io/nvidia/k8s/container-toolkit:v1.20.0", "in /usr/local/nvidia"),
    )
    for line, facts in zip(part.means, facts_of_lines, strict=True):
        for fact in facts:
            assert fact in line
    assert part.notices == ()
    assert part.problems == ()


def test_a_cluster_policy_also_says_where() -> None:
    part = only(POLICY)
    assert (part.name, part.kind) == ("cluster-policy", "ClusterPolicy")
    assert any("ConfigMap plugin-config in namespace gpu-operator" in line for line in part.means)
    (layouts,) = (line for line in part.means if "ConfigMap mig-layouts" in line)
    for fact in ("in namespace tessera-system", "if it exists"):
        assert fact in layouts


def test_policies_listed_by_kubectl_are_judged_one_by_one() -> None:
    items = "".join(f"- {line}\n" if n == 0 else f"  {line}\n" for n, line in enumerate(POLICY.splitlines()))
    assert only(f"apiVersion: v1\nkind: List\nitems:\n{items}").name == "cluster-policy"


def test_a_slip_of_the_finger_is_still_a_values_file() -> None:
    part = only("migManger: {config: {name: a}}")
    assert part.kind == "values of gpu-operator"
    assert part.problems == ()
    assert "migManger: no effect: unknown, also to NVIDIA's operator; did you mean migManager?" in part.notices


def test_a_sharing_profile_is_not_taken_for_values() -> None:
    assert only("version: v1\nmig: {}").kind == "sharing profile"
    assert only("sharng: {}").kind == "sharing profile"


def test_everything_that_is_followed_is_said() -> None:
    means = only("""
      mig: {strategy: none}
      devicePlugin:
        mps: {root: /srv/mps}
        env:
        - {name: DEVICE_LIST_STRATEGY, value: cdi-cri}
        - {name: DEVICE_ID_STRATEGY, value: index}
        - {name: DP_ENABLE_HEALTHCHECKS, value: "13"}
      migManager: {env: [{name: WITH_REBOOT, value: "true"}]}
    """).means
    assert means[5:] == (
        "a node is rebooted if its layout cannot be changed otherwise",
        "containers get their devices by cdi-cri",
        "containers name each device by its index",
        "folders of MPS daemons are in /srv/mps",
        "health checks follow DP_ENABLE_HEALTHCHECKS=13",
    )


def test_profiles_and_layouts_in_the_values_are_tried_on_the_nodes() -> None:
    text = """
      devicePlugin:
        config:
          create: true
          name: profiles
          data: {four: "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"}
      migManager:
        config:
          create: true
          name: layouts
          default: halves
          data:
            config.yaml: |
              version: v1
              mig-configs: {halves: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]}
    """
    values, profile, layouts = check_file(text, [parse_node("2xA100-40GB")])
    assert "made from config.data" in values.means[1]
    assert profile.name == "profiles/four"
    assert "on 2 x A100-40GB without MIG: nvidia.com/gpu 8" in profile.means
    assert layouts.name == "layouts/config.yaml"
    assert "halves on 2 x A100-40GB: nvidia.com/mig-3g.20gb 4" in layouts.means


def test_what_is_no_xid_in_the_lists_of_the_health_check_is_noted() -> None:
    part = only('devicePlugin: {env: [{name: DP_DISABLE_HEALTHCHECKS, value: "13;31, 48"}]}')
    (notice,) = (each for each in part.notices if "DP_" in each)
    for fact in (
        "DP_DISABLE_HEALTHCHECKS: ",
        '"13;31" is ignored',
        "not an XID",
        "write numbers with commas",
        "or all",
    ):
        assert fact in notice
    assert part.problems == ()


def test_a_policy_says_which_driver_comes_how() -> None:
    part = only("""
      apiVersion: nvidia.com/v1
      kind: ClusterPolicy
      metadata:
        name: cluster-policy
        annotations:
          tessera.dev/driver-canary: "2"
          tessera.dev/driver-mirrors: mirror.local/nvidia
          tessera.dev/driver-build-repository: registry.local/built
      spec:
        driver: {usePrecompiled: true, repository: quay.io/vemporop, image: nvidia-gpu-driver, version: 525.125.06,
                 upgradePolicy: {autoUpgrade: true, maxParallelUpgrades: 0}}
        toolkit: {enabled: false}
    """)
    facts_of_lines: tuple[tuple[str, ...], ...] = (
        (
            "driver: quay.io/vemporop/nvidia-gpu-driver:525.125.06-<kernel>-<os>",
            "with precompiled kernel modules",
            "built if there is no such image",
        ),
        ("  upgrades change 2 nodes first", "all at a time", "at most 25% out of service", "stop after 1 failed node"),
        ("  also looked up in: mirror.local/nvidia",),
        ("  built once for each kernel without an image", "pushed to registry.local/built"),
        ("container toolkit: installed on the hosts", "not by Tessera"),
    )
    for line, facts in zip(part.means[5:], facts_of_lines, strict=True):
        for fact in facts:
            assert fact in line


def test_an_nvidia_driver_says_for_which_nodes() -> None:
    manifest = """
      apiVersion: nvidia.com/v1alpha1
      kind: NVIDIADriver
      metadata: {{name: fast}}
      spec: {{repository: nvcr.io/nvidia, image: driver, version: "580", {0}}}
    """
    part = only(manifest.format("nodeSelector: {pool: a100}"))
    assert (part.name, part.kind, part.problems) == ("fast", "NVIDIADriver", ())
    nodes, installed = part.means
    assert nodes == "for nodes with pool=a100"
    for fact in ("driver: nvcr.io/nvidia/driver:580-<os>", "the node compiles its kernel modules"):
        assert fact in installed
    assert only(manifest.format("default: true")).means[0] == "for the nodes that no other NVIDIADriver selects"
    assert only(manifest.format("nodeSelector: {}")).means[0] == "for all nodes"
    wrong = only(manifest.format("default: true, nodeSelector: {a: b}"))
    assert wrong.problems[0].startswith("spec.nodeSelector: cannot be set together with default")


def test_what_is_asked_of_images_together_is_judged() -> None:
    part = only("driver: {usePrecompiled: true, version: '580'}\ngdrcopy: {enabled: true}")
    assert part.problems[0].startswith("driver.usePrecompiled: cannot be true together with gdrcopy")


def test_everything_that_a_driver_container_is_given_is_said() -> None:
    means = only("""
      hostPaths: {driverInstallDir: /srv/driver}
      driver:
        version: "580"
        kernelModuleType: open
        rdma: {enabled: true, useHostMofed: true}
        repoConfig: {configMapName: repos}
        secretEnv: secrets
        env: [{name: A, value: b}]
        args: [init]
        startupProbe: {failureThreshold: 300}
    """).means
    facts_of_lines: tuple[tuple[str, ...], ...] = (
        ("  with open kernel modules",),
        ("  with modules for GPUDirect RDMA", "the host's MOFED"),
        ("  with repoConfig from ConfigMap repos", "secretEnv from Secret secrets", "env A", "args"),
        ("  its files are in /srv/driver",),
        ("  has 3060 s to start",),
    )
    for line, facts in zip(means[6:11], facts_of_lines, strict=True):
        for fact in facts:
            assert fact in line


@pytest.mark.parametrize(("choice", "installed"), [("host", False), ("install", True), ("auto", True)])
def test_the_chart_s_own_choice_about_drivers_counts(choice: str, installed: bool) -> None:
    part = only(f"{VALUES}tessera: {{drivers: {choice}}}\n")
    assert any(each.startswith("driver: ") for each in part.means) is installed
    assert (
        any("driver: no effect: drivers are used as the hosts have them" in each for each in part.notices) != installed
    )
