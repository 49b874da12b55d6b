"""``tessera install`` as a command: what it prints, and what it refuses before it asks any cluster."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.objects import Objects, serving

from tessera.api.names import NODE_GROUPS_KEY, NODE_GROUPS_MAP
from tessera.cli.main import main

ARTICLE = """\
mig: {strategy: mixed}
driver: {version: "510.47.03"}
migManager: {config: {name: nvidia-mig-config}}
devicePlugin: {config: {name: nvidia-time-slicing-config}}
"""
POLICY = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: cluster-policy}
spec: {mig: {strategy: single}, devicePlugin: {config: {name: plugin-config, default: any}}}
status: {namespace: gpu-operator}
"""


def arguments(text: str) -> list[str]:
    (daemon_set,) = (
        each
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each["kind"] == "DaemonSet" and each["metadata"]["name"] == "tessera-agent"
    )
    found: list[str] = daemon_set["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


@pytest.fixture
def values(tmp_path: Path) -> Path:
    file = tmp_path / "values.yaml"
    file.write_text(ARTICLE)
    return file


def test_manifests_are_printed_and_notes_stand_apart(values: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--values", str(values), "-n", "kube-system", "-o", "yaml"]) == 0
    told = capsys.readouterr()
    assert "--sharing-config=kube-system/nvidia-time-slicing-config" in arguments(told.out)
    assert "--mig-strategy=mixed" in arguments(told.out)
    assert told.err.splitlines()[0].startswith("note: migManager.config.default: not set: ")


def test_without_values_nothing_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--image", "example.com/tessera:2", "-o", "yaml"]) == 0
    told = capsys.readouterr()
    assert "image: example.com/tessera:2" in told.out
    assert told.err == ""


@pytest.mark.parametrize("image", [f"registry.local:5000/tessera@sha256:{'a' * 64}", f"a/b:1@sha256:{'0' * 64}"])
def test_an_image_may_be_named_by_its_digest(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--image", image, "-o", "yaml"]) == 0
    assert capsys.readouterr().out.count(f"image: {image}\n") > 2


@pytest.mark.parametrize("image", ["registry.local/tessera@sha256:1", "UPPER/x y", "a:", ""])
def test_an_image_that_no_kubelet_takes_is_refused(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--image", image, "-o", "yaml"]) == 1
    assert "Invalid value for '--image': " in capsys.readouterr().err


@pytest.mark.parametrize("listed", [False, True])
def test_a_cluster_policy_from_kubectl_knows_its_namespace(
    listed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document: Any = yaml.load(POLICY, yaml.CSafeLoader)
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [document]} if listed else document)
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["install", "--values", "-", "-o", "yaml"]) == 0
    found = arguments(capsys.readouterr().out)
    assert {"--sharing-config=gpu-operator/plugin-config", "--sharing-default=any"} <= set(found)


def test_mistakes_are_told_with_their_paths_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("migManager: {enabled: 1}\nmig: {strategy: two}\n")
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        f"error: {file} has mistakes; nothing was changed:",
        "  migManager.enabled: must be true or false, not 1",
        '  mig.strategy: must be none, single or mixed, not "two"',
    ]


def test_what_nvidias_chart_ignores_is_told_and_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("tolerations: []\nmig: {strategy: mixed}\n")
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 0
    told = capsys.readouterr()
    assert "--mig-strategy=mixed" in told.out
    assert (
        "tolerations: no effect: unknown, also to NVIDIA's operator; did you mean daemonsets.tolerations?" in told.err
    )


def test_several_policies_are_not_guessed_among(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policies.yaml"
    file.write_text(yaml.safe_dump({"kind": "List", "items": [yaml.load(POLICY, yaml.CSafeLoader)] * 2}))
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 1
    assert "must be a values file or a ClusterPolicy" in capsys.readouterr().err


def test_an_image_that_nobody_can_pull_is_refused_before_any_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = Objects()
    there.found = {"deployments": []}
    with serving(there, tmp_path) as kubeconfig:
        for arguments_ in ([], ["--dry-run"]):
            assert main(["install", *arguments_, "--kubeconfig", str(kubeconfig)]) == 1
            told = capsys.readouterr()
            assert told.out == ""
            assert told.err.startswith("error: nobody has published the image tessera, so no node can pull it; ")
            assert "podman build -t REGISTRY/tessera:" in told.err
            assert "tessera install --image REGISTRY/tessera:" in told.err


def test_where_there_is_no_cluster_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main(["install", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments_", [["install", "-o", "yaml"], ["agent", "--node-name", "n"]], ids=["install", "agent"]
)
def test_cards_that_nobody_can_simulate_are_refused(arguments_: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments_, "--simulate", "4xA10-40GB"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert 'no GPU model "A10-40GB"; did you mean "A100-40GB"?' in told.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("192.0.2.1", "is a single address; write a CIDR, as in 192.0.2.0/28"),
        ("192.0.2.1/24", '"192.0.2.1/24" is not a network; write a CIDR'),
        ("the-api-server", '"the-api-server" is not a network; write a CIDR'),
    ],
)
def test_addresses_that_are_no_network_are_refused(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "-o", "yaml", "--api-server", text]) != 0
    told = capsys.readouterr()
    assert told.out == ""
    assert words in " ".join(told.err.split())


def test_the_help_says_what_is_kept_of_the_run_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "each run sets all options again" in told
    assert "give it with --reuse" in told


def of_kind(text: str, kind: str) -> list[Any]:
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each["kind"] == kind]


def test_values_that_name_a_driver_become_a_cluster_policy_the_last_of_all(
    values: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install", "--values", str(values), "-n", "kube-system", "-o", "yaml"]) == 0
    printed = list(yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader))
    assert (printed[-1]["kind"], printed[-1]["metadata"]["name"]) == ("ClusterPolicy", "cluster-policy")
    assert printed[-1]["spec"]["driver"]["version"] == "510.47.03"


def test_no_drivers_makes_none_and_says_that_the_hosts_have_theirs(
    values: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install", "--values", str(values), "--no-drivers", "-o", "yaml"]) == 0
    told = capsys.readouterr()
    assert of_kind(told.out, "ClusterPolicy") == []
    (note,) = (line for line in told.err.splitlines() if line.startswith("note: driver: "))
    for fact in ("no effect", "drivers are used as the hosts have them"):
        assert fact in note


def test_drivers_can_be_asked_for_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--drivers", "-o", "yaml"]) == 0
    (found,) = of_kind(capsys.readouterr().out, "ClusterPolicy")
    assert found["metadata"]["annotations"] == {"tessera.dev/drivers": "managed"}
    assert found["spec"]["driver"]["repository"] == "nvcr.io/nvidia"


def test_drivers_that_the_file_declines_are_not_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("driver: {enabled: false}\n")
    assert main(["install", "--values", str(file), "--drivers", "-o", "yaml"]) == 1
    assert "driver.enabled: is false, while --drivers asks for drivers" in capsys.readouterr().err


def test_the_articles_policy_is_applied_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[3] / "examples" / "drivers" / "cluster-policy.yaml"
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 0
    (found,) = of_kind(capsys.readouterr().out, "ClusterPolicy")
    assert found["spec"] == yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]


GROUPS = "groups:  # ours\n  - {name: a, selector: {pool: a}, cards: {model: A100-40GB, count: 8}}\n"


def test_a_file_of_node_groups_becomes_the_config_map_that_controller_and_webhook_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "groups.yaml"
    file.write_text(GROUPS)
    assert main(["install", "--node-groups", str(file), "-o", "yaml"]) == 0
    objects = list(yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader))
    (made,) = (each for each in objects if each["metadata"]["name"] == NODE_GROUPS_MAP)
    assert (made["kind"], made["metadata"]["namespace"]) == ("ConfigMap", "tessera-system")
    assert made["data"] == {NODE_GROUPS_KEY: GROUPS}
    assert main(["install", "-o", "yaml"]) == 0
    without = list(yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader))
    assert [each for each in objects if each != made] == without


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("groups: [{name: a, selector: {pool: a}, cards: {model: A1000}}]", 'group "a": '),
        ("groups: [{name: a, selector: {}, cards: {model: T4}}]", "selector"),
        ("groups: [{name: a, selector: {pool: a}, cards: {model: T4, kind: whole}, size: 4}]", "size"),
        ("groups: [{name: a, selector: {a b/c d: x}, cards: {model: A100-40GB}}]", 'group "a": selector: "a b/c d": '),
        ("- {name: a}", "; correct the file"),
        ("a: [", "line 1"),
        ("", 'names no group; write "groups:" and a list, or leave --node-groups out'),
        ("groups: []", 'names no group; write "groups:" and a list'),
    ],
)
def test_a_wrong_file_of_node_groups_is_refused_by_its_name_and_nothing_is_printed(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "groups.yaml"
    file.write_text(text)
    assert main(["install", "--node-groups", str(file), "-o", "yaml"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith(f"error: {file}: ")
    assert words in line


def test_a_file_of_repairs_with_a_mistake_changes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (file := tmp_path / "mine.yaml").write_text("reboot: annotation", encoding="utf-8")
    assert main(["install", "--repairs", str(file), "-o", "yaml"]) == 1
    told = capsys.readouterr().err
    assert f"{file}: rebootAnnotation: missing; reboot: annotation needs it" in told
    assert "nothing was changed" in told


def test_two_files_cannot_both_be_standard_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--values", "-", "--node-groups", "-", "-o", "yaml"]) == 1
    assert "only one of --values, --node-groups and --repairs can be standard input" in capsys.readouterr().err
