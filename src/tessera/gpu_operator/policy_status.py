"""The status of a ClusterPolicy or NVIDIADriver: whether its nodes have their drivers, and fields without effect.

An object is ready when each of its nodes has the driver that the object names: another driver that works there does not
count, as with NVIDIA's operator.

States and the conditions Ready and Error, with their reasons, are those of NVIDIA's operator. Two differences: a driver
that is being installed is no error, so Error is true only if a person must act; and Ready itself says what is awaited.
Two conditions are Tessera's: ``FieldsIgnored`` and ``NodesWithoutDriver``, which names nodes. Texts are bounded,
whatever the number of nodes.

All functions are pure: the time is passed in, and a condition whose status stays keeps its time. Conditions of other
types are left alone. If nothing has changed, nothing is written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.nodes.node_marks import DriverPhase, DriverStatus, DriverStrategy
from tessera.api.problems import Notice, Problem
from tessera.gpu_operator.assignment import DriverConflict
from tessera.text import count_noun, list_names

#: Most characters: message of a condition of a ClusterPolicy or NVIDIADriver. A line for each of 20 faults; definitions
#: allow 32,768.
POLICY_MESSAGE = 4_096

READY, ERROR = "Ready", "Error"
WITHOUT_EFFECT = "FieldsIgnored"
WITHOUT_DRIVER = "NodesWithoutDriver"

_LIST_MOST = 20
#: Most names before one text.
_NAMES_MOST = 10

#: Beginning of a notice about a field without effect; other notices are about defaults.
NO_EFFECT = "no effect"

#: Why a driver that works is not replaced under a policy without ``upgradePolicy.autoUpgrade``.
AUTO_UPGRADE_OFF = "autoUpgrade is off"

_STUCK = (DriverPhase.FAILED, DriverPhase.BLOCKED)


class PolicyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status that Tessera writes to an object.

    Attributes:
        state: ignored, ready, notReady, or disabled for an NVIDIADriver that does not count.
        reason: reason of Ready, and of Error if that is true.
        message: one sentence.
        error: True if a person must act.
        waiting: by node without a driver, the event that it waits for.
        notices: notices on the object's fields; only those on fields without effect are used.
    """

    state: str
    reason: str
    message: str
    error: bool = False
    waiting: Mapping[str, str] = {}
    notices: tuple[Notice, ...] = ()


def summarize_nodes(
    nodes: Mapping[str, DriverStatus | None],
    notices: Iterable[Notice] = (),
    *,
    nobody: str = "no node has a card",
    holds: Mapping[str, str] = {},
    left_alone: int = 0,
) -> PolicyStatus:
    """Returns the status of an object that Tessera follows: ready if every node has the driver that is wanted.

    Args:
        nodes: its nodes with cards; None for a node whose driver is not decided yet.
        notices: notices on its fields.
        nobody: the message if it has no nodes.
        holds: by node, why no driver that works is replaced there; nodes with a rollout are not in it.
        left_alone: nodes that are not counted, since their labels say that their driver is left alone.
    """
    notice_list = tuple(notices)
    waiting = {name: _waits_for(each) for name, each in sorted(nodes.items()) if each is None or not each.serves}
    outdated = {name: each for name, each in sorted(nodes.items()) if each is not None and each.outdated}
    if not nodes:
        return PolicyStatus(state="ready", reason="NoGPUNodes", message=nobody, notices=notice_list)
    if not waiting and not outdated:
        own = sum(each is not None and each.strategy is DriverStrategy.PREINSTALLED for each in nodes.values())
        text = _all_have(len(nodes), own, left_alone)
        return PolicyStatus(state="ready", reason="Reconciled", message=text, notices=notice_list)
    stuck = {name: text for name, text in waiting.items() if _is_stuck(nodes[name])}
    texts = [_without(waiting, stuck, len(nodes))] if waiting else []
    if outdated:
        texts.insert(0, _count_wanted(outdated, len(nodes) - len(waiting) - len(outdated), len(nodes), holds))
    return PolicyStatus(
        state="notReady",
        reason="DriverNotReady",
        message="; ".join(texts),
        error=bool(stuck),
        waiting=waiting,
        notices=notice_list,
    )


def _without(waiting: Mapping[str, str], stuck: Mapping[str, str], total: int) -> str:
    text = f"{len(waiting)} of {total} nodes without a driver"
    if not stuck:
        return text
    return f"{text}, {len(stuck)} of them for good: {_join_within_limit(_lines(stuck.items()))}"


def _count_wanted(outdated: Mapping[str, DriverStatus], have: int, total: int, holds: Mapping[str, str]) -> str:
    """``0 of 4 nodes have 535.104.05; autoUpgrade is off``: who has what is wanted, and why the others do not."""
    wanted = {each.wanted for each in outdated.values()}
    named = next(iter(wanted)) if len(wanted) == 1 else "the driver that is named for them"
    causes = {name: holds.get(name) or each.reason or each.phase.value for name, each in outdated.items()}
    off = set(causes.values()) == {AUTO_UPGRADE_OFF}
    why = AUTO_UPGRADE_OFF if off else _join_within_limit(_lines(causes.items()))
    return f"{have} of {total} nodes have {named}; {why}".rstrip(".")


def frozen_status(reason: str, notices: Iterable[Notice] = ()) -> PolicyStatus:
    """Returns the status of an object that is right, and that Tessera cannot follow now; ``reason`` is why."""
    return PolicyStatus(
        state="notReady",
        reason="ReconcileFailed",
        message=f"no node's driver is changed: {reason}",
        error=True,
        notices=tuple(notices),
    )


def unmanaged_status(notices: Iterable[Notice] = ()) -> PolicyStatus:
    """Returns the status of a ClusterPolicy whose ``driver.enabled`` is false."""
    text = "driver.enabled is false: Tessera installs no driver, the hosts bring theirs"
    return PolicyStatus(state="ready", reason="Reconciled", message=text, notices=tuple(notices))


def invalid_status(problems: Sequence[Problem]) -> PolicyStatus:
    """Returns the status of an object with mistakes: it is not applied; its last valid version stays in force."""
    text = f"{count_noun(len(problems), 'mistake')}: {_join_within_limit(map(str, problems))}"
    return PolicyStatus(state="notReady", reason="ReconcileFailed", message=text, error=True)


def ignored_status(winner: str) -> PolicyStatus:
    """Returns the status of a ClusterPolicy beside an older one."""
    text = f"{winner} is older and counts; delete one of the two"
    return PolicyStatus(state="ignored", reason="Ignored", message=text)


def disabled_status() -> PolicyStatus:
    """Returns the status of an NVIDIADriver that no ClusterPolicy asks for."""
    text = "no effect: no ClusterPolicy in force has driver.useNvidiaDriverCRD"
    return PolicyStatus(state="disabled", reason="Reconciled", message=text)


def conflict_status(conflict: DriverConflict, rest: PolicyStatus) -> PolicyStatus:
    """Returns the status of an NVIDIADriver that contradicts others; ``rest`` is about its other nodes."""
    return msgspec.structs.replace(
        rest, state="notReady", reason="ConflictingNodeSelector", message=conflict.text, error=True
    )


def make_status_patch(
    obj: Mapping[str, Any], verdict: PolicyStatus, *, namespace: str, now: str
) -> dict[str, Any] | None:
    """Returns the JSON merge patch of an object's status, or None if the status is right already.

    Args:
        obj: the object as it is.
        verdict: the status to write.
        namespace: Tessera's namespace.
        now: RFC 3339.
    """
    before = obj.get("status") or {}
    generation = (obj.get("metadata") or {}).get("generation")
    old = {each.get("type"): each for each in before.get("conditions") or ()}
    new = [_with_transition_time(each, old.get(each["type"]), generation, now) for each in _conditions(verdict)]
    types = {each["type"] for each in new}
    kept = [each for each in before.get("conditions") or () if each.get("type") not in types]
    status = {"state": verdict.state, "namespace": namespace, "conditions": [*new, *kept]}
    same = all(before.get(key) == value for key, value in status.items() if key != "conditions")
    if same and sorted(map(_key, old.values())) == sorted(map(_key, status["conditions"])):
        return None
    return {"status": status}


def _key(condition: Mapping[str, Any]) -> str:
    return repr(sorted(condition.items(), key=lambda pair: pair[0]))


def _conditions(verdict: PolicyStatus) -> Iterator[dict[str, Any]]:
    ready = verdict.state == "ready"
    yield _condition(READY, ready, verdict.reason, verdict.message)
    yield _condition(
        ERROR, verdict.error, verdict.reason if verdict.error else READY, verdict.message if verdict.error else ""
    )
    fields = _lines((each.path, each.text) for each in verdict.notices if each.text.startswith(NO_EFFECT))
    yield _condition(WITHOUT_EFFECT, bool(fields), "Reported" if fields else "None", _join_within_limit(fields))
    waiting = _lines(verdict.waiting.items())
    yield _condition(
        WITHOUT_DRIVER, bool(waiting), "DriverNotReady" if waiting else "None", _join_within_limit(waiting)
    )


def _condition(kind: str, holds: bool, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message[:POLICY_MESSAGE]}


def _with_transition_time(
    condition: dict[str, Any], old: Mapping[str, Any] | None, generation: int | None, now: str
) -> dict[str, Any]:
    same = old is not None and old.get("status") == condition["status"] and old.get("lastTransitionTime")
    observed = {} if generation is None else {"observedGeneration": generation}
    return {**condition, "lastTransitionTime": same or now, **observed}


# Words


def _is_stuck(status: DriverStatus | None) -> bool:
    return status is not None and status.phase in _STUCK


def _waits_for(status: DriverStatus | None) -> str:
    if status is None:
        return DriverPhase.WAITING.value
    return f"{status.phase.value}, {status.reason}" if status.reason else status.phase.value


def _all_have(nodes: int, own: int, left_alone: int) -> str:
    text = "the only node has its driver" if nodes == 1 else f"all {nodes} nodes have their driver"
    if own:
        text = f"{text}, {'pre-installed' if own == nodes else f'pre-installed on {own}'}"
    alone = f"; {left_alone} more {'is' if left_alone == 1 else 'are'} left alone, as labels say"
    return text + (alone if left_alone else "")


def _lines(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Returns one line for each text, with the names that it is about."""
    by_text: dict[str, list[str]] = {}
    for name, text in texts:
        by_text.setdefault(text, []).append(name)
    return [f"{list_names(names, _NAMES_MOST)}: {text}" for text, names in by_text.items()]


def _join_within_limit(lines: Iterable[str]) -> str:
    """Joins lines up to the limit, and counts the others."""
    every = list(lines)
    taken: list[str] = []
    for line in every[:_LIST_MOST]:
        short = line if len(line) <= 500 else f"{line[:497]}..."
        if sum(map(len, taken)) + len(short) > POLICY_MESSAGE - 200:
            break
        taken.append(short)
    more = len(every) - len(taken)
    return "; ".join(taken) + (f"; and {more} more" if more else "")
