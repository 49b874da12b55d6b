"""Which of a node's warnings still say something: the API server keeps them long after what they told has passed.

A warning with the reason of a condition told that this condition became ``False``. It has passed when the condition is
``True``, has changed its status since, or is not on the node any more, as nothing is asked of it. The same word may be
of several conditions; then all of them have to agree. Other warnings pass with time alone.
"""

from collections.abc import Iterable, Iterator, Mapping

from tessera.cli.verdicts.node_help import conditions_of
from tessera.cli.verdicts.sight import when
from tessera.clock import parse_rfc3339
from tessera.kube.resources import Condition, CoreEvent

#: Seconds after which a warning of no condition is not told any more; as long as an API server keeps one by default
#: (``kube-apiserver --event-ttl``).
RECENT = 3600.0


def still_telling(events: Iterable[CoreEvent], told: Mapping[str, Condition], now: float) -> Iterator[CoreEvent]:
    """Those that add to what the node's conditions say.

    Args:
        events: warnings about the node.
        told: the agent's conditions on it, by type; without any, warnings are all that there is to know.
        now: seconds since 1970.
    """
    said = {each.message for each in told.values()}
    for event in events:
        reasons_of = conditions_of(event.reason) if told else frozenset()
        if event.message in said or when(event) < now - RECENT:
            continue
        if not reasons_of or any(not _passed(event, told.get(each)) for each in reasons_of):
            yield event


def _passed(event: CoreEvent, condition: Condition | None) -> bool:
    if condition is None or condition.status == "True":
        return True
    try:
        return when(event) < parse_rfc3339(condition.last_transition_time or "")
    except ValueError:
        return False
