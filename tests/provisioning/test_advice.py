"""Timers follow from measured times, and findings are ranked."""

import math
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.nodes.node_groups import Pause
from tessera.api.problems import FileRefused
from tessera.provisioning.milestones import Milestone, ProvisioningRecord
from tessera.provisioning.start_times import GroupTimes, from_file, from_records
from tessera.provisioning.timer_advice import (
    Labels,
    Rank,
    capi,
    expendable_pod_findings,
    findings,
    flags,
    karpenter,
    longest,
    openshift,
    span,
    unmanaged_node_findings,
    useless_node_findings,
)
from tessera.provisioning.timers import DEFAULTS, LOST, TOO_FEW, Timers, advise, empty_loop, replace_loop
from tessera.provisioning.warm_nodes import Placeholder, cheapest, placeholders, pool, smallest


def around(mean: float, n: int) -> tuple[float, ...]:
    """Times that scatter by a tenth; made, not measured."""
    rng = Random(mean)
    return tuple(mean * rng.uniform(0.9, 1.1) for _ in range(n))


#: Times as in the article: 369 s after Ready with a driver that is built, 217 s with a precompiled one; VM 180 s.
BUILT = GroupTimes(group="gpu", provision=around(549, 300), startup=around(400, 300), ready=around(369, 300))
PRECOMPILED = GroupTimes(group="gpu", provision=around(255, 300), startup=around(230, 300), ready=around(217, 300))


def test_a_short_timer_with_built_drivers_is_told_as_a_loop_before_a_node_is_lost() -> None:
    current = Timers(max_node_provision=300, unneeded=600)
    told = findings(BUILT, advise(BUILT, labelled=True), current, labels=Labels(present=True))
    assert told[0].rank is Rank.LOOP
    assert "100% of its nodes take longer than maxNodeProvisionTime 5m" in told[0].text
    assert "no attempt ever is in time" in told[0].text
    better = advise(BUILT, labelled=True).timers.max_node_provision
    assert better is not None
    assert better > max(BUILT.provision)
    assert told[0].remedy == f"set maxNodeProvisionTime to {span(better)}"


def test_with_precompiled_drivers_the_same_timer_holds() -> None:
    advice = advise(PRECOMPILED, labelled=True)
    assert all(
        each.rank not in {Rank.LOOP, Rank.TIMER_SHORT}
        for each in findings(PRECOMPILED, advice, Timers(max_node_provision=300), labels=Labels(present=True))
    )


def test_a_missing_label_is_ranked_above_timers() -> None:
    told = findings(
        BUILT, advise(BUILT, labelled=False), Timers(max_node_provision=300, unneeded=300), labels=Labels(present=False)
    )
    assert [each.rank for each in told[:3]] == [Rank.LABEL_MISSING, Rank.LOOP, Rank.LOOP]
    assert "unneededTime 5m" in told[2].text


def test_slices_with_the_label_are_told_first_as_never_ready() -> None:
    labels = Labels(present=True, name="cluster-api/accelerator", value="t4", types=("a100",), sliced=True)
    told = findings(BUILT, advise(BUILT, labelled=labels.starts), Timers(max_node_provision=300), labels=labels)
    assert told[0].rank is Rank.NEVER_READY
    assert "carry cluster-api/accelerator" in told[0].text
    assert "#8095" in told[0].text
    assert told[0].remedy.startswith("take the label off")
    assert "startup-taint.cluster-autoscaler.kubernetes.io/tessera-gpu:NoSchedule" in told[0].remedy
    assert Rank.LABEL_UNMATCHED not in {each.rank for each in told}


@pytest.mark.parametrize("there", [False, None])
def test_slices_are_never_advised_to_have_the_label(there: bool | None) -> None:
    labels = Labels(present=there, sliced=True)
    told = findings(BUILT, advise(BUILT, labelled=labels.starts), DEFAULTS, labels=labels)
    assert not {Rank.LABEL_MISSING, Rank.LABEL_UNKNOWN} & {each.rank for each in told}
    (alone,) = (each for each in told if each.rank is Rank.TAINT_ALONE)
    assert alone.remedy.startswith("give them none; give its nodes the taint startup-taint.")


def test_nodes_of_no_group_that_can_stop_all_scale_up_are_named() -> None:
    assert unmanaged_node_findings(()) == ()
    (told,) = unmanaged_node_findings([(f"n{number}", "accelerator") for number in range(5)])
    for fact in ("n0, n1, n2 and 2 more", "no autoscaled node group", "with accelerator and without"):
        assert fact in told.text
    assert "#10301" in told.text
    assert "kubectl label node n0 accelerator-" in told.remedy


def test_openshifts_sample_of_five_minutes_fails_built_drivers_without_a_label_and_not_precompiled_ones() -> None:
    current = Timers(unneeded=300)

    def short(times: GroupTimes) -> bool:
        told = findings(times, advise(times, labelled=False), current, labels=Labels(present=False))
        return any("unneededTime" in each.text for each in told)

    assert (short(BUILT), short(PRECOMPILED)) == (True, False)


def test_twenty_nodes_do_not_support_p99() -> None:
    few = GroupTimes(group="gpu", provision=around(549, 20))
    told = findings(few, advise(few, labelled=True), Timers(), labels=Labels(present=True))
    (too_few,) = (each for each in told if each.rank is Rank.TOO_FEW)
    assert "20 nodes" in too_few.text
    assert "needs 299" in too_few.text
    assert "bounded is p86" in too_few.text
    (one,) = (
        each
        for each in findings(FEW, advise(FEW, labelled=True), Timers(), labels=Labels(present=True))
        if "request to" in each.text
    )
    assert one.text.startswith("1 node was measured from request to usable card")


def test_a_timer_far_too_long_is_said_only_where_the_sample_supports_it() -> None:
    few = GroupTimes(group="gpu", provision=PRECOMPILED.provision[:20])
    long = Timers(max_node_provision=3600)

    def said(times: GroupTimes) -> bool:
        return any(
            each.rank is Rank.TIMER_LONG
            for each in findings(times, advise(times, labelled=True), long, labels=Labels(present=True))
        )

    assert (said(PRECOMPILED), said(few)) == (True, False)


FEW = GroupTimes(group="gpu", provision=(60.0,), startup=(50.0,), ready=(40.0,))


def test_few_values_do_not_make_a_timer_shorter_than_the_present_one_or_the_default() -> None:
    advice = advise(FEW, labelled=False, current=Timers(max_node_provision=1200, unneeded=300))
    assert advice.timers == Timers(max_node_provision=1200, max_node_startup=900, unneeded=600, delay_after_add=600)
    assert set(advice.kept.values()) == {TOO_FEW}
    assert set(advice.kept) == {"max_node_provision", "max_node_startup", "unneeded", "delay_after_add"}


def test_few_values_may_make_a_timer_longer() -> None:
    slow = GroupTimes(group="gpu", provision=(1000.0,))
    advice = advise(slow, labelled=True, current=Timers(max_node_provision=300))
    assert advice.timers.max_node_provision == 1260  # 1000 s and a fifth, 40 s of the autoscaler's own, rounded up
    assert "max_node_provision" not in advice.kept


def test_enough_values_make_a_timer_shorter_unless_nodes_were_lost() -> None:
    advice = advise(PRECOMPILED, labelled=True, current=DEFAULTS)
    assert advice.timers.max_node_provision is not None
    assert advice.timers.max_node_provision < 600
    assert advice.kept == {}
    some_lost = msgspec.structs.replace(PRECOMPILED, lost=(900.0,))
    advice = advise(some_lost, labelled=True, current=DEFAULTS)
    assert advice.timers == DEFAULTS
    assert set(advice.kept.values()) == {LOST}


def test_without_a_default_an_unknown_timer_is_left_as_it_is() -> None:
    advice = advise(FEW, labelled=True, defaults=Timers())
    assert advice.timers == Timers()
    assert advice.kept["unneeded"] == TOO_FEW


@given(
    st.lists(st.floats(0, 5000), min_size=1, max_size=298),
    st.none() | st.floats(0, 5000),
    st.booleans(),
)
def test_no_small_sample_shortens_any_timer(values: list[float], now: float | None, labelled: bool) -> None:
    times = GroupTimes(group="g", provision=tuple(values), startup=tuple(values), ready=tuple(values))
    current = Timers(max_node_provision=now, max_node_startup=now, unneeded=now, delay_after_add=now)
    told = msgspec.structs.astuple(advise(times, labelled=labelled, current=current).timers)
    for each, default in zip(told, msgspec.structs.astuple(DEFAULTS), strict=True):
        assert each is not None
        assert each >= max(now or 0, default)


def test_without_values_nothing_is_advised() -> None:
    nothing = GroupTimes(group="gpu")
    advice = advise(nothing, labelled=None)
    assert advice.timers == Timers()
    told = findings(nothing, advice, DEFAULTS, labels=Labels(present=None))
    assert [each.rank for each in told] == [Rank.LABEL_UNKNOWN, Rank.NO_VALUES, Rank.NO_VALUES, Rank.NO_VALUES]


def test_without_a_label_nodes_go_as_empty_and_the_delay_after_a_scale_up_may_save_them() -> None:
    def late(delay: float) -> float:
        told = empty_loop(BUILT, Timers(unneeded=300, delay_after_add=delay))
        assert told is not None
        return told.late

    assert (late(0), late(480)) == (1, 1)  # they are Ready 180 s after the request
    assert 0.2 < late(560) < 0.5
    assert late(600) == 0


def test_with_the_label_an_early_removal_is_no_concern() -> None:
    told = findings(
        BUILT,
        advise(BUILT, labelled=True),
        Timers(unneeded=30, delay_after_add=0),
        labels=Labels(present=True),
    )
    assert told == ()


def test_a_label_of_another_type_than_the_limits_is_told_after_timers() -> None:
    labels = Labels(present=True, name="cluster-api/accelerator", value="nvidia-t4", types=("nvidia.com/gpu",))
    told = findings(BUILT, advise(BUILT, labelled=True), Timers(max_node_provision=300), labels=labels)
    assert [each.rank for each in told] == [Rank.LOOP, Rank.LABEL_UNMATCHED]
    for fact in ('the value "nvidia-t4"', "limits for nvidia.com/gpu"):
        assert fact in told[1].text
    matched = msgspec.structs.replace(labels, types=("nvidia.com/gpu", "nvidia-t4"))
    assert len(findings(BUILT, advise(BUILT, labelled=True), Timers(max_node_provision=300), labels=matched)) == 1


def test_nodes_that_were_lost_make_bounds_doubtful() -> None:
    times = GroupTimes(group="gpu", provision=(250.0, 260.0), lost=(330.0, 340.0))
    told = findings(times, advise(times, labelled=True), Timers(), labels=Labels(present=True))
    assert told[0].rank is Rank.LOST
    for fact in ("2 nodes went away", "before the cards could be used", "after 5m40s at most"):
        assert fact in told[0].text


def test_pods_below_the_cutoff_are_named() -> None:
    (told,) = expendable_pod_findings(["a/w-1", "a/w-2", "a/w-3", "a/w-4"], -10)
    for fact in ("a/w-1, a/w-2, a/w-3 and 1 more", "no node is ever made", "priority is below"):
        assert fact in told.text
    assert expendable_pod_findings([], -10) == ()


def test_groups_whose_new_nodes_did_not_help_are_named_with_their_pods() -> None:
    why = "node a-1 came and cannot take the pod: node(s) had untolerated taint {team: x}"
    early, late = Pause(0.0, 1_893_456_000.0, "before"), Pause(0.0, 1_893_457_000.0, why)
    first, second = useless_node_findings([("n/p", "a", early), ("n/q", "a", late), ("n/q", "b", early)])
    assert (
        first.text
        == f"new nodes of group a did not help n/p, n/q: {why}; none is asked for before 2030-01-01T00:16:40Z"
    )
    assert "tessera why pod n/p" in first.remedy
    assert second.text.startswith("new nodes of group b did not help n/q: before;")
    assert useless_node_findings([]) == ()


def test_karpenter_is_told_that_it_waits_for_ever() -> None:
    told = findings(
        PRECOMPILED, advise(PRECOMPILED, labelled=None), Timers(), labels=Labels(present=None), karpenter=True
    )
    assert [each.rank for each in told] == [Rank.NO_DEADLINE]


def test_the_loop_costs_what_the_formula_says() -> None:
    told = replace_loop([200.0, 400.0], 300, backoff=300)
    assert (told.late, told.attempts) == (0.5, 2.0)
    assert told.seconds == 600 + 200
    assert told.wasted_node_hours == pytest.approx(300 / 3600)
    assert told.loops


def test_nodes_in_time_cost_nothing() -> None:
    told = replace_loop([200.0] * 20, 300)
    assert (told.late, told.attempts, told.seconds, told.wasted_node_hours) == (0, 1, 200, 0)
    assert told.late_high == pytest.approx(1 - 0.025 ** (1 / 20), abs=1e-6)  # Clopper and Pearson, no success of 20


def test_a_timer_that_nobody_meets_never_ends() -> None:
    told = replace_loop([400.0], 300)
    assert (told.attempts, told.seconds, told.wasted_node_hours) == (math.inf, math.inf, math.inf)


@given(st.lists(st.floats(1, 2000), min_size=1, max_size=40), st.floats(1, 2000))
def test_the_share_lies_within_its_interval(values: list[float], timer: float) -> None:
    told = replace_loop(values, timer)
    assert told.late_low <= told.late <= told.late_high
    assert told.attempts >= 1


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=60))
def test_no_measured_node_would_have_been_given_up(values: list[float]) -> None:
    times = GroupTimes(group="g", provision=tuple(values), startup=tuple(values), ready=tuple(values))
    timers = advise(times, labelled=False).timers
    assert timers.max_node_provision is not None
    assert timers.max_node_provision > max(values)
    assert timers.unneeded is not None
    assert timers.unneeded > max(values)


def test_advice_is_written_for_each_autoscaler() -> None:
    advice = advise(PRECOMPILED, labelled=True)
    timers = longest([advice, advise(BUILT, labelled=True)])
    assert timers.max_node_provision == advise(BUILT, labelled=True).timers.max_node_provision
    assert openshift(Timers(max_node_provision=330, unneeded=240)) == {
        "apiVersion": "autoscaling.openshift.io/v1",
        "kind": "ClusterAutoscaler",
        "metadata": {"name": "default"},
        "spec": {"maxNodeProvisionTime": "5m30s", "scaleDown": {"enabled": True, "unneededTime": "4m"}},
    }
    assert flags(Timers(max_node_provision=330, delay_after_add=45)) == [
        "--max-node-provision-time=5m30s",
        "--scale-down-delay-after-add=45s",
    ]
    assert set(capi(advice)) == {
        "cluster.x-k8s.io/autoscaling-options-maxnodeprovisiontime",
        "cluster.x-k8s.io/autoscaling-options-maxnodestartuptime",
        "cluster.x-k8s.io/autoscaling-options-scaledownunneededtime",
    }
    pool_ = karpenter(advice, "example.com/taint")
    assert pool_["spec"]["disruption"] == {"consolidateAfter": "4m30s"}  # whoever owns it has chosen the policy
    assert pool_["spec"]["template"]["spec"]["startupTaints"] == [{"key": "example.com/taint", "effect": "NoSchedule"}]


def test_a_timer_of_all_groups_is_not_shorter_than_one_that_was_not_measured_may_be() -> None:
    unmeasured = advise(GroupTimes(group="other"), labelled=True, current=Timers(max_node_provision=1800))
    measured = advise(PRECOMPILED, labelled=True, current=DEFAULTS)
    assert longest([measured, unmeasured]).max_node_provision == 1800
    assert longest([unmeasured]) == Timers()


def test_records_give_times_and_what_is_not_known_gives_none() -> None:
    whole = {
        Milestone.REQUESTED: 0.0,
        Milestone.REGISTERED: 180.0,
        Milestone.READY: 190.0,
        Milestone.ALLOCATABLE: 400.0,
    }
    (told,) = from_records(
        [
            ProvisioningRecord(node="a", group="gpu", at=whole),
            ProvisioningRecord(node="b", group="gpu", at={Milestone.READY: 10.0}),
            ProvisioningRecord(
                node="c", group="gpu", at={Milestone.READY: 10.0, Milestone.ALLOCATABLE: 9.0}, simulated=True
            ),
        ]
    )
    assert (told.provision, told.startup, told.ready) == ((400.0,), (220.0,), (210.0,))
    assert told.simulated


def test_a_node_that_was_lost_gives_only_how_long_it_was_there() -> None:
    lost = ProvisioningRecord(
        node="a", group="gpu", at={Milestone.REQUESTED: 100.0, Milestone.READY: 250.0}, lost=430.0
    )
    (told,) = from_records([lost])
    assert (told.provision, told.ready, told.lost) == ((), (), (330.0,))


@pytest.mark.parametrize(
    "text",
    [
        "group,provision,ready\na,549,369\na,,217\n",
        '[{"group":"a","provision":549,"ready":369},{"group":"a","ready":217}]',
    ],
)
def test_files_may_be_csv_or_json(text: str) -> None:
    (told,) = from_file(text)
    assert (told.provision, told.startup, told.ready) == ((549.0,), (), (369.0, 217.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no rows"),
        ("group,ready\na,soon\n", "line 2.ready: must be from 0 to 604,800 seconds, not 'soon'"),
        ("group,ready\na,-1\n", "line 2.ready: must be from 0"),
        ('[{"grp":"a","ready":1}]', '"grp" is none of group'),
        ("[1]", "must be an object"),
        ("[", "is no JSON"),
        ('[{"ready": "NaN"}]', "must be from 0"),
        ("x" * 200_000, "is no CSV: field larger than field limit"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(FileRefused, match=said.replace("[", r"\[")):
        from_file(text)


def test_a_pool_of_none_makes_everybody_wait() -> None:
    told = pool(0, per_hour=6, seconds=600, node_price=1, wait_price=2)
    assert (told.waits, told.idle_nodes, told.saved_seconds) == (1, 0, 0)
    assert told.wait_cost == pytest.approx(6 * 600 / 3600 * 2)


def test_a_shorter_time_to_a_gpu_needs_fewer_warm_nodes() -> None:
    built = smallest(0.05, per_hour=12, seconds=549, node_price=1)
    precompiled = smallest(0.05, per_hour=12, seconds=397, node_price=1)
    assert precompiled.nodes < built.nodes
    assert built.waits <= 0.05 < pool(built.nodes - 1, per_hour=12, seconds=549, node_price=1).waits


def test_the_model_agrees_with_a_played_day() -> None:
    rng, per_hour, seconds, nodes = Random(3), 20.0, 500.0, 4
    told = pool(nodes, per_hour=per_hour, seconds=seconds, node_price=1)
    clock, ready, waited = 0.0, [0.0] * nodes, 0
    for _ in range(40_000):
        clock += rng.expovariate(per_hour / 3600)
        ready.sort()
        there = ready.pop(0)
        waited += there > clock
        ready.append(clock + seconds * rng.uniform(0.5, 1.5))
    assert waited / 40_000 == pytest.approx(told.waits, abs=0.02)


@given(st.floats(0.1, 60), st.floats(10, 2000), st.floats(0.1, 50))
def test_no_pool_is_cheaper_than_the_cheapest(per_hour: float, seconds: float, wait_price: float) -> None:
    best = cheapest(per_hour=per_hour, seconds=seconds, node_price=1, wait_price=wait_price)
    for nodes in range(best.nodes + 4):
        other = pool(nodes, per_hour=per_hour, seconds=seconds, node_price=1, wait_price=wait_price)
        assert best.cost <= other.cost + 1e-9


def test_a_pool_beyond_reason_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1,000 nodes"):
        smallest(0.01, per_hour=10_000, seconds=3600, node_price=1)


def test_placeholders_are_such_that_the_autoscaler_makes_nodes_for_them() -> None:
    priority, deployment = placeholders(Placeholder(name="warm", count=4, selector={"pool": "gpu"}), 3)
    assert priority["value"] >= -10
    spec = deployment["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert (deployment["spec"]["replicas"], spec["nodeSelector"]) == (3, {"pool": "gpu"})
