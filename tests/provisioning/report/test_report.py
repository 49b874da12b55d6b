import itertools
import math
import re
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.provisioning.history import encode_record
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, WorkloadRecord, WorkloadStep
from tessera.provisioning.phases import ORDER, Span
from tessera.provisioning.report.charts import NARROW, PHASES, bars, draw_stacked_bars
from tessera.provisioning.report.page import differences, page
from tessera.provisioning.report.reading import read_experiments, read_records, read_workloads
from tessera.provisioning.report.results import AUTOSCALE, POLICY_RESET, Samples
from tessera.provisioning.report.summary import By, Numbers, numbers, part_text, summaries, workload_summaries
from tessera.provisioning.report.svg import cut, elide, legend, ticks, width_of, wrap
from tessera.provisioning.report.table import lines, seconds

M = Milestone
SVG = "{http://www.w3.org/2000/svg}"


def record(number: int, *phases: float, strategy: str = "built", **more: object) -> ProvisioningRecord:
    """A node whose phases took so long, from its request on."""
    at, moment = {ORDER[0]: 1000.0 * number}, 1000.0 * number
    for milestone, took in zip(ORDER[1:], phases, strict=False):
        moment += took
        at[milestone] = moment
    return ProvisioningRecord(node=f"n{number}", uid=f"u{number}", at=at, strategy=strategy, **more)  # type: ignore[arg-type]


BUILT = [record(n, 60, 40, 20, 0, 30, 200 + n, 5, 5, 5, 20) for n in range(5)]
FAST = [record(10 + n, 60, 40, 20, 0, 30, 40, 5, 5, 5, 20, strategy="precompiled") for n in range(3)]


def test_each_number_stands_with_what_it_rests_on() -> None:
    (built, fast) = summaries([*BUILT, *FAST], [By.STRATEGY])
    assert (built.title, built.records, fast.title, fast.records) == ("built", 5, "precompiled", 3)
    assert built.phases["driver"] == Numbers(n=5, mean=202, p50=202, p90=203.6, p99=203.96)
    assert fast.totals["total"].p50 == 225


def test_what_is_unknown_is_left_out_of_its_own_numbers_only() -> None:
    at = dict(BUILT[0].at)
    del at[M.TOOLKIT]
    (found,) = summaries([ProvisioningRecord(node="x", uid="x", at=at, strategy="built"), BUILT[1]], [By.STRATEGY])
    assert (found.phases["toolkit"].n, found.phases["validated"].n) == (1, 1)
    assert (found.phases["driver"].n, found.totals["total"].n) == (2, 2)
    assert numbers([]) == Numbers(n=0)


def test_nodes_that_were_lost_are_counted_and_not_averaged() -> None:
    lost = ProvisioningRecord(node="l", uid="l", at={M.REGISTERED: 0, M.READY: 800}, strategy="built", lost=900)
    (found,) = summaries([*BUILT, lost], [By.STRATEGY])
    assert (found.records, found.lost, found.phases["ready"].n) == (6, 1, 5)


def test_the_make_up_of_a_mean_sums_to_it() -> None:
    at = dict(BUILT[0].at)
    del at[M.DRIVER]
    for found in summaries([*BUILT[1:], ProvisioningRecord(node="x", uid="x", at=at, strategy="built")], []):
        assert found.stack is not None
        assert found.stack.mean == pytest.approx(sum(found.stack.phases.values()) + found.stack.unknown)
        assert found.stack.unknown > 0


def test_the_part_that_most_nodes_know_is_made_up() -> None:
    late = [
        ProvisioningRecord(node=f"r{n}", uid=f"r{n}", at={M.REGISTERED: 0.0, M.ALLOCATABLE: 90.0}) for n in range(9)
    ]
    found = summaries([*BUILT, *late], [By.STRATEGY])
    assert {each.stack.part for each in found if each.stack is not None} == {"startup"}
    assert part_text("ready-to-workload") == "node Ready to workload running"


def test_records_are_told_apart_by_several_things() -> None:
    found = summaries([record(1, 1, group="a"), record(2, 1, group="b"), record(3, 1)], [By.STRATEGY, By.GROUP])
    assert [each.title for each in found] == ["built, a", "built, b", "built, unknown"]


def test_an_image_is_named_shortly() -> None:
    whole = record(1, 1, image="quay.io/vemporop/nvidia-gpu-driver@sha256:" + "0123456789abcdef" * 4)
    (found,) = summaries([whole], [By.IMAGE])
    assert found.title == "nvidia-gpu-driver@0123456789ab"


# Text


def test_the_table_says_n_and_marks_what_few_nodes_cannot_tell() -> None:
    text = "\n".join(lines(summaries(FAST, [By.STRATEGY])))
    assert text.startswith("precompiled (3 nodes)\n")
    assert re.search(r"driver +3 +40 s +40 s +40 s +40 s\*", text)
    assert "fewer than 299 nodes" in text


def test_a_table_of_nothing_says_what_makes_records() -> None:
    assert next(lines([])) == "no records: each node that starts from now on makes one"
    assert "ConfigMap provisioning-records" in "\n".join(lines([]))


def test_what_is_simulated_is_said_to_be() -> None:
    (found,) = summaries([record(1, 1, simulated=True)], [By.STRATEGY])
    assert next(lines([found])) == "built (1 node, simulated)"


# The article: the figures are Red Hat's, the samples around them are made for this test.

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
    shown = [line for line in lines([], RESULTS) if "simulated" in line]
    for line, mean in zip(shown, ARTICLE.values(), strict=True):
        told = float(re.findall(r"5 +(\d+) s", line)[0])
        assert told == pytest.approx(mean, abs=1)
    for experiment in (POLICY_RESET, AUTOSCALE):
        drawn = texts(bars(RESULTS, experiment))
        for mean in [value for (name, _), value in ARTICLE.items() if name == experiment]:
            assert f"{mean} s" in drawn


# Drawings


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


# Nodes that stood there before


def test_nodes_that_stood_there_before_are_counted_and_measured_from_then_on() -> None:
    at = {M.LABELLED: 700.0, M.PULLED: 750.0, M.DRIVER: 780.0, M.ALLOCATABLE: 795.0}
    (found,) = summaries([ProvisioningRecord(node="n", uid="n", at=at, asked=700.0, strategy="built")], [By.STRATEGY])
    assert (found.late, found.totals["total-startup"].n, found.totals["total-labelled-to-allocatable"].mean) == (
        1,
        0,
        95,
    )
    assert next(lines([found])) == "built (1 node, 1 there before a driver was requested)"
    assert any("facts known to cards given out" in each for each in texts(draw_stacked_bars([found])))


# Small parts


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


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (368.6, "369 s")]
)
def test_seconds_are_shown_as_they_are_known(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


# Files

LINES = '{"node":"a","uid":"1","at":{"registered":5}}\n{"node":"b","uid":"2"}\n'
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\ndata:\n  records.jsonl: |\n    " + LINES.replace("\n", "\n    ")


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        CONFIG_MAP,
        '[{"node":"a","uid":"1","at":{"registered":5}},{"node":"b","uid":"2"}]',
        '{"summaries":[],"records":[{"node":"a","uid":"1","at":{"registered":5}},{"node":"b","uid":"2"}]}',
    ],
)
def test_records_are_read_in_every_form_in_which_people_have_them(text: str) -> None:
    assert [each.node for each in read_records(text, "f")] == ["a", "b"]


def test_one_record_alone_is_read() -> None:
    assert [each.node for each in read_records('{"node":"a"}', "f")] == ["a"]


#: Few lines that stand for a hundred million values, and a record that stands there five thousand times.
NESTED = "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(8))
NESTED = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + NESTED + "records: [*i]\n"
MANY = "r: &r {node: " + "n" * 4000 + "}\nrecords: [" + ", ".join(["*r"] * 5000) + "]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just words", "f: holds no records; give the ConfigMap provisioning-records"),
        ('{"node":"a"}\n{"node":1}\n', "f, line 2: record of provisioning: Expected `str`"),
        ("a: [", "f: not YAML: "),
        (NESTED, "f: line 6: names such as *e repeat too much: at most 1,000,000 characters and values"),
        (MANY, "f: line 2: names such as *r repeat too much"),
        ('[{"node":"a"},{}]', "f, record 2: record of provisioning: "),
        ("[" * 50_000, "f: is nested too deeply"),
        ("a: " + "[" * 5_000, "f: is nested too deeply"),
        ("records: &a\n- {at: *a}\n", "f: line 2: *a holds itself"),
        ("records: [" + "n" * 20_000 + "]", "f: has a record that is too long: at most 10,000"),
    ],
)
def test_a_file_that_holds_none_is_refused_with_its_fault(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="f") as caught:
        read_records(text, "f")
    assert str(caught.value).startswith(says)


def test_results_of_experiments_are_read_as_bench_writes_them_and_as_a_list() -> None:
    one = '{"experiment":"autoscale","scenario":"built","samples":[369.5],"simulated":true}'
    for text in (f"[{one}]", f'{{"results":[{one}]}}'):
        (found,) = read_experiments(text, "f")
        assert (found.experiment, found.samples, found.simulated) == ("autoscale", (369.5,), True)
    with pytest.raises(ValueError, match="f: holds no results of experiments"):
        read_experiments("{}", "f")


def test_pods_of_a_file_are_bounded_like_nodes() -> None:
    with pytest.raises(ValueError, match=r"f: line 6: names such as .* repeat too much"):
        read_workloads(NESTED.replace("records:", "workloads:"), "f")


WORKLOADS = [
    WorkloadRecord(namespace="a", name="p", uid="p", node="n", fresh=True, simulated=True, at=at)
    for at in (
        {
            WorkloadStep.CREATED: 0,
            WorkloadStep.SCALED_UP: 2,
            WorkloadStep.BOUND: 200,
            WorkloadStep.PULLED: 210,
            WorkloadStep.STARTED: 212,
        },
    )
] + [
    WorkloadRecord(
        namespace="a",
        name="q",
        uid="q",
        node="n",
        at={WorkloadStep.CREATED: 0, WorkloadStep.BOUND: 1, WorkloadStep.STARTED: 6},
    )
]


def test_pods_whose_node_came_up_for_them_stand_apart() -> None:
    fresh, found = workload_summaries(WORKLOADS)
    assert (fresh.pods, fresh.steps["bound"].mean, fresh.total.mean) == (1, 198, 212)
    assert (found.steps["scaled-up"].n, found.steps["bound"].mean, found.steps["started"].mean) == (0, 1, 5)
    text = "\n".join(lines([], [], [fresh, found]))
    assert text.startswith("pods whose node came up for them (1 pod, simulated)\n")
    assert "pods that found a node (1 pod)" in text
    assert "pods that found a node (1 pod)" in page([], [], "now", [fresh, found])


def test_a_pod_that_started_before_it_was_made_took_an_unknown_time() -> None:
    odd = WorkloadRecord(
        namespace="a", name="q", uid="q", node="n", at={WorkloadStep.CREATED: 100, WorkloadStep.STARTED: 20}
    )
    (found,) = workload_summaries([odd])
    assert (found.total.n, found.steps["started"].n) == (0, 0)


def test_records_of_pods_are_read_from_the_configmap_and_from_json() -> None:
    line = encode_record(WORKLOADS[0])
    config_map = f"data:\n  records.jsonl: ''\n  workloads.jsonl: |\n    {line}\n"
    for text in (config_map, f'{{"records":[],"workloads":[{line}]}}'):
        assert [each.name for each in read_workloads(text, "f")] == ["p"]
    assert read_workloads(LINES, "f") == ()
    with pytest.raises(ValueError, match="f, workload 1: record of provisioning"):
        read_workloads('{"workloads":[{}]}', "f")


def test_parts_of_the_way_have_names() -> None:
    assert {part_text(each.name.lower().replace("_", "-")) for each in Span}
