"""Bounds tables that pods of all namespaces fill, so that no namespace drives out what is known of others.

Each entry belongs to the namespace that brought it. Of too many, the namespace with the most entries loses the one that
was used longest ago. An entry that others use too stays while they use it more often than that namespace brings new
ones; else the next of them brings it anew, as its own.
"""

from collections import Counter, OrderedDict
from typing import Any

#: The entry of all pods together, which belongs to no namespace and never goes.
EVERY = ""


def note_use(entries: OrderedDict[str, Any], brought_by: dict[str, str], key: str, namespace: str, most: int) -> None:
    """Takes in that a pod of a namespace used an entry, and drops what is too much.

    Args:
        entries: the table, with this entry in it; the entry that was used last comes last.
        brought_by: by key of the table, the namespace that brought it; missing or empty if unknown.
        key: the entry.
        namespace: the pod's namespace.
        most: the entries that are kept at most.
    """
    if key != EVERY and not brought_by.get(key):
        brought_by[key] = namespace
    entries.move_to_end(key)
    while len(entries) > most:
        counts = Counter(brought_by.get(each, "") for each in entries if each != EVERY)
        crowding = max(counts, key=counts.__getitem__)
        dropped = next(each for each in entries if each != EVERY and brought_by.get(each, "") == crowding)
        del entries[dropped]
        brought_by.pop(dropped, None)
