"""What an installation says: a line an object that changed, how many there were, and where to look next. Pure.

A trial says the same as the installation would, marked as one; it has nothing to look at.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from tessera.cli.install.apply import Done
from tessera.cli.install.manifests import AGENT, CONTROLLER

TRIAL = " (dry run)"
#: What became of objects, in the order in which they are counted.
_RESULTS = ("created", "configured", "deleted", "left", "unchanged")
#: Where one word is not enough.
_OF_ONE = {"left": "is somebody else's, and left as it is"}
_OF_MANY = {"left": "left alone"}
#: Processes of which one is named as what starts: the first that is new or different.
_STARTED = (("daemonset", AGENT), ("deployment", CONTROLLER), ("deployment", "tessera-webhook"))
_DRIVERS = ("clusterpolicy.nvidia.com/", "nvidiadriver.nvidia.com/")


def line(done: Done, *, dry: bool) -> str:
    """What is said of one object; empty if it stays as it is."""
    if done.result == "unchanged":
        return ""
    return f"{done.name} {_OF_ONE.get(done.result, done.result)}{TRIAL if dry else ''}"


def total(all_done: Sequence[Done], *, dry: bool) -> str:
    """How many objects came to what: ``1 object created, 38 unchanged``."""
    counts = Counter(each.result for each in all_done)
    parts = [f"{counts[each]} {_OF_MANY.get(each, each)}" for each in _RESULTS if counts[each]]
    number, _, rest = ", ".join(parts).partition(" ")
    return f"{number} object{'s' if number != '1' else ''} {rest}{TRIAL if dry else ''}"


def looks(all_done: Sequence[Done]) -> Iterator[str]:
    """Where to see what was begun; nothing if nothing was."""
    new = {each.name for each in all_done if each.result in {"created", "configured"}}
    for kind, name in _STARTED:
        if f"{kind}.apps/{name} in tessera-system" in new:
            yield f"See it start: kubectl rollout status -n tessera-system {kind}/{name}"
            break
    if any(each.startswith(_DRIVERS) for each in new):
        yield "See drivers come: tessera driver status"
    elif any(each.name.startswith(_DRIVERS) and each.result == "deleted" for each in all_done):
        yield "See drivers go, from each node when its pods with cards have ended: tessera driver status -v"
