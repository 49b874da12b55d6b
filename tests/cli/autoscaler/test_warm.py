"""``tessera autoscaler warm``: pools and their placeholders."""

import json
from pathlib import Path

import pytest
import yaml
from tests.cli.objects import Obj, Objects, serving

from tessera.cli.main import main

Told = pytest.CaptureFixture[str]
RATES = ["--pods-per-hour", "6", "--time-to-gpu", "9m", "--node-price", "0.5"]


def warm(*arguments: str, told: Told) -> str:
    """Runs the command; returns its output."""
    assert main(["autoscaler", "warm", *RATES, *arguments]) == 0
    return told.readouterr().out


def test_the_smallest_pool_is_marked_among_its_neighbours(capsys: Told) -> None:
    told = warm(told=capsys)
    assert told.startswith("6 pods an hour, a node takes 9m\n")
    (chosen,) = (line for line in told.splitlines() if line.startswith(">"))
    assert chosen.split()[:3] == [">", "4", "1.3%"]


def test_a_price_for_waiting_finds_the_cheapest_pool(capsys: Told) -> None:
    told = json.loads(warm("--wait-price", "20", "-o", "json", told=capsys))
    costs = {each["nodes"]: each["idle_cost"] + each["wait_cost"] for each in told["around"]}
    assert costs[told["chosen"]["nodes"]] == min(costs.values())


def test_the_time_may_come_from_a_file(tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "x").write_text("group,ready\na,369\nb,1000\n")
    arguments = ["autoscaler", "warm", "--pods-per-hour", "6", "--samples", str(tmp_path / "x"), "--group"]
    assert main([*arguments, "a"]) == 0
    assert "a node takes 6m9s" in capsys.readouterr().out
    assert main([*arguments, "c"]) == 1
    assert "no times were measured" in capsys.readouterr().err


def test_what_was_measured_in_the_lab_is_marked_in_every_form(tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "x").write_text("group,ready,simulated\na,369,true\nb,1000,\n")
    arguments = ["autoscaler", "warm", "--pods-per-hour", "6", "--samples", str(tmp_path / "x"), "--group"]

    def said(group: str, *others: str) -> tuple[str, str]:
        assert main([*arguments, group, *others]) == 0
        told = capsys.readouterr()
        return told.out, told.err

    mark = "simulated: these times come from the lab"
    assert said("a")[0].startswith(f"6 pods an hour, a node takes 6m9s   ({mark})\n")
    assert json.loads(said("a", "-o", "json")[0])["simulated"] is True
    placeholders, warning = said("a", "-o", "placeholders")
    assert placeholders.startswith(f"# {mark}\n")
    assert warning == f"warning: {mark}; do not size a real pool by them\n"
    assert "simulated" not in said("b")[0]
    assert json.loads(said("b", "-o", "json")[0])["simulated"] is False
    assert said("b", "-o", "placeholders")[1] == ""


def test_placeholders_are_a_class_and_a_deployment_that_stand_by_themselves(capsys: Told) -> None:
    text = warm("--gpus-per-node", "4", "--selector", "pool=gpu", "-o", "placeholders", told=capsys)
    assert "&id" not in text
    priority, deployment = yaml.safe_load_all(text)
    assert (priority["kind"], priority["value"]) == ("PriorityClass", -10)
    spec = deployment["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"


class Served(Objects):
    """A server with these kinds of an autoscaler's group; None without the group."""

    def __init__(self, kinds: list[str] | None) -> None:
        super().__init__()
        self.kinds = kinds

    def answer(self, path: str) -> tuple[int, Obj]:
        if path == "/apis/autoscaling.x-k8s.io/v1beta1" and self.kinds is not None:
            return 200, {"kind": "APIResourceList", "resources": [{"name": each} for each in self.kinds]}
        return super().answer(path)


@pytest.mark.parametrize(
    ("kinds", "made"),
    [
        (["capacitybuffers", "capacitybuffers/status"], ["PodTemplate", "CapacityBuffer"]),
        (["provisioningrequests"], ["PriorityClass", "Deployment"]),
        (None, ["PriorityClass", "Deployment"]),
    ],
)
def test_a_pool_is_a_capacity_buffer_where_the_cluster_serves_them(
    kinds: list[str] | None, made: list[str], tmp_path: Path, capsys: Told
) -> None:
    with serving(Served(kinds), tmp_path) as kubeconfig:
        text = warm("-o", "pool", "--selector", "pool=gpu", "--kubeconfig", str(kubeconfig), told=capsys)
    first, second = yaml.safe_load_all(text)
    assert [first["kind"], second["kind"]] == made
    if made[1] == "CapacityBuffer":
        assert second["spec"] == {
            "provisioningStrategy": "buffer.x-k8s.io/active-capacity",
            "podTemplateRef": {"name": first["metadata"]["name"]},
            "replicas": 4,
        }
        assert first["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
        assert "priorityClassName" not in first["template"]["spec"]


@pytest.mark.parametrize(
    ("priority", "facts"),
    [
        ("-1000", ("the autoscaler makes no node", "priority -1000", "cutoff is -10")),
        ("0", ("a pod with priority 0 or none", "cannot replace a placeholder")),
        ("-5", ()),
    ],
)
def test_a_priority_that_does_nothing_is_told(priority: str, facts: tuple[str, ...], capsys: Told) -> None:
    assert main(["autoscaler", "warm", *RATES, "-o", "placeholders", "--priority", priority]) == 0
    told = capsys.readouterr()
    for fact in facts:
        assert fact in told.err
    assert bool(told.err) is bool(facts)
    assert f"value: {priority}\n" in told.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--selector", "gpu", "-o", "placeholders"], '--selector "gpu" does not have the form LABEL=VALUE'),
        (["--selector", "gpu"], '--selector "gpu" does not have the form LABEL=VALUE'),
        (["--pods-per-hour", "nan"], "'--pods-per-hour': nan is not a finite number"),
        (["--node-price", "inf"], "'--node-price': inf is not a finite number"),
        (["--max-waiting-share", "nan"], "'--max-waiting-share': nan is not a finite number"),
        (["--pods-per-hour", "0"], "0.0 is not in the range"),
        (["--pods-per-hour", "100000"], "need too many warm nodes: at most 1,000 nodes"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], says: str, capsys: Told) -> None:
    assert main(["autoscaler", "warm", *RATES, *arguments]) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
