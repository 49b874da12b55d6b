"""The experiments on a cluster that is there: whose numbers they are, what is told meanwhile, that nothing is lost."""

import json
from pathlib import Path

import pytest
from tests.lab.cli.bench.conftest import Leaping, Serving
from tests.support.listening_cluster import UNSCHEDULABLE

from tessera.cli.main import main
from tessera_lab.cli.bench.results import lines
from tessera_lab.experiments.results import Samples

Told = pytest.CaptureFixture[str]
N = (1.0, 2.0)

POLICY = ["--policy", "examples/drivers/cluster-policy.yaml"]
RESET = ["bench", "policy-reset", "--node", "node-1", *POLICY, "--yes", "--repeat", "2"]
AUTOSCALE = ["bench", "autoscale", "--name", "theirs", "--repeat", "2"]
#: No answer of the server takes as long. Where nothing more will come, the test's time leaps.
TIMEOUT = ["--timeout", "55s"]
LISTS = "waits until node node-1 lists nvidia.com/gpu"


@pytest.mark.parametrize("command", [RESET, AUTOSCALE], ids=["policy-reset", "autoscale"])
@pytest.mark.parametrize("runtime", ["containerd://1.7.1", "simulated://1.0"])
def test_what_a_lab_measured_is_labelled_so_and_what_a_machine_did_is_not(
    command: list[str], runtime: str, serving: Serving, tmp_path: Path, capsys: Told
) -> None:
    file, simulated = tmp_path / "results.json", runtime.startswith("simulated")
    assert main([*command, "--json", str(file), "--kubeconfig", serving(runtime)]) == 0
    (written,) = json.loads(file.read_bytes())["results"]
    assert (written["simulated"], len(written["samples"])) == (simulated, 2)
    assert capsys.readouterr().out.splitlines()[0].endswith("(simulated)") is simulated
    assert main(["provisioning", "report", "--experiment", str(file)]) == 0
    assert ("(as installed, simulated)" in capsys.readouterr().out) is simulated


@pytest.mark.parametrize("command", [RESET, AUTOSCALE], ids=["policy-reset", "autoscale"])
def test_nothing_is_measured_where_time_leaps(command: list[str], serving: Serving, capsys: Told) -> None:
    assert main([*command, "--kubeconfig", serving("simulated://1.0", leaps=True)]) == 1
    told = capsys.readouterr().err
    assert "this cluster is a lab on virtual time" in told
    assert f"tessera bench {command[1]} --lab" in told


def test_the_first_sample_need_not_have_pulled_anything(serving: Serving, capsys: Told) -> None:
    assert main([*RESET, "--kubeconfig", serving()]) == 0
    (remark,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  the first sample "))
    for fact in ("may pull images", "later ones find on the node", "it is shown"):
        assert fact in remark


def test_where_no_node_comes_the_scheduler_is_quoted_and_the_wait_times_out(
    serving: Serving, leaping: Leaping, capsys: Told
) -> None:
    """The scheduler may speak before the wait begins or after."""
    told = leaping("no node fits")
    assert main([*AUTOSCALE, *TIMEOUT, "--kubeconfig", serving(scales=False)]) == 1
    first, second, *_, failed = told.getvalue().splitlines()
    waits = "theirs: waits until pod default/tessera-bench runs"
    assert {first, second} == {waits, f"theirs: no node fits: {UNSCHEDULABLE}"}
    assert failed.startswith("error: pod default/tessera-bench runs: not within ")
    assert failed.endswith(UNSCHEDULABLE)
    assert capsys.readouterr().out == ""


def test_what_was_measured_before_a_failure_is_kept(serving: Serving, tmp_path: Path, capsys: Told) -> None:
    """A policy that changes nothing ends the experiment; the one before it was measured."""
    other = tmp_path / "slow.yaml"
    other.write_text("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: BAD}\nspec: {}\n")
    file = tmp_path / "results.json"
    assert main([*RESET, "--policy", str(other), "--json", str(file), "--kubeconfig", serving()]) == 1
    assert [each["scenario"] for each in json.loads(file.read_bytes())["results"]] == ["cluster-policy"]
    assert "cluster-policy" in capsys.readouterr().out


def test_a_first_sample_after_which_nothing_came_is_kept(
    serving: Serving, leaping: Leaping, tmp_path: Path, capsys: Told
) -> None:
    leaping(LISTS, times=2)
    file = tmp_path / "results.json"
    run = [*RESET, *TIMEOUT, "--json", str(file)]
    assert main([*run, "--kubeconfig", serving(follows=1)]) == 1
    (written,) = json.loads(file.read_bytes())["results"]
    assert (written["first"] >= 0, written["samples"]) == (True, [])
    row = capsys.readouterr().out.splitlines()[2]
    assert row.split() == ["cluster-policy", "as", "installed", "0", f"{written['first']:.0f}"]
    assert main(["provisioning", "report", "--experiment", str(file)]) == 0


def test_a_scenario_of_which_only_the_first_sample_came_is_compared_with_none() -> None:
    """Neither has it a mean."""
    none, two = (Samples(experiment="policy-reset", scenario=s, first=9.0, samples=n) for s, n in (("a", ()), ("b", N)))
    _title, _head, first, second, note = lines([none, two], {}, {})
    assert (first.split()[-2:], second.split()[3:6]) == (["0", "9"], ["2", "9", "1.5"])
    assert note.endswith("shown and not counted")


def test_why_an_experiment_failed_is_said_last_also_where_its_samples_cannot_be_written(
    serving: Serving, leaping: Leaping, capsys: Told
) -> None:
    told = leaping(LISTS, times=2)
    run = [*RESET, *TIMEOUT, "--json", "/dev/full"]
    assert main([*run, "--kubeconfig", serving(follows=1)]) == 1
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["results"][0]["first"] >= 0
    unwritten, failed = told.getvalue().splitlines()[-2:]
    assert unwritten.startswith("error: /dev/full ")
    for fact in ("not be written", "No space left on device"):
        assert fact in unwritten
    assert failed.startswith("error: node node-1 lists nvidia.com/gpu: not within ")


def test_samples_that_cannot_be_written_are_printed(serving: Serving, capsys: Told) -> None:
    assert main([*RESET, "--json", "/dev/full", "--kubeconfig", serving()]) == 1
    told = capsys.readouterr()
    printed = json.loads(told.out[told.out.index("{") :])
    assert len(printed["results"][0]["samples"]) == 2
    for fact in ("error: /dev/full", "not be written", "No space left on device"):
        assert fact in told.err


@pytest.mark.parametrize("command", [["autoscale", "--lab"], ["policy-reset", "--lab"], ["autoscale", "--name", "x"]])
def test_a_file_that_cannot_be_is_refused_before_anything_is_measured(command: list[str], capsys: Told) -> None:
    assert main(["bench", *command, "--json", "/nonexist/x"]) == 1
    told = capsys.readouterr()
    for fact in ("/nonexist/x cannot be written", "there is no folder /nonexist", "make it first"):
        assert fact in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)
