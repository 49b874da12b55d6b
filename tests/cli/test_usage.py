"""``tessera usage``: formats, prices, and errors that name the right or the next step."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.objects import Objects, encoded, objects, serving

from tessera.cli.main import main
from tessera.cli.usage import table
from tessera.usage.record import CardSeconds, LeaseSeconds, NodeMark, UsageKey, UsageRecord
from tessera.usage.report import Grouping, UsageTotals, make_report, totals_of_record

Server = tuple[Objects, list[str]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    there = Objects()
    there.found = encoded(objects())
    with serving(there, tmp_path) as kubeconfig:
        yield there, ["--kubeconfig", str(kubeconfig)]


def test_the_table_has_the_rows_their_total_and_the_sums_of_the_cards(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["usage", "--by", "user", *server[1]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("from the controller's record")
    assert lines[1].split() == ["USER", "GPU-HOURS", "ACTIVE", "IDLE", "UNKNOWN", "PART", "KWH"]
    assert lines[2].split() == ["anna", "1.00", "0.50", "0.02", "0.48", "100.0%", "n/a"]
    assert lines[3].split() == ["total", "1.00", "0.50", "0.02", "0.48", "100.0%", "n/a"]
    parts = {line.split()[0]: line.split()[-1] for line in lines[5:]}
    assert parts == {
        "capacity": "GPU-hours",
        "allocated": "50.0%",
        "free": "48.3%",
        "unavailable": "0.8%",
        "unknown": "0.8%",
    }


def test_teams_are_those_of_the_record_and_a_namespace_without_one_is_its_own(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["usage", "--by", "team", *server[1]]) == 0
    assert capsys.readouterr().out.splitlines()[1:3][1].split()[:2] == ["team", "1.00"]
    data = server[0].found["configmaps"][1]["data"]
    record = json.loads(data["usage.json"])
    data["usage.json"] = json.dumps({**record, "team_label": "example.com/team", "teams": {"team": "vision"}})
    assert main(["usage", "--by", "team", *server[1]]) == 0
    title, row = capsys.readouterr().out.splitlines()[1:3]
    assert (title.split()[0], row.split()[:2]) == ("TEAM", ["vision", "1.00"])


def test_the_label_of_the_record_is_the_title(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--by", "label", *server[1]]) == 0
    title, row = capsys.readouterr().out.splitlines()[1:3]
    assert (title.split()[0], row.split()[0]) == ("part", "training")


def test_the_label_of_the_record_selects_rows(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "-l", "part=training", *server[1]]) == 0
    shown = capsys.readouterr().out
    assert "1.00" in shown
    assert "capacity" not in shown, "what is free has no labels"
    assert main(["usage", "-l", "part in (a, b)", *server[1]]) == 0
    assert "No pod held a card in this window." in capsys.readouterr().out
    assert main(["usage", "-l", "app=web", *server[1]]) == 1
    assert "the record keeps the label part alone of pods" in capsys.readouterr().err


def test_prices_give_the_cost(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nprices: {nvidia a100: 2.5}")
    assert main(["usage", "--prices", str(prices), *server[1]]) == 0
    assert "2.50 EUR" in capsys.readouterr().out
    assert main(["usage", "--prices", str(prices), "-o", "csv", *server[1]]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (row["namespace"], row["allocated_gpu_hours"], row["cost_EUR"]) == ("team", "1.000000", "2.500000")
    prices.write_text("prices: {B200: 5}")
    assert main(["usage", "--prices", str(prices), *server[1]]) == 1
    assert "no price for NVIDIA A100" in capsys.readouterr().err


def test_a_namespace_without_hours_has_no_rows(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "-n", "nobody", *server[1]]) == 0
    shown = capsys.readouterr().out
    assert "No pod held a card in this window." in shown
    assert "capacity" not in shown


def test_json_has_rows_sums_and_the_source(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "-o", "json", *server[1]]) == 0
    found = json.loads(capsys.readouterr().out)
    cards = found["cards"]
    assert cards["capacity"] == pytest.approx(sum(value for name, value in cards.items() if name != "capacity"))
    assert found["models"]["NVIDIA A100"] == cards
    assert (found["by"], found["simulated"], found["source"]) == ("namespace", False, "the controller's record")


def test_a_name_that_a_spreadsheet_takes_for_a_formula_is_text(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    data = server[0].found["configmaps"][1]["data"]
    data["usage.json"] = data["usage.json"].replace("anna", "=cmd()")
    assert main(["usage", "--by", "user", "-o", "csv", *server[1]]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("'=cmd(),")


def test_a_user_without_the_right_is_told_the_role(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server[0].refused = frozenset({"configmaps"})
    assert main(["usage", *server[1]]) == 1
    shown = capsys.readouterr().err
    assert "an administrator adds Tessera's API for tenants: tessera install --reuse --dashboard" in shown


def test_a_tenant_who_comes_before_the_first_record_is_told_when_it_comes(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server[0].refused = frozenset({"configmaps"})
    server[0].found = {**server[0].found, "gpuhours": []}
    assert main(["usage", *server[1]]) == 1
    shown = capsys.readouterr().err
    assert "the controller first writes it about two minutes after its first start" in shown
    assert "tessera install" not in shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (30, ""),
        (240, "4m before the end of the window; the controller writes it every five minutes\n"),
        (7200, "doctor"),
    ],
)
def test_a_record_that_ends_before_the_window_says_until_when_it_reaches(seconds: float, shown: str) -> None:
    record = UsageRecord(began=1_600_000_000, nodes={"n1": NodeMark(1_700_000_000, 0.0)})
    (note,) = totals_of_record(record, 1_690_000_000, 1_700_000_000 + seconds).notes or ("",)
    assert note.endswith(shown.rstrip())
    assert not shown or "reaches until 2023-11-14T22:13:20Z" in note


def test_hours_below_one_have_four_digits() -> None:
    rows = {UsageKey("a", "", "", "M"): LeaseSeconds(held=9.0), UsageKey("b", "", "", "M"): LeaseSeconds(held=34.0)}
    totals = UsageTotals(begin=0, end=60, cards={"M": CardSeconds(60.0)}, rows=rows)
    lines = list(table(totals, make_report(totals, Grouping.NAMESPACE), None))
    assert lines[3].split() == ["a", "0.0025", "0.0000", "0.0000", "0.0025", "20.9%", "n/a"]


@pytest.mark.parametrize(
    ("metered", "joules", "shown"),
    [
        (7200.0, 9e6, "2.50"),
        (7200.0, 9e5, "0.2500"),
        (3600.0, 9e6, ">2.50"),
        (0.0, 0.0, "n/a"),
    ],
)
def test_energy_is_in_kilowatt_hours_and_says_if_a_part_is_not_known(metered: float, joules: float, shown: str) -> None:
    rows = {UsageKey("a", "", "", "M"): LeaseSeconds(held=7200.0, metered=metered, energy=joules)}
    totals = UsageTotals(begin=0, end=7200, cards={"M": CardSeconds(7200.0)}, rows=rows)
    report = make_report(totals, Grouping.NAMESPACE)
    assert [line.split()[-1] for line in list(table(totals, report, None))[2:4]] == [shown, shown]
    assert report.total.energy == (joules / 3.6e6 if metered else None)


@pytest.mark.parametrize(
    ("text", "words"), [(None, "does not exist"), ("{", "usage-records: record of GPU-hours"), ("", "has no key")]
)
def test_a_record_that_cannot_be_read_says_what_to_do(
    server: Server, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    if text is None:
        server[0].found["configmaps"].pop()  # type: ignore[attr-defined]
    else:
        server[0].found["configmaps"][1]["data"]["usage.json"] = text
    assert main(["usage", *server[1]]) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "0d"], "between a second and a year"),
        (["--since", "900d"], "more than a year"),
        (["--since", "53w"], "more than a year"),
        (["--since", "week"], "is not a duration"),
        (["--by", "pod"], "'pod' is not one of"),
    ],
)
def test_a_wrong_option_is_refused(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", *options]) != 0
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_record_that_has_just_begun_says_so_and_not_that_no_pod_held_a_card() -> None:
    totals = totals_of_record(UsageRecord(began=7200.0), 0.0)
    head, line = table(totals, make_report(totals, Grouping.NAMESPACE), None)
    assert head.startswith("1970-01-01T02:00:00Z to 1970-01-01T02:00:00Z")
    assert line == (
        "Nothing is counted yet in this window: the controller counts once a minute, and writes the record every five"
        " minutes."
    )
