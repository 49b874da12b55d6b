"""The command line as a stranger meets it: maps, helps, and errors of one line with exit code 1."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster_user import ROOT, TIMEOUT
from tests.support.command_line import PRELOADED, run_tessera

Run = subprocess.CompletedProcess[str]


def tessera(*arguments: str, **env: str) -> Run:
    """Runs the command line where there is no cluster, unless ``env`` says where one is."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "TESSERA", "NODE_"))}
    return run_tessera(*arguments, env={**bare, "HOME": "/nonexistent", **env}, cwd=ROOT, timeout=TIMEOUT)


def failed(run: Run) -> str:
    """The one line that a command says when it fails."""
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.endswith("\n")
    assert run.stderr.count("\n") == 1
    return run.stderr.rstrip("\n")


def test_without_a_command_the_overview_is_shown() -> None:
    run = tessera()
    assert run.returncode == 0
    assert all(name in run.stdout + run.stderr for name in ("demo", "map", "why", "lab", "Operate"))
    assert "mps-host" not in run.stdout + run.stderr, "what runs in containers is not shown"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["map", "--bad"], ("No such option '--bad'", "see 'tessera map --help'")),
        (["mpa"], ("no command 'mpa'", "did you mean 'map'?", "see 'tessera --help'")),
        (["why"], ("name an object, or choose pods by -l", "see 'tessera why --help'")),
        (["agent"], ("Missing option '--node-name'", "see 'tessera agent --help'")),
        (
            ["lab", "up", "--nodes", "4xA100-40"],
            ('no GPU model "A100-40"', 'did you mean "A100-40GB"?', "The models are"),
        ),
        (["lab", "up", "--nodes", "4xA30,,0"], ("nodes '4xA30,,0': ", "'' names no node", "write for example")),
        (
            ["lab", "smi", "node-1", "--dir", "/nonexistent"],
            ("--dir is /nonexistent", "no lab runs there", "start one with:"),
        ),
        (["map", "--kubeconfig", "/nonexistent"], ("kubeconfig /nonexistent: ", "No such file or directory")),
        (["map"], ("no cluster is configured", "/nonexistent/.kube/config does not exist or is empty")),
        (["why", "pod"], ("no cluster is configured:",)),
        (["controller"], ("no cluster is configured:",)),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], facts: tuple[str, ...]) -> None:
    error = failed(tessera(*arguments))
    assert error.startswith("error: ")
    for fact in facts:
        assert fact in error


def test_a_refused_connection_is_said_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, users: [], contexts: [{name: c, context: {cluster: c}}],"
        ' clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]}'
    )
    assert failed(tessera("map", KUBECONFIG=str(config))).startswith("error: https://127.0.0.1:1: connection refused; ")
    assert failed(tessera("map", "--context", "d", KUBECONFIG=str(config))) == (
        "error: context 'd' does not exist; there are: c"
    )
    config.write_text("{")
    assert failed(tessera("map", KUBECONFIG=str(config))).startswith(f"error: kubeconfig {config} is not YAML: ")


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "4xA100-40GB,2xA30+1xH200,0"]


@pytest.fixture(scope="module")
def pods(cluster: Any) -> None:
    """A pod of two slices and one of one, on their nodes."""
    pair = cluster.pod("pair", {"nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-1g.5gb": 1})
    alone = cluster.pod("alone", {"nvidia.com/mig-2g.35gb": 1})
    for each in (pair, alone):
        cluster.apply(each)
    cluster.kubectl("wait", "pod/pair", "pod/alone", "--for=condition=Ready", "--timeout=180s")
    cluster.eventually(lambda: "creating" not in cluster.tessera("map"))


@pytest.mark.usefixtures("pods")
def test_map_draws_every_card(cluster: Any) -> None:
    lines = cluster.tessera("map").splitlines()
    assert "\x1b" not in "".join(lines)
    assert lines[0] == "node-1   4 x NVIDIA A100-SXM4-40GB   3 of 32 memory slots used"
    assert [line.split()[0] for line in lines if line.startswith(" GPU")] == ["GPU"] * 7
    assert "node-2   2 x NVIDIA A30, 1 x NVIDIA H200   2 of 16 memory slots used" in lines
    owners = {line.split()[1]: line.split()[-2:] for line in lines if line.startswith("    a")}
    assert owners["2g.10gb"] == ["created", "default/pair"] or owners["1g.5gb"] == ["created", "default/pair"]
    assert owners["2g.35gb"] == ["created", "default/alone"]


@pytest.mark.usefixtures("pods")
def test_map_of_one_node_and_in_colour(cluster: Any) -> None:
    assert [line for line in cluster.tessera("map", "node-2").splitlines() if line.startswith("node-")] == [
        "node-2   2 x NVIDIA A30, 1 x NVIDIA H200   2 of 16 memory slots used"
    ]
    assert "\x1b[48;5;" in cluster.tessera("map", "--colour")
    unknown = cluster.tessera("map", "node-3", fails=True)
    assert "'node-3'" in unknown
    assert unknown.endswith(": node-1, node-2\n")


@pytest.mark.usefixtures("pods")
def test_map_for_scripts(cluster: Any) -> None:
    nodes = {node["node"]: node for node in json.loads(cluster.tessera("map", "-o", "json"))["nodes"]}
    assert list(nodes) == ["node-1", "node-2"]
    used = [card for card in nodes["node-1"]["cards"] if card["used"]]
    assert [sorted(tile["profile"] for tile in card["tiles"]) for card in used] == [["1g.5gb", "2g.10gb"]]
    tile = next(tile for tile in used[0]["tiles"] if tile["profile"] == "2g.10gb")
    assert (tile["pod"], tile["size"], tile["state"]) == ("default/pair", 2, "created")
    whole = next(card for card in nodes["node-1"]["cards"] if not card["used"])
    assert (whole["possible"]["7g.40gb"], whole["possible"]["1g.5gb"], whole["possible"]["3g.20gb"]) == (1, 7, 2)


@pytest.mark.usefixtures("pods")
def test_as_a_plugin_of_kubectl(cluster: Any, tmp_path: Path) -> None:
    plugin = tmp_path / "kubectl-tessera"
    plugin.write_text(f"#!{sys.executable}\nimport sys\nfrom tessera.cli.main import main\nsys.exit(main())\n")
    plugin.chmod(0o755)
    env = {**cluster.env, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def kubectl(*arguments: str) -> Run:
        return subprocess.run(["kubectl", *arguments], env=env, capture_output=True, text=True, timeout=180)

    assert kubectl("tessera", "map", "node-2").stdout == cluster.tessera("map", "node-2")
    wrong = kubectl("tessera", "map", "--bad")
    error = failed(wrong)
    for fact in ("error: ", "No such option '--bad'", "see 'kubectl tessera map --help'"):
        assert fact in error


def test_each_nodes_listing(cluster: Any) -> None:
    assert cluster.tessera("lab", "smi", "node-2").count("GPU ") == 3
    assert cluster.tessera("lab", "smi", "node-3") == "No devices were found\n"
    assert cluster.tessera("lab", "smi", "node-9", fails=True) == (
        "error: no node 'node-9'; there are node-1, node-2, node-3\n"
    )


@pytest.mark.parametrize("name", PRELOADED)
def test_what_the_server_of_commands_imports_exists(name: str) -> None:
    """Else each command and each lab of the tests imports it again."""
    assert importlib.util.find_spec(name) is not None
