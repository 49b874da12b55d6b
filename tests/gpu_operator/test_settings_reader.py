"""An installation of NVIDIA's gpu-operator as Tessera reads it: what is followed, what has no effect, what is wrong."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refused_problems import refused_problems

from tessera.api.documents import load_document
from tessera.api.problems import FileRefused
from tessera.api.sharing.profile import MigStrategy
from tessera.gpu_operator.keys import POLICY, VALUES, Leaf, Shape
from tessera.gpu_operator.settings_reader import NamedConfig, OperatorSettings, read_settings
from tessera.gpu_operator.without_effect import COMPONENTS

#: The values of the article "Efficient Access to Shared GPU Resources: Part 2".
ARTICLE = (Path(__file__).parents[2] / "examples" / "sharing" / "values.yaml").read_text()

#: Components of the chart that have the keys of a container in a DaemonSet.
CONTAINERS = (
    "ccManager",
    "dcgm",
    "dcgmExporter",
    "devicePlugin",
    "driver",
    "gdrcopy",
    "gds",
    "gfd",
    "kataManager",
    "kataSandboxDevicePlugin",
    "migManager",
    "nodeStatusExporter",
    "sandboxDevicePlugin",
    "toolkit",
    "validator",
    "vfioManager",
    "vgpuDeviceManager",
    "vgpuManager",
)


def read(text: str) -> OperatorSettings:
    return read_settings(load_document(text))


def problems(text: str) -> list[str]:
    return refused_problems(read, text)


def notes(settings: OperatorSettings) -> dict[str, str]:
    return {each.path: each.text for each in settings.notices}


def test_the_article_names_two_config_maps_and_the_strategy() -> None:
    settings = read(ARTICLE)
    assert settings.mig_strategy is MigStrategy.MIXED
    assert settings.sharing == NamedConfig(name="nvidia-time-slicing-config")
    assert settings.layouts == NamedConfig(name="nvidia-mig-config")
    assert {"operator", "migManager.config.default"} <= set(notes(settings))
    assert not any(path.startswith("driver") and "no effect" in text for path, text in notes(settings).items())


def test_values_of_tesseras_own_chart_are_left_to_helm() -> None:
    settings = read("tessera: {image: {repository: r.io/tessera}}\nmig: {strategy: mixed}")
    assert settings.mig_strategy is MigStrategy.MIXED
    assert "Helm checks and follows them" in notes(settings)["tessera"]
    assert "did you mean strategy?" in notes(read("tessera: {}\nmig: {strategie: mixed}"))["mig.strategie"]


def test_nothing_means_the_charts_strategy_and_leaves_cards_as_they_are() -> None:
    settings = read("")
    assert (settings.mig_strategy, settings.layouts.default) == (MigStrategy.SINGLE, "")
    assert "single as with NVIDIA's operator" in notes(settings)["mig.strategy"]
    assert "stay as they are" in notes(settings)["migManager.config.default"]


def test_defaults_for_nodes_without_a_label_are_followed() -> None:
    settings = read(
        "migManager: {config: {default: all-disabled}}\ndevicePlugin: {config: {name: a, default: slice-4}}"
    )
    assert settings.layouts == NamedConfig(default="all-disabled")
    assert settings.sharing == NamedConfig(name="a", default="slice-4")


def test_a_default_profile_of_no_config_map_has_no_effect_as_upstream() -> None:
    settings = read("devicePlugin: {config: {default: slice-4}}")
    assert settings.sharing == NamedConfig()
    assert "names no ConfigMap" in notes(settings)["devicePlugin.config.default"]


def test_the_environment_of_the_plugin_and_the_manager_is_followed() -> None:
    settings = read("""
      devicePlugin:
        env:
        - {name: DEVICE_LIST_STRATEGY, value: "cdi-cri,volume-mounts"}
        - {name: DEVICE_ID_STRATEGY, value: index}
        - {name: DP_DISABLE_HEALTHCHECKS, value: "13,31"}
        - {name: MPS_ROOT, value: /srv/mps}
        - {name: FAIL_ON_INIT_ERROR, value: "true"}
        - {name: PASS_DEVICE_SPECS, value: "true"}
        - {name: NVIDIA_DRIVER_ROOT, value: /}
        - {name: HOME, value: /}
      migManager: {env: [{name: WITH_REBOOT, value: "true"}]}
    """)
    assert settings.device_list_strategies == ("cdi-cri", "volume-mounts")
    assert settings.device_id_strategy == "index"
    assert settings.health == {"DP_DISABLE_HEALTHCHECKS": "13,31"}
    assert settings.mps_root == "/srv/mps"
    assert settings.mig_reboot
    assert settings.pass_device_specs
    told = notes(settings)
    assert "reported and tried again" in told["devicePlugin.env.FAIL_ON_INIT_ERROR"]
    assert "flags.nvidiaDriverRoot" in told["devicePlugin.env.NVIDIA_DRIVER_ROOT"]
    assert told["devicePlugin.env.HOME"] == "no effect: Tessera does not know it"


def test_the_strategy_counts_where_the_environment_says_another_one() -> None:
    env = 'devicePlugin: {env: [{name: MIG_STRATEGY, value: "none"}]}\n'
    assert read(env).mig_strategy is MigStrategy.NONE
    both = read(env + "mig: {strategy: mixed}")
    assert both.mig_strategy is MigStrategy.MIXED
    assert "mig.strategy is mixed, and counts" in notes(both)["devicePlugin.env.MIG_STRATEGY"]


def test_mps_has_its_folder_on_the_host() -> None:
    assert read("devicePlugin: {mps: {root: /srv/mps}}").mps_root == "/srv/mps"
    assert "begin it with /" in problems("devicePlugin: {mps: {root: mps}}")[0]


def test_a_config_map_that_the_chart_would_make_is_made() -> None:
    settings = read("""
      devicePlugin:
        config:
          create: true
          name: profiles
          default: four
          data:
            four: |
              version: v1
              sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}
    """)
    assert settings.sharing.data is not None
    assert set(settings.sharing.data) == {"four"}
    assert settings.sharing.default == "four"


def test_what_a_config_map_is_to_hold_is_judged_as_its_own_file_is() -> None:
    (found,) = problems("""
      devicePlugin:
        config:
          create: true
          name: profiles
          data: {four: "sharing: {timeSlicing: {resources: [{name: gpu, replica: 4, replicas: 4}]}}"}
    """)
    assert found.startswith("devicePlugin.config.data.four: sharing.timeSlicing.resources[0].replica: unknown")


def test_data_without_create_is_a_notice_and_create_without_a_name_a_mistake() -> None:
    assert (
        "create is not true" in notes(read("migManager: {config: {data: {config.yaml: ''}}}"))["migManager.config.data"]
    )
    assert "needs the name" in problems('devicePlugin: {config: {create: true, data: {a: "version: v1"}}}')[0]


def test_without_the_mig_manager_no_layout_is_the_default() -> None:
    settings = read("migManager: {enabled: false, config: {name: a, default: all-1g.5gb}}")
    assert settings.layouts == NamedConfig()
    assert "the label is still followed" in notes(settings)["migManager.enabled"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('driver: {enabled: "off-duty"}', 'driver.enabled: must be true or false, not "off-duty"'),
        ("driver: {enabled: 1}", "driver.enabled: must be true or false, not 1"),
        ("devicePlugin: {env: [{name: A, value: 1}]}", "env[0].value: must be text, not 1; put it in quotes"),
        ("devicePlugin: {config: {name: My_Config}}", 'config.name: "My_Config" is no name of a ConfigMap'),
        ("migManager: {env: [{name: WITH_REBOOT, value: maybe}]}", 'env.WITH_REBOOT: must be "true" or "false"'),
        ("devicePlugin: {env: [{name: DEVICE_LIST_STRATEGY, value: cdi}]}", "must be envvar, volume-mounts"),
        ("- a", "must be a mapping of keys to values"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_its_path(text: str, words: str) -> None:
    (found,) = problems(text)
    assert words in found


def test_a_mistyped_choice_is_refused_with_all_choices_and_the_one_meant() -> None:
    (found,) = problems("mig: {strategy: mixd}")
    for fact in ("mig.strategy: ", "must be none, single or mixed", 'not "mixd"', "did you mean mixed?"):
        assert fact in found


def test_all_mistakes_are_told_at_once() -> None:
    assert len(problems("migManager: {enabled: 1}\nmig: {strategy: two}\ndriver: {imagePullPolicy: 1}")) == 3


@pytest.mark.parametrize("component", CONTAINERS)
def test_every_container_has_the_keys_that_kubernetes_defines(component: str) -> None:
    """Chart 1.6 to 26.7 have, at one time or another, each of these in each component."""
    free: Any = {"anything.at/all": {"below": ["it"]}}
    keys = ("resources", "tolerations", "nodeSelector", "affinity", "labels", "annotations", "securityContext")
    container = {"enabled": False, "repository": "r", "image": "i", "version": 1.5, "imagePullSecrets": ["s"]}
    read_back = read_settings(
        {component: {**container, **dict.fromkeys(keys, free), "env": [{"name": "A"}], "args": []}}
    )
    assert isinstance(read_back, OperatorSettings)


def test_free_values_stand_below_other_charts_and_helms_own_key() -> None:
    read(
        "node-feature-discovery: {worker: {config: {sources: {pci: {}}}}}\nglobal: {any: 1}\nextraObjects: [{kind: A}]"
    )


def test_every_component_is_followed_or_has_its_reason() -> None:
    followed = {"mig", "migManager", "devicePlugin", "gfd", "cdi", "hostPaths", "driver", "toolkit", "daemonsets"}
    followed |= {"clusterPolicy"}
    assert followed | set(COMPONENTS) == set(VALUES)
    assert set(POLICY) < set(VALUES)


def test_what_is_off_or_empty_is_not_reported() -> None:
    text = "dcgm: {enabled: false, image: i}\ntoolkit: {env: [], resources: {}}\ncdi: {enabled: null}"
    assert set(notes(read(text + "\nmig: {strategy: none}"))) == {"migManager.config.default"}


def test_components_of_virtual_machines_are_reported_where_there_are_any() -> None:
    vfio = "vfioManager: {enabled: true}\nmig: {strategy: none}\nmigManager: {config: {default: all-disabled}}\n"
    assert notes(read(vfio)) == {}
    assert set(notes(read(f"{vfio}sandboxWorkloads: {{enabled: true}}"))) == {"sandboxWorkloads", "vfioManager"}


@pytest.mark.parametrize("workload", ["vm-passthrough", "vm-vgpu"])
def test_nodes_without_a_label_that_were_for_virtual_machines_are_reported(workload: str) -> None:
    """NVIDIA's operator offers none of their cards to containers."""
    found = notes(read(f"sandboxWorkloads: {{enabled: true, defaultWorkload: {workload}}}"))
    assert "kubectl label node NODE nvidia.com/gpu.workload.config=" in found["sandboxWorkloads.defaultWorkload"]
    for other in ("{enabled: true, defaultWorkload: container}", f"{{enabled: false, defaultWorkload: {workload}}}"):
        assert "sandboxWorkloads.defaultWorkload" not in notes(read(f"sandboxWorkloads: {other}"))


def test_cdi_is_on_here_so_only_its_absence_is_reported() -> None:
    assert "cdi.enabled" not in notes(read("cdi: {enabled: true}"))
    assert "through CDI" in notes(read("cdi: {enabled: false}"))["cdi.enabled"]


def test_kubelets_folder_is_followed_and_those_of_host_and_driver_are_as_they_are() -> None:
    settings = read(
        "hostPaths: {rootFS: /, driverInstallDir: /run/nvidia/driver, kubeletRootDir: /var/lib/k0s/kubelet}"
    )
    assert settings.kubelet_root == "/var/lib/k0s/kubelet"
    assert "hostPaths" not in notes(settings)
    assert "rootFS" in notes(read("hostPaths: {rootFS: /host}"))["hostPaths"]
    assert "begin it with /" in problems("hostPaths: {kubeletRootDir: kubelet}")[0]


def test_keys_beside_those_that_count_are_reported_by_reason() -> None:
    settings = read(
        "devicePlugin: {image: i, version: v, tolerations: [{operator: Exists}], args: [--pass-device-specs]}"
    )
    told = [each.text for each in settings.notices if each.path == "devicePlugin"]
    assert any("image, version; the agent has one image" in text for text in told)
    assert any("tolerations" in text for text in told)
    assert any("args" in text for text in told)


def places(shape: Shape, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each mapping of known keys."""
    if isinstance(shape, Leaf):
        return
    yield path
    for key, below in shape.items():
        yield from places(below, (*path, key))


def nested(path: tuple[str, ...], value: Any) -> Any:
    return {path[0]: nested(path[1:], value)} if path else value


PLACES = sorted(places(VALUES))


@given(place=st.sampled_from(PLACES), word=st.from_regex(r"[a-z]{1,12}Zz", fullmatch=True))
def test_a_key_that_upstream_does_not_have_is_noted_wherever_it_stands(place: tuple[str, ...], word: str) -> None:
    found = notes(read_settings(nested(place, {word: 1})))
    assert "unknown, also to NVIDIA's operator" in found[".".join((*place, word))]


@given(st.data())
def test_every_mapping_of_the_chart_may_be_empty_or_null(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(PLACES[1:]), max_size=4))
    document: dict[str, Any] = {}
    for place in chosen:
        merged(document, nested(place, data.draw(st.sampled_from([{}, None]))))
    assert isinstance(read_settings(document), OperatorSettings)


def merged(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merged(into[key], value)
        else:
            into[key] = value


def policy(**spec: Any) -> OperatorSettings:
    manifest = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"}}
    return read_settings({**manifest, "spec": spec, "status": {"state": "ready", "namespace": "gpu-operator"}})


def test_a_cluster_policy_says_the_same_below_spec_and_where_its_operator_runs() -> None:
    settings = policy(
        mig={"strategy": "mixed"},
        devicePlugin={"enabled": True, "config": {"name": "profiles", "default": "four"}},
        migManager={"config": {"name": "default-mig-parted-config", "default": "all-disabled"}},
        validator={"plugin": None, "env": [{"name": "WITH_WORKLOAD", "value": "false"}]},
        driver={"useNvidiaDriverCRD": False, "upgradePolicy": {"podDeletion": {"force": False}}},
    )
    assert settings.namespace == "gpu-operator"
    assert settings.sharing == NamedConfig(name="profiles", default="four")
    assert settings.layouts == NamedConfig(name="default-mig-parted-config", default="all-disabled")
    assert settings.mig_strategy is MigStrategy.MIXED
    assert set(notes(settings)) == {"spec.validator"}


def test_a_cluster_policy_without_a_strategy_has_the_device_plugins() -> None:
    assert policy().mig_strategy is MigStrategy.NONE


def test_keys_of_the_chart_alone_are_none_of_a_cluster_policy() -> None:
    assert "unknown, also to NVIDIA's operator" in notes(policy(nfd={"enabled": True}))["spec.nfd"]
    assert "did you mean spec.daemonsets.tolerations?" in notes(policy(tolerations=[]))["spec.tolerations"]


def test_a_text_for_a_switch_is_one_in_values_and_a_mistake_in_an_object() -> None:
    settings = read('driver: {enabled: "no", version: "580"}\ndevicePlugin: {enabled: "True"}')
    assert settings.driver_objects == ()
    with pytest.raises(FileRefused, match=r"spec\.driver\.enabled: must be true or false"):
        policy(driver={"enabled": "false"})


@pytest.mark.parametrize("kind", ["ConfigMap", "NVIDIADriver"])
def test_other_objects_are_refused(kind: str) -> None:
    with pytest.raises(FileRefused, match="must be a values file or a ClusterPolicy"):
        read_settings({"apiVersion": "nvidia.com/v1", "kind": kind})
