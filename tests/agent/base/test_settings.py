"""Options of an agent: arguments, the variables of NVIDIA's device plugin, defaults."""

from pathlib import Path

import click
import pytest

from tessera.agent.base.settings import AgentOptions, ConfigMapName, EnforcementMode, ValidationMode
from tessera.api.sharing.profile import MigStrategy
from tessera.cli.agent import parse_options

NODE = {"NODE_NAME": "n1"}


def test_by_default_everything_lies_where_kubelet_has_it() -> None:
    options = parse_options([], NODE)
    assert options == AgentOptions(node_name="n1")
    assert options.plugin_dir == Path("/var/lib/kubelet/device-plugins")
    assert options.pod_resources == Path("/var/lib/kubelet/pod-resources")


def test_another_root_of_kubelet_moves_pod_resources_but_not_the_plugins_folder() -> None:
    options = parse_options(["--kubelet-root=/data/kubelet"], NODE)
    assert options.plugin_dir == Path("/var/lib/kubelet/device-plugins")
    assert options.pod_resources == Path("/data/kubelet/pod-resources")


def test_both_folders_can_be_named() -> None:
    options = parse_options(["--plugin-dir=/a", "--pod-resources-dir=/b"], NODE)
    assert (options.plugin_dir, options.pod_resources) == (Path("/a"), Path("/b"))


def test_profiles_and_layouts_lie_in_config_maps_with_defaults_for_nodes_without_a_label() -> None:
    options = parse_options(
        ["--sharing-config=kube-system/slices", "--sharing-default=slice-4", "--mig-config=gpu/layouts"], NODE
    )
    assert options.sharing_config == ConfigMapName("kube-system", "slices")
    assert (options.sharing_default, options.mig_config, options.mig_default) == (
        "slice-4",
        ConfigMapName("gpu", "layouts"),
        "",
    )


def test_an_argument_takes_precedence_over_the_device_plugins_variables() -> None:
    environment = NODE | {
        "MIG_STRATEGY": "single",
        "DEVICE_LIST_STRATEGY": "envvar,cdi-annotations",
        "DEVICE_ID_STRATEGY": "index",
        "DP_DISABLE_HEALTHCHECKS": "all",
        "PATH": "/bin",
    }
    options = parse_options(
        [
            "--mig-strategy=none",
            "--memory-limits=evict",
            "--claim-driver=gpu.nvidia.com",
            "--claim-placement=scheduler",
        ],
        environment,
    )
    assert options.mig_strategy is MigStrategy.NONE
    assert options.memory_limits is EnforcementMode.EVICT
    assert (options.claim_driver, options.claim_placement) == ("gpu.nvidia.com", "scheduler")
    assert options.device_list_strategies == ("envvar", "cdi-annotations")
    assert not options.device_ids_are_uuids
    assert options.environment == {"DP_DISABLE_HEALTHCHECKS": "all"}


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--sharing-config=slices", "NAMESPACE/NAME"),
        ("--mig-config=a/b/c", "NAMESPACE/NAME"),
        ("--device-list-strategy=cdi", "one of envvar"),
        ("--mig-strategy=both", "mixed"),
    ],
)
def test_a_value_that_is_not_of_its_form_is_refused_with_the_form(argument: str, says: str) -> None:
    with pytest.raises(click.BadParameter, match=says):
        parse_options([argument], NODE)


def test_folders_of_a_driver_container_and_the_validation_have_options() -> None:
    options = parse_options(["--driver-root=/opt/driver", "--markers-dir=/opt/markers", "--validation=always"], NODE)
    assert (options.driver_root, options.markers_dir) == (Path("/opt/driver"), Path("/opt/markers"))
    assert options.validation is ValidationMode.ALWAYS


def test_simulated_cards_ignore_the_machine_s_markers_by_default() -> None:
    assert parse_options(["--simulate=A30"], NODE).markers_dir is None
    assert parse_options(["--simulate=A30", "--markers-dir=/m"], NODE).markers_dir == Path("/m")
