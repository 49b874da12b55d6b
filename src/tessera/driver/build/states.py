"""Reads the state of builds from Jobs and their pods, and decides which Jobs to create. Pure.

Rules:

1. A build is identified by its key (:attr:`BuildOrder.key`), an attempt by its Job's name. A controller that restarts
   reads the same Jobs and decides the same.
2. A failed attempt is repeated after a pause that doubles, up to a number of attempts. Jobs are kept for a day; after
   that, a build that failed for good begins anew if it is still wanted.
3. A finished build is not repeated while its Job exists, even if the image is not found: then the registry or its
   access rights are wrong, and the state says so.
4. Builds for two architectures under one tag take turns, since the second adds to the first one's index.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum

import msgspec

from tessera.clock import parse_time_or_zero
from tessera.driver.build.job import ATTEMPT_ANNOTATION, KEY_LABEL, TAG_LABEL, TARGET_ANNOTATION
from tessera.driver.build.orders import BuildOrder
from tessera.kube.resources import ContainerStateTerminated, Job, Pod

#: Most characters: last words of a build's pod, in a status. The last lines of a failed build fit.
BUILD_WORDS = 600


class BuildPhase(Enum):
    """The phase of a build."""

    NONE = "none"  # not wanted so far, or waiting for its turn
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class BuildState(msgspec.Struct, frozen=True, kw_only=True):
    """One build, over all of its attempts.

    Attributes:
        phase: the phase.
        since: seconds since 1970 at which this phase began; 0 for NONE.
        attempts: number of Jobs so far.
        text: progress or error, in the pod's own words; empty if there is nothing to report.
        again: seconds since 1970 at which a failed build is retried; None if it is not.
        digest: digest of the pushed image, as the pod reported it; empty if unknown.
    """

    phase: BuildPhase
    since: float = 0.0
    attempts: int = 0
    text: str = ""
    again: float | None = None
    digest: str = ""


class BuildRetries(msgspec.Struct, frozen=True, kw_only=True):
    """Retries of a failed build: seconds before the second attempt, doubled for each further one, and the limit."""

    pause: float = 600.0
    attempts: int = 5


class BuildAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One Job."""

    key: str
    tag: str
    target: str
    number: int
    phase: BuildPhase
    since: float
    text: str = ""
    digest: str = ""


class StartBuild(msgspec.Struct, frozen=True, kw_only=True):
    """An instruction: make the Job of this attempt."""

    order: BuildOrder
    attempt: int


def read_attempt(job: Job, pods: Iterable[Pod]) -> BuildAttempt | None:
    """The attempt that a Job stands for; None if a label is missing or a number is invalid."""
    labels, number = job.metadata.labels, job.metadata.annotations.get(ATTEMPT_ANNOTATION, "")
    if KEY_LABEL not in labels or not number.isascii() or not number.isdigit() or len(number) > 4:
        return None
    newest = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "")
    phase, since, text, digest = _phase(job, newest)
    return BuildAttempt(
        key=labels[KEY_LABEL],
        tag=labels.get(TAG_LABEL, ""),
        target=job.metadata.annotations.get(TARGET_ANNOTATION, ""),
        number=int(number),
        phase=phase,
        since=since,
        text=text,
        digest=digest,
    )


def _phase(job: Job, pods: list[Pod]) -> tuple[BuildPhase, float, str, str]:
    made = parse_time_or_zero(job.metadata.creation_timestamp)
    for condition in job.status.conditions:
        if condition.status != "True":
            continue
        ended = parse_time_or_zero(condition.last_transition_time) or made
        if condition.type == "Complete":
            digest = next((word for pod in reversed(pods) if (word := _digest(pod))), "")
            return BuildPhase.DONE, ended, "", digest
        if condition.type == "Failed":
            return BuildPhase.FAILED, ended, _failure(condition.reason, condition.message, pods), ""
    return BuildPhase.RUNNING, made, _progress(pods), ""


def _terminated_container(pod: Pod) -> ContainerStateTerminated | None:
    return next((each.terminated for each in pod.status.container_statuses if each.terminated is not None), None)


def _digest(pod: Pod) -> str:
    ended = _terminated_container(pod)
    word = ended.message.strip() if ended is not None and ended.exit_code == 0 else ""
    return word if word.startswith("sha256:") and len(word) == 71 else ""


def _failure(reason: str, message: str, pods: list[Pod]) -> str:
    """The last pod's exit code and last message; the Job's own message if it has no pod."""
    for pod in reversed(pods):
        ended = _terminated_container(pod)
        if ended is not None and ended.exit_code != 0:
            words = " ".join(ended.message.split())[-BUILD_WORDS:] or ended.reason or "it said nothing"
            return f"pod {pod.metadata.name} ended with exit code {ended.exit_code}: {words}"
        if pod.status.phase == "Failed":
            message = f"{pod.status.reason} {pod.status.message}".strip() or "no reason was given"
            return f"pod {pod.metadata.name} failed: {' '.join(message.split())[:BUILD_WORDS]}"
    return f"{reason}: {message}"[:BUILD_WORDS]


def _progress(pods: list[Pod]) -> str:
    """Reason that a started build makes no progress; empty if it makes progress."""
    if not pods:
        return ""
    pod = pods[-1]
    for status in pod.status.container_statuses:
        waiting = status.waiting
        if waiting is not None and waiting.reason not in {"", "ContainerCreating", "PodInitializing"}:
            return f"pod {pod.metadata.name} waits: {waiting.reason}: {waiting.message}"[:BUILD_WORDS]
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"pod {pod.metadata.name} has no node: {condition.message}"[:BUILD_WORDS]
    return ""


def build_state(order: BuildOrder, attempts: Iterable[BuildAttempt], retries: BuildRetries) -> BuildState:
    """The state of one build over all of its attempts; the attempt with the highest number decides."""
    own = [each for each in attempts if each.key == order.key]
    if not own:
        return BuildState(phase=BuildPhase.NONE)
    last = max(own, key=lambda each: each.number)
    again = None
    text = last.text
    if last.phase is BuildPhase.FAILED:
        if last.number < retries.attempts:
            again = last.since + retries.pause * 2.0 ** (last.number - 1)
        else:
            text = f"{text}; given up after {last.number} attempts until its Job is deleted"
    return BuildState(
        phase=last.phase, since=last.since, attempts=last.number, text=text, again=again, digest=last.digest
    )


def decide_builds(
    wanted: Collection[BuildOrder], attempts: Mapping[str, BuildAttempt], now: float, retries: BuildRetries
) -> tuple[list[StartBuild], float | None]:
    """Decides which builds to start now.

    Args:
        wanted: the wanted builds; the same order may occur several times.
        attempts: all Jobs, by name.
        now: seconds since 1970.
        retries: how failures are repeated.

    Returns:
        Instructions, and the next point in time at which the result changes although no input does.
    """
    busy = {each.tag for each in attempts.values() if each.phase is BuildPhase.RUNNING}
    starts: list[StartBuild] = []
    due: list[float] = []
    for order in {each.key: each for each in wanted}.values():
        found = build_state(order, attempts.values(), retries)
        if found.phase in {BuildPhase.RUNNING, BuildPhase.DONE}:
            continue
        if found.phase is BuildPhase.FAILED and found.again is None:
            continue
        if found.again is not None and found.again > now:
            due.append(found.again)
        elif order.tag_key not in busy:
            busy.add(order.tag_key)
            starts.append(StartBuild(order=order, attempt=found.attempts + 1))
    return starts, min(due, default=None)
