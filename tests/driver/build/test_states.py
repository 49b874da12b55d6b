"""States of builds, read from Jobs and pods, and the Jobs that follow: tables of plain values."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.clock import rfc3339
from tessera.driver.build.job import build_job
from tessera.driver.build.orders import BuildOrder
from tessera.driver.build.states import BuildAttempt, BuildPhase, BuildRetries, build_state, decide_builds, read_attempt
from tessera.driver.driver_sets import PoolKey
from tessera.kube.resources import JOBS, PODS, Job, Pod, manifest

Ordered = Callable[..., BuildOrder]
NOW = 1_800_000_000.0
RETRIES = BuildRetries(pause=600.0, attempts=3)
DIGEST = "sha256:" + "a" * 64


def seen_job(order: BuildOrder, number: int = 1, **status: Any) -> Job:
    body = manifest(JOBS.as_dicts(), build_job(order, number)) | {"status": status}
    body["metadata"] |= {"uid": f"job-{number}", "creationTimestamp": rfc3339(NOW - 60)}
    return msgspec.convert(body, Job)


def seen_pod(**status: Any) -> Pod:
    body = {"metadata": {"name": "tessera-build-x-1-abcde", "creationTimestamp": rfc3339(NOW - 50)}, "status": status}
    return msgspec.convert(manifest(PODS.as_dicts(), body), Pod)


def ended(code: int, message: str = "", reason: str = "Error") -> Pod:
    state = {"terminated": {"exitCode": code, "message": message, "reason": reason}}
    return seen_pod(phase="Failed" if code else "Succeeded", containerStatuses=[{"name": "build", "state": state}])


def condition(kind: str, reason: str = "", message: str = "", at: float = NOW) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": rfc3339(at),
    }


def an_attempt(order: BuildOrder, number: int, phase: BuildPhase, since: float = NOW) -> BuildAttempt:
    return BuildAttempt(key=order.key, tag=order.tag_key, target=order.target, number=number, phase=phase, since=since)


def test_a_job_without_an_end_runs_since_it_was_made(ordered: Ordered) -> None:
    found = read_attempt(seen_job(ordered(), active=1), ())
    assert found is not None
    assert (found.phase, found.since, found.number) == (BuildPhase.RUNNING, NOW - 60, 1)
    assert found.target == ordered().target


def test_a_done_job_tells_the_digest_that_its_pod_left(ordered: Ordered) -> None:
    found = read_attempt(
        seen_job(ordered(), conditions=[condition("Complete")]), [ended(0, DIGEST + "\n", "Completed")]
    )
    assert found is not None
    assert (found.phase, found.since, found.digest) == (BuildPhase.DONE, NOW, DIGEST)


@pytest.mark.parametrize("word", ["", "sha256:short", "x" * 71])
def test_what_is_no_digest_is_not_taken_for_one(ordered: Ordered, word: str) -> None:
    found = read_attempt(seen_job(ordered(), conditions=[condition("Complete")]), [ended(0, word)])
    assert found is not None
    assert found.digest == ""


@pytest.mark.parametrize(
    ("pods", "facts"),
    [
        (
            [ended(1, "install-ubuntu: Canonical has no modules\n of 525")],
            ("pod tessera-build-x-1-abcde", "exit code 1", "install-ubuntu: Canonical has no modules of 525"),
        ),
        ([ended(137, "", "OOMKilled")], ("pod tessera-build-x-1-abcde", "exit code 137", "OOMKilled")),
        (
            [seen_pod(phase="Failed", reason="Evicted", message="The node was low on resource")],
            ("pod tessera-build-x-1-abcde failed", "Evicted", "The node was low on resource"),
        ),
        ([], ("DeadlineExceeded", "Job was active longer than specified deadline")),
    ],
)
def test_a_failed_job_tells_its_pod_s_own_words(ordered: Ordered, pods: list[Pod], facts: tuple[str, ...]) -> None:
    failed = condition("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    found = read_attempt(seen_job(ordered(), conditions=[failed]), pods)
    assert found is not None
    assert found.phase is BuildPhase.FAILED
    for fact in facts:
        assert fact in found.text


def test_a_pod_that_says_much_is_told_in_part(ordered: Ordered) -> None:
    found = read_attempt(seen_job(ordered(), conditions=[condition("Failed")]), [ended(1, "x" * 4096)])
    assert found is not None
    assert len(found.text) < 700


def test_a_build_that_waits_says_for_what(ordered: Ordered) -> None:
    no_node = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: arm64"}
    pull = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    for pod, says in (
        (seen_pod(phase="Pending", conditions=[no_node]), "has no node: 0/3 nodes are available: arm64"),
        (
            seen_pod(phase="Pending", containerStatuses=[{"name": "build", "state": pull}]),
            "waits: ImagePullBackOff: Back-off pulling image",
        ),
    ):
        found = read_attempt(seen_job(ordered()), [pod])
        assert found is not None
        assert found.text == f"pod tessera-build-x-1-abcde {says}"


@pytest.mark.parametrize("number", ["", "x", "-1", "99999", "٣"])
def test_a_job_that_somebody_else_labelled_is_none(ordered: Ordered, number: str) -> None:
    foreign = seen_job(ordered())
    foreign.metadata.annotations["tessera.dev/build-attempt"] = number
    assert read_attempt(foreign, ()) is None


def test_ten_nodes_want_one_build(ordered: Ordered) -> None:
    starts, due = decide_builds([ordered() for _ in range(10)], {}, NOW, RETRIES)
    assert [(start.order.target, start.attempt) for start in starts] == [(ordered().target, 1)]
    assert due is None


@pytest.mark.parametrize("phase", [BuildPhase.RUNNING, BuildPhase.DONE])
def test_what_runs_or_is_done_is_not_started_again(ordered: Ordered, phase: BuildPhase) -> None:
    assert decide_builds([ordered()], {"a": an_attempt(ordered(), 1, phase)}, NOW + 1e6, RETRIES) == ([], None)


def test_a_failure_is_tried_again_after_a_pause_that_doubles(ordered: Ordered) -> None:
    first = {"a": an_attempt(ordered(), 1, BuildPhase.FAILED)}
    assert decide_builds([ordered()], first, NOW + 599, RETRIES) == ([], NOW + 600)
    (start,), _ = decide_builds([ordered()], first, NOW + 600, RETRIES)
    assert start.attempt == 2
    second = first | {"b": an_attempt(ordered(), 2, BuildPhase.FAILED)}
    assert decide_builds([ordered()], second, NOW + 600, RETRIES) == ([], NOW + 1200)


def test_after_the_last_attempt_there_is_none(ordered: Ordered) -> None:
    attempts = {str(n): an_attempt(ordered(), n, BuildPhase.FAILED) for n in (1, 2, 3)}
    assert decide_builds([ordered()], attempts, NOW + 1e9, RETRIES) == ([], None)
    told = build_state(ordered(), attempts.values(), RETRIES)
    assert told.again is None
    assert told.text.endswith("given up after 3 attempts until its Job is deleted")


def test_a_second_attempt_that_is_done_counts(ordered: Ordered) -> None:
    attempts = [an_attempt(ordered(), 1, BuildPhase.FAILED), an_attempt(ordered(), 2, BuildPhase.DONE)]
    assert build_state(ordered(), attempts, RETRIES).phase is BuildPhase.DONE


def test_two_architectures_under_one_tag_take_turns(ordered: Ordered, jammy: PoolKey) -> None:
    amd, arm = ordered(), ordered(msgspec.structs.replace(jammy, architecture="arm64"))
    starts, _ = decide_builds([amd, arm], {}, NOW, RETRIES)
    assert [start.order for start in starts] == [amd]
    running = {"a": an_attempt(amd, 1, BuildPhase.RUNNING)}
    assert decide_builds([amd, arm], running, NOW, RETRIES) == ([], None)
    starts, _ = decide_builds([amd, arm], {"a": an_attempt(amd, 1, BuildPhase.DONE)}, NOW, RETRIES)
    assert [start.order for start in starts] == [arm]


@given(st.lists(st.sampled_from(["want", "fail", "done", "wait", "forget"]), max_size=40))
def test_whatever_happens_one_build_runs_at_a_time_and_failures_are_bounded(steps: list[str]) -> None:
    pool = PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-69-generic", architecture="amd64")
    order = BuildOrder(pool=pool, version="525", target="r.local/d:1", open_modules=False, base_image="b")
    attempts: dict[str, BuildAttempt] = {}
    now, wanted = NOW, True
    for step in steps:
        running = [name for name, each in attempts.items() if each.phase is BuildPhase.RUNNING]
        match step:
            case "want" | "forget":
                wanted = step == "want"
            case "wait":
                now += 500
            case "fail" | "done" if running:
                phase = BuildPhase.FAILED if step == "fail" else BuildPhase.DONE
                attempts[running[0]] = msgspec.structs.replace(attempts[running[0]], phase=phase, since=now)
        # Whoever decides anew, before and after a write, decides the same: names are the API server's.
        for _ in range(2):
            starts, _due = decide_builds([order] * 3 if wanted else [], attempts, now, RETRIES)
            for start in starts:
                name = f"{start.order.name}-{start.attempt}"
                assert name not in attempts
                attempts[name] = an_attempt(order, start.attempt, BuildPhase.RUNNING, now)
        assert sum(each.phase is BuildPhase.RUNNING for each in attempts.values()) <= 1
        assert len(attempts) <= RETRIES.attempts
        assert sum(each.phase is BuildPhase.DONE for each in attempts.values()) <= 1
