"""Charts and the page of the report: what they show, that it fits, and that what is simulated says so."""

import itertools
import math
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.provisioning_records import BUILT, FAST, LATE, WORKLOADS, record

from tessera.provisioning.milestones import ORDER, Milestone, ProvisioningRecord
from tessera.provisioning.report import By, summaries, workload_summaries
from tessera_lab.drawing.charts import (
    NARROW,
    PHASES,
    bars,
    cut,
    draw_stacked_bars,
    elide,
    legend,
    ticks,
    width_of,
    wrap,
)
from tessera_lab.drawing.report import differences, page, result_lines
from tessera_lab.experiments.results import AUTOSCALE, POLICY_RESET, Samples, read_experiments

M = Milestone


SVG = "{http://www.w3.org/2000/svg}"


ARTICLE = {
    (POLICY_RESET, "built on the fly"): 308,
    (POLICY_RESET, "precompiled"): 132,
    (AUTOSCALE, "built on the fly"): 369,
    (AUTOSCALE, "precompiled, public registry"): 217,
    (AUTOSCALE, "precompiled, cluster's registry"): 207,
}


RESULTS = [
    Samples(
        experiment=experiment,
        scenario=scenario,
        operator="reference",
        first=mean * 1.5,
        samples=tuple(mean + wobble for wobble in (-9.0, -4.0, 1.0, 4.0, 8.0)),
        simulated=True,
    )
    for (experiment, scenario), mean in ARTICLE.items()
]


def test_a_replay_of_the_articles_figures_shows_them_within_a_second() -> None:
    shown = [line for line in result_lines(RESULTS) if "simulated" in line]
    for line, mean in zip(shown, ARTICLE.values(), strict=True):
        told = float(re.findall(r"5 +(\d+) s", line)[0])
        assert told == pytest.approx(mean, abs=1)
    for experiment in (POLICY_RESET, AUTOSCALE):
        drawn = texts(bars(RESULTS, experiment))
        for mean in [value for (name, _), value in ARTICLE.items() if name == experiment]:
            assert f"{mean} s" in drawn


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    found = (each.attrib for each in ET.fromstring(svg).iter(f"{SVG}rect") if "x" in each.attrib)
    return [(float(b["x"]), float(b["y"]), float(b["width"]), float(b["height"])) for b in found]


def test_bars_are_as_high_as_their_means() -> None:
    tall = [height for x, _, width, height in boxes(bars(RESULTS, AUTOSCALE)) if width > 20]
    assert tall[1] / tall[0] == pytest.approx(217 / 369, abs=0.005)
    assert tall[2] / tall[0] == pytest.approx(207 / 369, abs=0.005)


def test_a_drawing_says_that_it_is_simulated_and_what_its_axis_counts() -> None:
    drawn = texts(bars(RESULTS, AUTOSCALE))
    assert drawn.count("n = 5, simulated") == 3
    assert "seconds" in drawn
    assert "mean and its 95 % interval; lower is better, simulated" in drawn
    real = [Samples(experiment=AUTOSCALE, scenario="built", samples=(1.0, 2.0))]
    assert not any("simulated" in each for each in texts(bars(real, AUTOSCALE)))


def test_parts_of_a_stacked_bar_follow_each_other_and_end_at_the_mean() -> None:
    svg = draw_stacked_bars(summaries([*BUILT, *FAST], [By.STRATEGY]))
    row = sorted(box for box in boxes(svg) if box[3] == 28 and box[1] == min(b[1] for b in boxes(svg) if b[3] == 28))
    for (x, _, width, _), (following, *_) in itertools.pairwise(row):
        assert x + width == pytest.approx(following, abs=0.05)
    assert {"387 s", "225 s", "driver", "machine"} <= set(texts(svg))
    assert "n = 5" in texts(svg)


def test_a_part_of_less_than_a_second_bears_the_same_number_as_its_bar() -> None:
    drawn = texts(draw_stacked_bars(summaries([record(1, *[0.0] * 9, 0.8)], [])))
    assert "0.8 s" in drawn
    assert "1" not in drawn


def test_unknown_time_has_a_place_in_the_legend() -> None:
    at = dict(BUILT[0].at)
    del at[M.DRIVER]
    svg = draw_stacked_bars(summaries([ProvisioningRecord(node="x", uid="x", at=at)], []))
    assert "unknown" in texts(svg)
    assert "url(#unknown-time-860)" in svg


def test_without_anything_to_draw_nothing_is_drawn() -> None:
    assert draw_stacked_bars(summaries([], [])) == ""
    assert draw_stacked_bars(summaries([ProvisioningRecord(node="x")], [])) == ""
    assert bars(RESULTS, "another") == ""


def test_every_phase_has_a_name_in_the_legend() -> None:
    assert list(PHASES) == [each.value for each in ORDER[1:]]


def test_names_of_others_cannot_leave_their_place_in_a_drawing() -> None:
    evil = '<script>alert("x")</script>&'
    svg = draw_stacked_bars(summaries([record(1, *[10] * 10, strategy=evil)], [By.STRATEGY]))
    assert "<script" not in svg
    ET.fromstring(svg)
    whole = page(summaries([record(1, *[10] * 10, strategy=evil)], [By.STRATEGY]), [], "2026-01-01T00:00:00Z")
    assert "<script" not in whole


def test_the_page_needs_nothing_from_elsewhere() -> None:
    whole = page(summaries([*BUILT, *FAST], [By.STRATEGY]), RESULTS, "2026-01-31T12:00:00Z")
    assert not re.search(r"(src|href)=|@import|<script|url\((?!#)", whole)
    assert whole.count('<figure class="scroll wide"><svg') == 3
    assert "prefers-color-scheme:dark" in whole
    assert "What is simulated says so." in whole


def test_a_page_of_the_lab_alone_says_so_at_once() -> None:
    assert "Everything here is simulated." in page([], RESULTS, "now")


def test_a_page_of_nothing_says_so_and_where_to_look() -> None:
    told = page([], [], "2026-01-31T12:00:00Z")
    assert "simulated" not in told
    for fact in ("no records", "each node that starts from now on makes one"):
        assert fact in told
    assert "ConfigMap provisioning-records" in told


def test_a_page_says_what_it_rests_on() -> None:
    one = summaries([record(1, *[10] * 10)], [])
    assert "From 1 node, now." in page(one, [], "now")
    assert "From 5 nodes and 2 pods and 1 scenario of experiments, now." in page(
        summaries(BUILT, []), RESULTS[:1], "now", workload_summaries(WORKLOADS)
    )


def test_a_page_has_the_numbers_of_experiments_and_by_how_much_they_differ() -> None:
    told = page([], RESULTS, "now")
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", told)]
    assert ["precompiled, simulated", "reference", "5", "132 s", "133 s", "124 s to 140 s"] in rows
    what = "built on the fly (reference) → precompiled (reference), simulated"
    assert [what, "-176 s", "-57%", "-186 s to -166 s", "23.8"] in rows
    assert "needs two values" in page([], [Samples(experiment=AUTOSCALE, scenario="one", samples=(1.0,))], "now")
    assert "nothing came" in page([], [Samples(experiment=AUTOSCALE, scenario="nothing came")], "now")


def test_scenarios_that_differ_in_two_things_are_not_compared() -> None:
    several = [Samples(experiment=AUTOSCALE, scenario=s, operator=o, samples=(1.0,)) for s in "ab" for o in "xy"]
    several.append(Samples(experiment=POLICY_RESET, scenario="a", operator="x", samples=(1.0,)))
    assert [each.scenarios for each in differences(several)] == [
        "a (x) → a (y)",
        "a (x) → b (x)",
        "a (y) → b (y)",
        "b (x) → b (y)",
    ]
    assert {(each.change, each.interval, each.effect) for each in differences(several)} == {("+0.0 s", "-", "-")}


def test_of_many_groups_the_tables_are_folded_and_bounded() -> None:
    many = summaries([record(n, *[10] * 10, group=f"g{n}") for n in range(230)], [By.GROUP])
    told = page(many, [], "now")
    assert (told.count("<h2>"), told.count("<details>")) == (12, 188)
    assert "30 more have fewer nodes and are left out" in told
    assert len(boxes(draw_stacked_bars(many))) < 31 * 11
    assert any("the 30 of 230 with most nodes" in each for each in texts(draw_stacked_bars(many)))
    assert "<details>" not in page(many[:12], [], "now")


def test_long_names_are_told_apart_by_their_ends_and_whole_by_pointing_at_them() -> None:
    names = [f"a-very-long-node-group-name-for-an-openshift-machineset-in-zone-{zone}" for zone in "abc"]
    several = [record(n, *[10] * 10, group=name) for n, name in enumerate(names)]
    svg = draw_stacked_bars(summaries(several, [By.STRATEGY, By.GROUP]))
    shown = [each for each in texts(svg) if each.startswith("a-very")]
    assert len(set(shown)) == 3
    assert [each[-1] for each in shown] == ["a", "b", "c"]
    assert set(names) <= {each.text for each in ET.fromstring(svg).iter(f"{SVG}title")}


def test_a_bar_of_which_a_part_is_simulated_says_so() -> None:
    both = [record(1, *[10] * 10, simulated=True), record(2, *[10] * 10)]
    assert "n = 2, partly simulated" in texts(draw_stacked_bars(summaries(both, [])))


def test_numbers_stay_on_their_line_and_texts_of_drawings_stay_readable() -> None:
    told = page(summaries(BUILT, []), [], "now")
    assert "text-align:right;white-space:nowrap" in told
    assert "@media (max-width:56rem){.wide{display:none}.narrow{display:block}}" in told


def widths(drawn: str) -> set[float]:
    return {float(each) for each in re.findall(r'<svg [^>]*? width="([0-9.]+)"', drawn)}


def test_a_narrow_screen_gets_drawings_that_fit_it() -> None:
    stacks = draw_stacked_bars(summaries([*BUILT, *FAST], [By.STRATEGY]), NARROW)
    columns = bars(PLAYED, POLICY_RESET, NARROW)
    assert widths(stacks + columns) == {NARROW}
    assert columns.count("<svg") == 2, "two bars find room beside each other"
    for x in re.findall(r' x2?="([0-9.]+)"', stacks + columns):
        assert float(x) <= NARROW


PLAYED = [
    Samples(experiment=POLICY_RESET, scenario=name, operator=operator, samples=(200.0, 210.0), simulated=True)
    for name in ("built", "precompiled-public")
    for operator in ("reference", "tessera")
]


def test_red_hats_means_stand_beside_what_the_lab_played() -> None:
    drawn = bars(PLAYED, POLICY_RESET)
    assert drawn.count("Red Hat's mean: 308 s") == 2
    assert "Red Hat 132 s" in texts(drawn)
    measured = [msgspec.structs.replace(each, simulated=False) for each in PLAYED]
    assert "Red Hat" not in bars(measured, POLICY_RESET)


def test_the_drawing_of_nodes_that_stood_there_before_begins_with_the_facts() -> None:
    drawn = texts(draw_stacked_bars(summaries([LATE], [By.STRATEGY])))
    assert any("facts known to cards given out" in each for each in drawn)


@pytest.mark.parametrize(
    ("highest", "found"),
    [(369, [0, 100, 200, 300, 400]), (7, [0, 2, 4, 6, 8]), (0, [0, 1]), (1000, [0, 200, 400, 600, 800, 1000])],
)
def test_ticks_are_round(highest: float, found: list[float]) -> None:
    assert ticks(highest) == found


@given(st.floats(0.001, 1e6))
def test_ticks_reach_over_the_highest_value_and_are_few(highest: float) -> None:
    found = ticks(highest)
    assert found[0] == 0
    assert found[-1] >= highest * (1 - 1e-9)
    assert 3 <= len(found) <= 12
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert all(math.isclose(each, steps[0], rel_tol=1e-6) for each in steps)


@given(st.text(st.characters(codec="ascii", categories=["L", "P"]), max_size=80), st.floats(30, 400))
def test_texts_are_cut_to_their_room(content: str, room: float) -> None:
    assert width_of(cut(content, room)) <= max(room, width_of("x"))
    assert all(width_of(line) <= max(room, width_of("x")) for line in wrap(content, room))


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("precompiled-internal", ["precompiled-", "internal"]),
        ("built on the node", ["built on the", "node"]),
        ("two  spaces", ["two spaces"]),
        ("", []),
    ],
)
def test_texts_are_broken_at_spaces_and_behind_hyphens(content: str, lines: list[str]) -> None:
    assert [" ".join(each.split()) for each in wrap(content, 96)] == lines


@given(st.text(min_size=1, max_size=80), st.floats(10, 400))
def test_a_text_without_its_middle_keeps_both_ends(content: str, room: float) -> None:
    shown = elide(content, room)
    assert width_of(shown) <= max(room, width_of("x"))
    if shown != content and len(shown) > 2:
        first, _, last = shown.rpartition("…") if "…" not in content else ("", "", "")
        assert content.startswith(first)
        assert content.endswith(last)


def test_a_legend_breaks_into_rows() -> None:
    entries = [("#000000", "a name of some length")] * 6
    squares, last = legend(entries, 0, 10, 400)
    assert len(squares) == 12
    assert last > 10


def test_results_of_experiments_are_read_as_bench_writes_them_and_as_a_list() -> None:
    one = '{"experiment":"autoscale","scenario":"built","samples":[369.5],"simulated":true}'
    for text in (f"[{one}]", f'{{"results":[{one}]}}'):
        (found,) = read_experiments(text, "f")
        assert (found.experiment, found.samples, found.simulated) == ("autoscale", (369.5,), True)
    with pytest.raises(ValueError, match="f: holds no results of experiments"):
        read_experiments("{}", "f")


def test_pods_have_tables_in_a_page() -> None:
    assert "pods that found a node (1 pod)" in page([], [], "now", workload_summaries(WORKLOADS))
