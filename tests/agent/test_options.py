"""Where an agent looks for kubelet."""

from pathlib import Path

from tessera.agent.options import AgentOptions
from tessera.cli.agent import parsed

NODE = {"NODE_NAME": "n1"}


def test_by_default_everything_lies_where_kubelet_has_it() -> None:
    options = parsed([], NODE)
    assert options == AgentOptions(node_name="n1")
    assert options.plugin_dir == Path("/var/lib/kubelet/device-plugins")
    assert options.pod_resources == Path("/var/lib/kubelet/pod-resources")


def test_another_root_of_kubelet_moves_pod_resources_but_not_the_plugins_folder() -> None:
    options = parsed(["--kubelet-root=/data/kubelet"], NODE)
    assert options.plugin_dir == Path("/var/lib/kubelet/device-plugins")
    assert options.pod_resources == Path("/data/kubelet/pod-resources")


def test_both_folders_can_be_named() -> None:
    options = parsed(["--plugin-dir=/a", "--pod-resources-dir=/b"], NODE)
    assert (options.plugin_dir, options.pod_resources) == (Path("/a"), Path("/b"))
