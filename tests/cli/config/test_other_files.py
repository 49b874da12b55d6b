"""`tessera config check` is given what is no file of settings: it says whose it is, and never that it is right."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.cost import run_within

from tessera.cli.config.files import check_file
from tessera.cli.config.parts import PartReport
from tessera.cli.main import main
from tessera.limits import MIG_LAYOUTS, SETTINGS_MISTAKES, SETTINGS_TEXT, SETTINGS_VALUES

#: The file that mig-parted's package installs, shortened (deployments/systemd/hooks-default.yaml).
HOOKS = """\
version: v1
hooks:
  apply-start:
  - workdir: "/etc/nvidia-mig-manager"
    command: "/bin/bash"
    args: ["-x", "-c", "source hooks.sh; persist-config ${MIG_PARTED_SELECTED_CONFIG}"]
  pre-apply-mode:
  - command: "/bin/bash"
    args: ["-x", "-c", "source hooks.sh; stop-services"]
"""
#: As in the example of mig-parted (deployments/gpu-operator).
CLIENTS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: gpu-clients
data:
  clients.yaml: |
    version: v1
    systemd-services:
    - dcgm.service
"""
CHART = """\
config:
  map:
    default: |-
      version: v1
      flags: {migStrategy: none}
    wrong: |-
      version: v1
      flag: {}
migStrategy: mixed
failOnInitError: null
gfd: {enabled: true}
"""
CLUSTER = "apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nmetadata: {name: gpu-cluster}\nspec: {draDriver: {}}\n"


def only(text: str) -> PartReport:
    (part,) = check_file(text, [])
    return part


@pytest.mark.parametrize("text", ["", " \n\n", "---\n---\n", "# only a comment\n", "{}", "null"])
def test_an_empty_file_is_wrong(text: str) -> None:
    part = only(text)
    assert part.verdict == "wrong"
    assert "is empty" in part.problems[0]


@pytest.mark.parametrize(
    "text",
    [
        'Error from server (NotFound): configmaps "my-profiles" not found\n',
        'error: the server doesn\'t have a resource type "clusterpolicy"\n',
        "No resources found in gpu namespace.\n",
        "The connection to the server 10.0.0.1:6443 was refused - did you specify the right host or port?\n",
        "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout\n",
        'E1122 18:00:00.000000    12 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API"\n',
    ],
)
def test_what_kubectl_says_instead_of_an_object_is_wrong(text: str) -> None:
    part = only(text)
    assert part.verdict == "wrong"
    assert part.problems[0].startswith(f'is a message of kubectl, not an object: "{text[:30]}')
    assert part.problems[0].endswith("correct that command first")


def test_an_answer_of_the_api_server_is_wrong() -> None:
    part = only('{"kind": "Status", "status": "Failure", "message": "configmaps \\"x\\" not found", "code": 404}')
    assert part.verdict == "wrong"
    assert "is an error of the API server, not an object" in part.problems[0]
    assert "not found" in part.problems[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: List\nitems: 5\n", "items: must be a list of objects, not 5"),
        ("kind: List\nitems: text\n", 'items: must be a list of objects, not "text"'),
        ("kind: List\n", "items: must be a list of objects, not nothing"),
        ("kind: ConfigMapList\nitems: []\n", "items: is empty; kubectl found no object"),
        ("kind: List\nitems: [5]\n", "items[0]: must be an object with a kind other than List"),
        ("kind: List\nitems: [{kind: List, items: []}]\n", "items[0]: must be an object with a kind other than List"),
        ("kind: [a]\n", "kind: must be text"),
        ("kind: Configmap\ndata: {}\n", "did you mean ConfigMap?"),
        ("kind: ClusterPolicies\n", "did you mean ClusterPolicy?"),
    ],
)
def test_a_list_or_manifest_that_cannot_be_read_is_wrong(text: str, said: str) -> None:
    assert said in only(text).problems[0]


def test_a_list_of_config_maps_is_read() -> None:
    text = json.dumps({"kind": "List", "items": [{"kind": "ConfigMap", "data": {"a": "version: v1\n"}}]})
    assert [(part.kind, part.verdict) for part in check_file(text, [])] == [("sharing profile", "right")]


def test_a_profile_without_content_in_a_config_map_shares_nothing_as_on_a_node() -> None:
    part = only("kind: ConfigMap\nmetadata: {name: m}\ndata: {a: ''}\n")
    assert (part.name, part.verdict, part.means) == ("m/a", "right", ("nothing is shared",))


@pytest.mark.parametrize(
    ("text", "kind"),
    [(HOOKS, "hooks of mig-parted"), (CLIENTS, "clients of the MIG manager")],
    ids=["hooks", "clients"],
)
def test_files_of_the_mig_manager_are_named_and_not_used(
    text: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = only(text)
    assert (part.kind, part.verdict, part.problems) == (kind, "not used", ())
    assert "not needed" in part.notices[0]
    file = tmp_path / "file.yaml"
    file.write_text(text)
    assert main(["config", "check", str(file)]) == 0
    assert f"{kind}, not used" in capsys.readouterr().out


def test_values_of_the_device_plugin_chart_are_refused_and_their_profiles_judged() -> None:
    chart, good, bad = check_file(CHART, [])
    assert (chart.kind, chart.verdict) == ("values of the device-plugin chart", "wrong")
    assert "devicePlugin.config.name" in chart.problems[0]
    assert (good.name, good.kind, good.verdict) == ("file/config.map/default", "sharing profile", "right")
    assert bad.problems[0].startswith("flag: unknown; did you mean flags?")


def test_a_gpu_cluster_is_refused() -> None:
    part = only(CLUSTER)
    assert (part.name, part.kind, part.verdict) == ("gpu-cluster", "GPUCluster", "wrong")
    assert "Write a ClusterPolicy" in part.problems[0]


@pytest.mark.parametrize("write", [json.dumps, lambda d: "\n".join(f"{key}: {value}" for key, value in d.items())])
def test_60_000_keys_are_refused_at_once(write: Callable[[dict[str, int]], str]) -> None:
    text = write({f"k{n}": 1 for n in range(60_000)})
    part = run_within(3.0, lambda: only(text))
    assert f"{SETTINGS_VALUES}" in part.problems[0]


@pytest.mark.parametrize("profiles", [0, 3])
def test_5_000_layouts_are_refused_at_once(profiles: int) -> None:
    entry = {
        "devices": "all",
        "mig-enabled": bool(profiles),
        "mig-devices": {f"{n + 1}g.5gb": 1 for n in range(profiles)},
    }
    text = json.dumps({"version": "v1", "mig-configs": {f"l{n}": [entry] for n in range(5_000)}})
    part = run_within(3.0, lambda: only(text))
    assert f"{SETTINGS_VALUES}" in part.problems[0]


def test_the_number_of_layouts_has_a_limit() -> None:
    layouts = {f"l{n}": [{"devices": "all", "mig-enabled": False}] for n in range(MIG_LAYOUTS + 1)}
    assert only(json.dumps({"version": "v1", "mig-configs": layouts})).problems == (
        "mig-configs: has 501 layouts; a file has at most 500 layouts",
    )


def test_the_text_has_a_limit() -> None:
    assert f"{SETTINGS_TEXT}" in only("a: " + "x" * SETTINGS_TEXT).problems[0]


def test_of_many_mistakes_the_first_are_told() -> None:
    part = only("version: v1\n" + "\n".join(f"key{n}: 1" for n in range(5_000)))
    assert len(part.problems) == SETTINGS_MISTAKES + 1
    assert part.problems[-1] == "4,900 more mistakes are not listed"
