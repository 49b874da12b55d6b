"""``tessera bench``: what is simulated says so, results are written for the report, and nothing begins by mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.cli.main import main
from tessera_lab.cli.bench.experiment import format_attribution
from tessera_lab.cli.bench.results import lines
from tessera_lab.experiments.results import Samples
from tessera_lab.experiments.runs import PERIOD, UNEXPLAINED, Attribution, WaitSaving
from tessera_lab.simulation.cost_model import CALIBRATED

Told = pytest.CaptureFixture[str]

PRECOMPILED = Path("examples/drivers/cluster-policy.yaml")
LAB = ["--lab", "--scenario", "precompiled-public", "--repeat", "2"]


@pytest.mark.soak
def test_a_policy_reset_in_the_lab_says_whose_numbers_stand_there(tmp_path: Path, capsys: Told) -> None:
    assert main(["bench", "policy-reset", *LAB, "--json", str(tmp_path / "results.json")]) == 0
    title, head, reference, ours, first, contrast, *whose = capsys.readouterr().out.splitlines()
    assert title.endswith("(simulated)")
    assert head.split()[-3:] == ["Red", "Hat's", "mean"]
    assert "reference operator" in reference
    assert " 132 (" in reference
    assert ours.split()[-1] == "132", "Tessera's line is compared with nobody's measurement"
    assert first == "  the first sample pulls images; it is shown and not counted"
    assert "precompiled-public (reference) -> precompiled-public (tessera): -" in contrast
    assert "No card was measured." in whose[-1]
    written = json.loads((tmp_path / "results.json").read_bytes())
    assert all(each["simulated"] and len(each["samples"]) == 2 for each in written["results"])


@pytest.mark.soak
def test_the_report_takes_what_was_written(tmp_path: Path, capsys: Told) -> None:
    file = tmp_path / "results.json"
    assert main(["bench", "autoscale", *LAB, "--operator", "tessera", "--json", str(file)]) == 0
    capsys.readouterr()
    assert main(["provisioning", "report", "--experiment", str(file)]) == 0
    assert "precompiled-public (tessera, simulated)" in capsys.readouterr().out


def one(operator: str, *samples: float, first: float | None = None) -> Samples:
    return Samples(
        experiment="policy-reset", scenario="built", operator=operator, samples=samples, first=first, simulated=True
    )


def attributed(**seconds: float) -> list[str]:
    savings = tuple(
        WaitSaving(wait={"rest": UNEXPLAINED, "period": PERIOD}.get(name, name), seconds=each)
        for name, each in seconds.items()
    )
    told = Attribution(reference=one("reference", 300), ours=one("tessera", 290), savings=savings)
    return list(format_attribution(told))


def test_saved_seconds_are_listed_and_a_zero_has_no_minus() -> None:
    assert attributed(wait=12.0, overlap=-0.04, rest=0.2, period=-2.2) == [
        "  built: where 10.0 s come from (simulated)",
        "       12.0 s  wait",
        "        0.0 s  overlap",
        f"        0.2 s  {UNEXPLAINED}",
        f"       -2.2 s  {PERIOD}",
        "       10.0 s  together",
    ]


def test_a_step_that_saved_less_than_nothing_is_explained() -> None:
    assert attributed(wait=-3.0, overlap=13.0)[-1].startswith(
        "  below 0: without that wait, a periodic check came later"
    )


def test_no_interval_of_durations_begins_below_zero() -> None:
    (row,) = [line for line in lines([one("as installed", 1.2, 1.8, first=1.0)], {}, {}) if "as installed" in line]
    assert "   0.0 to 5.3" in row


@pytest.mark.parametrize("repeat", ["1", pytest.param("5", marks=pytest.mark.soak)])
def test_the_same_seed_gives_the_same_samples_in_every_process(tmp_path: Path, repeat: str) -> None:
    """Random samples must not depend on the order of sets, which differs between processes."""
    command = ["bench", "policy-reset", *LAB[:1], "--operator", "reference", "--scenario", "built", "--repeat", repeat]
    here, other = tmp_path / "here.json", tmp_path / "other.json"
    assert main([*command, "--json", str(here)]) == 0
    order = "0" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    subprocess.run(
        [sys.executable, "-m", "tessera", *command, "--json", str(other)],
        env={**os.environ, "PYTHONHASHSEED": order},
        check=True,
        capture_output=True,
        timeout=300,
    )
    assert here.read_bytes() == other.read_bytes()


def test_every_cost_has_a_source_and_what_was_calibrated_is_told(capsys: Told) -> None:
    assert main(["bench", "costs", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["simulated"] is True
    assert all(each["source"] and each["meaning"] for each in told["costs"])
    assert CALIBRATED in {each["source"] for each in told["costs"]}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["policy-reset"], "give --node and at least one --policy"),
        (["policy-reset", "--node", "n", "--policy", str(PRECOMPILED)], "add --yes if no workload needs the cards"),
        (["policy-reset", "--node", "n", "--policy", "deploy/agent.yaml", "--yes"], "is not a ClusterPolicy"),
        (
            ["policy-reset", "--node", "n", "--policy", str(PRECOMPILED), "--policy", str(PRECOMPILED), "--yes"],
            "two --policy files have the same name",
        ),
        (["autoscale"], "give the results a name with --name"),
        (["autoscale", "--name", "x", "--workload", str(PRECOMPILED)], "is not a Pod"),
    ],
)
def test_nothing_begins_by_mistake(arguments: list[str], says: str, capsys: Told) -> None:
    assert main(["bench", *arguments]) == 1
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1
