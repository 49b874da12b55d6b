"""``tessera autoscaler advise`` on files."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.cli.autoscaler.advice_text import advice_lines
from tessera.cli.main import main
from tessera.provisioning.history import encode_record
from tessera.provisioning.milestones import Milestone, ProvisioningRecord
from tessera.provisioning.timer_advice import unmanaged_node_findings

ROWS = "group,provision,startup,ready\n" + "".join(f"gpu,{540 + n},{390 + n},{360 + n}\n" for n in range(20))
FIVE = ["--max-node-provision-time", "5m", "--unneeded-time", "300"]

Told = pytest.CaptureFixture[str]


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Twenty nodes with built drivers, as somebody might have measured them."""
    file = tmp_path / "times.csv"
    file.write_text(ROWS)
    return str(file)


def advised(*arguments: str, told: Told) -> str:
    """Runs the command; returns its output."""
    assert main(["autoscaler", "advise", *arguments]) == 0
    return told.readouterr().out


def test_the_table_ranks_the_label_above_timers_and_says_what_the_sample_supports(rows: str, capsys: Told) -> None:
    told = advised("--samples", rows, "--no-accelerator-label", *FIVE, told=capsys)
    numbered = [line.strip() for line in told.splitlines() if line.strip()[:2] in {"1.", "2.", "3.", "4.", "5."}]
    assert numbered[0].startswith("1. the accelerator label is missing")
    for line, facts in (
        (numbered[1], ("2. replace loop: ", "100% of its nodes", "longer than maxNodeProvisionTime 5m")),
        (numbered[2], ("3. replace loop: ", "100% of its nodes", "longer than the 5m", "an empty node")),
        (told, ("20 nodes were measured", "from request to usable card", "cannot support p99", "needs 299")),
    ):
        for fact in facts:
            assert fact in line
    assert "p86 (too few for p99)" in told


def test_json_has_bounds_timers_loops_and_findings(rows: str, capsys: Told) -> None:
    told = json.loads(advised("--samples", rows, "--accelerator-label", *FIVE, "-o", "json", told=capsys))
    (group,) = told["groups"]
    assert group["current"]["max_node_provision"] == 300
    assert group["loop"]["late"] == 1
    assert group["advised_loop"]["late"] == 0
    assert group["advice"]["timers"]["max_node_provision"] > 560
    assert told["cluster"] == []


def test_each_autoscaler_has_its_own_words(rows: str, capsys: Told) -> None:
    openshift = yaml.safe_load(advised("--samples", rows, "--accelerator-label", "-o", "openshift", told=capsys))
    assert openshift["spec"]["maxNodeProvisionTime"] == "15m"
    assert openshift["spec"]["scaleDown"]["enabled"] is True
    capi = yaml.safe_load(advised("--samples", rows, "--accelerator-label", "-o", "capi", told=capsys))
    assert capi["cluster.x-k8s.io/autoscaling-options-maxnodeprovisiontime"] == "15m"
    flags = advised("--samples", rows, "--accelerator-label", "-o", "flags", told=capsys)
    assert "--max-node-provision-time=15m\n" in flags
    pool = yaml.safe_load(advised("--samples", rows, "-o", "karpenter", told=capsys))
    assert (pool["kind"], pool["metadata"]["name"]) == ("NodePool", "gpu")


@pytest.fixture
def one(tmp_path: Path) -> str:
    """A single, quick node."""
    file = tmp_path / "one.csv"
    file.write_text("group,provision,startup,ready\nfast,60,50,40\n")
    return str(file)


def test_one_sample_shortens_no_timer_and_the_table_says_why(one: str, capsys: Told) -> None:
    told = advised("--samples", one, "--max-node-provision-time", "20m", told=capsys)
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in told.splitlines() if line.startswith("  maxNode")}
    assert rows["maxNodeProvisionTime"] == ["20m", "20m", "kept at 20m: too few samples"]
    assert rows["maxNodeStartupTime"] == ["unknown", "15m", "not below the default of 15m: too few samples"]
    assert told.count("  with maxNodeProvisionTime") == 1


@pytest.mark.parametrize("form", ["openshift", "capi", "flags"])
def test_what_is_piped_into_a_cluster_is_told_of_on_standard_error(form: str, one: str, capsys: Told) -> None:
    arguments = ["--samples", one, "--no-accelerator-label", "--max-node-provision-time", "20m", "-o", form]
    assert main(["autoscaler", "advise", *arguments]) == 0
    told = capsys.readouterr()
    assert "20m" in told.out
    assert "2m\n" not in told.out
    assert "1m\n" not in told.out
    assert "  maxNodeProvisionTime kept at 20m: too few samples\n" in told.err
    (unneeded,) = (line for line in told.err.splitlines() if "unneededTime" in line)
    for fact in ("unneededTime not below the default of 10m", "too few samples", "the present timer is unknown"):
        assert fact in unneeded
    assert "  1. the accelerator label is missing" in told.err
    assert "measure more nodes before timers are cut" in told.err
    assert ("these timers apply to all node groups" in told.err) is (form != "capi")


def test_karpenters_policy_and_unknown_timeouts_are_left_as_they_are(one: str, rows: str, capsys: Told) -> None:
    assert main(["autoscaler", "advise", "--samples", one, "-o", "karpenter"]) == 0
    told = capsys.readouterr()
    assert set(yaml.safe_load(told.out)["spec"]) == {"template"}
    assert "consolidateAfter left as it is: too few samples" in told.err
    assert "  1. Karpenter waits without a deadline" in told.err
    assert "startupTaints is one list" in told.err
    pool = yaml.safe_load(advised("--samples", rows, "--unneeded-time", "5m", "-o", "karpenter", told=capsys))
    assert pool["spec"]["disruption"] == {"consolidateAfter": "9m30s"}


def test_what_openshift_has_no_field_for_is_said(rows: str, capsys: Told) -> None:
    assert main(["autoscaler", "advise", "--samples", rows, "-o", "openshift"]) == 0
    assert "has no field for maxNodeStartupTime" in capsys.readouterr().err


def test_karpenter_has_no_label_and_no_deadline(rows: str, capsys: Told) -> None:
    told = advised("--samples", rows, "--karpenter", told=capsys)
    assert "1. Karpenter waits without a deadline" in told
    assert "accelerator label" not in told
    assert "consolidateAfter" in told
    assert "maxNode" not in told


def test_standard_input_is_read(capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(ROWS))
    assert "node group gpu" in advised("--samples", "-", told=capsys)


def _record(number: int) -> ProvisioningRecord:
    at = {Milestone.REQUESTED: 0.0, Milestone.REGISTERED: 150.0, Milestone.READY: 180.0}
    return ProvisioningRecord(
        node=f"n{number}", uid=f"u{number}", group="gpu", at={**at, Milestone.ALLOCATABLE: 400.0 + number}
    )


def _files() -> dict[str, str]:
    lines = [encode_record(_record(number)) for number in range(3)]
    listed = [json.loads(line) for line in lines]
    book: dict[str, Any] = {"data": {"records.jsonl": "\n".join(lines) + "\n"}}
    return {
        "lines": "\n".join(lines),
        "one line": lines[0],
        "report": json.dumps({"records": listed, "summaries": []}),
        "list": json.dumps(listed),
        "ConfigMap as JSON": json.dumps(book),
        "ConfigMap as YAML": yaml.safe_dump(book),
    }


@pytest.mark.parametrize("form", sorted(_files()))
def test_records_are_taken_in_every_form_in_which_people_have_them(form: str, tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "x").write_text(_files()[form])
    told = json.loads(advised("--samples", str(tmp_path / "x"), "-o", "json", told=capsys))
    (group,) = told["groups"]
    assert (group["group"], group["advice"]["provision"]["n"]) == ("gpu", 1 if form == "one line" else 3)


def test_results_of_the_bench_are_times_from_ready_and_what_is_simulated_is_said(tmp_path: Path, capsys: Told) -> None:
    results = [
        {"experiment": "autoscale", "scenario": "built", "samples": [369.0, 371.0], "simulated": True},
        {"experiment": "policy-reset", "scenario": "built", "samples": [308.0]},
    ]
    (tmp_path / "x").write_text(json.dumps({"results": results}))
    told = advised("--samples", str(tmp_path / "x"), told=capsys)
    (heading,) = (line for line in told.splitlines() if "node group built" in line)
    for fact in ("simulated", "times come from the lab"):
        assert fact in heading
    assert "request to usable card" in told
    assert main(["autoscaler", "advise", "--samples", str(tmp_path / "x"), "-o", "flags"]) == 0
    assert "warning: simulated: these times come from the lab" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no rows"),
        ("group,ready\na,soon\n", "line 2.ready: must be from 0 to 604,800 seconds"),
        ('{"node":"a","at":{"ready":"x"}}\n{"node":"b"}', "line 1: record of provisioning: at.ready is 'x'"),
        ('{"results":[{"experiment":1}]}', "holds no results of experiments"),
        ("group,ready\nb,1\n", "no times were measured of node group gpu"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_a_bad_file_is_refused(text: str, says: str, tmp_path: Path, capsys: Told) -> None:
    (tmp_path / "x").write_text(text)
    assert main(["autoscaler", "advise", "--samples", str(tmp_path / "x"), "--group", "gpu"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert "\\n" not in told.err


def test_what_stops_the_whole_cluster_is_told_where_nothing_was_measured() -> None:
    told = list(advice_lines([], unmanaged_node_findings([("n1", "accelerator")])))
    assert told[0] == "all node groups"
    assert told[1].startswith("  1. n1: of no autoscaled node group, with accelerator")


def test_a_timer_of_another_form_is_refused(rows: str, capsys: Told) -> None:
    assert main(["autoscaler", "advise", "--samples", rows, "--unneeded-time", "5 minutes"]) == 1
    assert '"5 minutes" is not a duration; write 5m, 1h30m, 45s' in capsys.readouterr().err
