"""Pauses after new nodes that came for a pod and did not help: what the pod's event says, and how it is read again.

The controller writes the event. ``tessera why`` repeats it, ``tessera autoscaler advise`` counts such pods, and a new
leader reads it, so that a restart ends no pause. An API server keeps an event for an hour; the controller records it
again before that.
"""

import re

import msgspec

from tessera.api.nodes.node_groups import NODE_GROUPS_MAP
from tessera.clock import parse_time_or_zero, rfc3339

#: Reason of the event.
NO_HELP_REASON = "NewNodeOfNoUse"
#: Seconds of the first pause: Cluster Autoscaler's own after a node that did not come
#: (``--initial-node-group-backoff-duration``).
FIRST_PAUSE = 300.0
#: Seconds of the longest pause: a node a day may show that the cloud has other machines now.
LONGEST_PAUSE = 86_400.0

_TEXT = re.compile(r"no new node of group (\S+) is asked for before (\S+), as none has helped since (\S+): (.*)")


class Pause(msgspec.Struct, frozen=True):
    """A time in which no new node of a group is asked for, for one kind of requests.

    Attributes:
        since: when the first new node was of no use, seconds since 1970.
        until: when the next may be asked for.
        why: the last such node, and what keeps the pods off it.
    """

    since: float
    until: float
    why: str


def next_pause(before: Pause | None, now: float, why: str) -> Pause:
    """Returns the pause after a further node of no use: as long as the search has lasted, so it about doubles."""
    since = now if before is None else before.since
    return Pause(since, now + min(LONGEST_PAUSE, max(FIRST_PAUSE, now - since)), why)


def pause_text(group: str, pause: Pause) -> str:
    """Returns the event's text."""
    return (
        f"no new node of group {group} is asked for before {rfc3339(pause.until)}, as none has helped since"
        f" {rfc3339(pause.since)}: {pause.why}; other requests of the pod, or a change of the ConfigMap"
        f" {NODE_GROUPS_MAP}, end the pause"
    )


def read_pause(text: str, now: float) -> tuple[str, Pause] | None:
    """Returns group and pause of an event's text; None for any other text, and for a pause that nobody may set."""
    found = _TEXT.match(text)
    if found is None:
        return None
    group, until, since = found[1], parse_time_or_zero(found[2]), parse_time_or_zero(found[3])
    if not 0 < since <= now or until > now + LONGEST_PAUSE:
        return None
    return group, Pause(since, until, found[4].partition("; other requests of the pod")[0])
