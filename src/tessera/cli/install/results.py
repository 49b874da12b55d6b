"""The result for each object of an installation, and the lines about them: each change, the sum, the next steps."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from tessera.cli.install.manifests import AGENT, CONTROLLER
from tessera.text import count_noun


class AppliedObject(msgspec.Struct, frozen=True):
    """The result for one object.

    Attributes:
        name: the name as kubectl prints it, with the namespace: ``daemonset.apps/tessera-agent in tessera-system``.
        result: ``created``, ``configured``, ``unchanged`` or ``deleted``; ``replaced`` if an option's file replaced one
            that somebody else wrote; ``withdrawn`` if only our fields were removed; ``left`` if it has another owner,
            ``immutable`` if it should change and cannot.
    """

    name: str
    result: str


DRY_RUN = " (dry run)"
#: The results in the order in which they are counted.
_RESULTS = ("created", "configured", "replaced", "withdrawn", "deleted", "left", "immutable", "unchanged")
#: Longer texts of a result, for one object and for several.
_OF_ONE = {
    "immutable": "stays, it is immutable; if you do not need it, delete it with kubectl",
    "left": "skipped, it has another owner",
    "replaced": "configured: a ConfigMap made by hand was replaced",
    "withdrawn": "configured: Tessera's fields were removed, it stays since others wrote to it",
}
_OF_MANY = {
    "immutable": "immutable and left as it is",
    "left": "skipped (other owner)",
    "replaced": "made by hand and replaced",
    "withdrawn": "of others without Tessera's fields",
}
#: Workloads whose rollout the next steps may name: the first that is new or different.
_WORKLOADS = (("daemonset", AGENT), ("deployment", CONTROLLER), ("deployment", "tessera-webhook"))
_DRIVERS = ("clusterpolicy.nvidia.com/", "nvidiadriver.nvidia.com/")


def result_line(done: AppliedObject, *, dry: bool) -> str:
    """The line for one object; empty if it is unchanged."""
    if done.result == "unchanged":
        return ""
    return f"{done.name} {_OF_ONE.get(done.result, done.result)}{DRY_RUN if dry else ''}"


def summary_line(all_done: Sequence[AppliedObject], *, dry: bool) -> str:
    """The number of objects of each result: ``1 object created, 38 unchanged``."""
    counts = Counter(each.result for each in all_done)
    (first, number), *others = ((each, counts[each]) for each in _RESULTS if counts[each])
    parts = [f"{count_noun(number, 'object')} {_OF_MANY.get(first, first)}"]
    parts += [f"{count} {_OF_MANY.get(each, each)}" for each, count in others]
    return f"{', '.join(parts)}{DRY_RUN if dry else ''}"


def next_steps(all_done: Sequence[AppliedObject]) -> Iterator[str]:
    """The commands that show the progress of the changes; nothing without changes."""
    new = {each.name for each in all_done if each.result in {"created", "configured"}}
    for kind, name in _WORKLOADS:
        if f"{kind}.apps/{name} in tessera-system" in new:
            yield f"Watch it start: kubectl rollout status -n tessera-system {kind}/{name}"
            break
    if any(each.startswith(_DRIVERS) for each in new):
        yield "Watch the drivers: tessera driver status"
    elif any(each.name.startswith(_DRIVERS) and each.result == "deleted" for each in all_done):
        yield "Tessera removes the driver from each node when its pods with cards have ended: tessera driver status -v"
