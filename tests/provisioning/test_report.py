import re

import pytest
from tests.support.provisioning_records import BUILT, FAST, LATE, WORKLOADS, record

from tessera.provisioning.history import encode_record
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, Span, WorkloadRecord, WorkloadStep
from tessera.provisioning.report import (
    By,
    Numbers,
    lines,
    numbers,
    part_text,
    read_records,
    read_workloads,
    seconds,
    summaries,
    workload_summaries,
)

M = Milestone


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


# Nodes that stood there before


def test_nodes_that_stood_there_before_are_counted_and_measured_from_then_on() -> None:
    (found,) = summaries([LATE], [By.STRATEGY])
    assert (found.late, found.totals["total-startup"].n, found.totals["total-labelled-to-allocatable"].mean) == (
        1,
        0,
        95,
    )
    assert next(lines([found])) == "built (1 node, 1 there before a driver was requested)"


# Small parts


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


def test_pods_of_a_file_are_bounded_like_nodes() -> None:
    with pytest.raises(ValueError, match=r"f: line 6: names such as .* repeat too much"):
        read_workloads(NESTED.replace("records:", "workloads:"), "f")


def test_pods_whose_node_came_up_for_them_stand_apart() -> None:
    fresh, found = workload_summaries(WORKLOADS)
    assert (fresh.pods, fresh.steps["bound"].mean, fresh.total.mean) == (1, 198, 212)
    assert (found.steps["scaled-up"].n, found.steps["bound"].mean, found.steps["started"].mean) == (0, 1, 5)
    text = "\n".join(lines([], [fresh, found]))
    assert text.startswith("pods whose node came up for them (1 pod, simulated)\n")
    assert "pods that found a node (1 pod)" in text


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
