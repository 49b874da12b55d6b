"""Which MIG layout a node shall have, from its label, the cluster's default and the files there are. Pure.

A ConfigMap may hold several files of layouts; NVIDIA's holds one under ``config.yaml``. Their names count together. A
file with mistakes matters to a node only if it may hold the layout that the node asks for: the others are found in the
files that are well. A name that stands in two files is nobody's guess, so it is refused.

Layouts that exist without a file, and what a layout asks of each card, are not known here.
"""

from collections.abc import Callable
from difflib import get_close_matches

from tessera.agent.base.desired_config import LayoutWish
from tessera.agent.config.sharing_profiles import Files
from tessera.api.documents import FileRefused
from tessera.api.mig_layouts import LayoutEntry, MigLayouts, parse_layouts
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL

REFUSED, AMBIGUOUS, UNREADABLE = "LayoutsRefused", "LayoutAmbiguous", "LayoutsUnreadable"

#: Characters that the value of a label has at most (Kubernetes, labels and selectors).
LABEL_LENGTH = 63

#: Layouts, or why the file has none.
ReadLayouts = Callable[[str], MigLayouts | FileRefused]


def read_layouts(text: str) -> MigLayouts | FileRefused:
    """The layouts in a file, or its mistakes."""
    try:
        return parse_layouts(text)
    except FileRefused as refusal:
        return refusal


def layout_wish(files: Files, label: str, default: str, read: ReadLayouts = read_layouts) -> LayoutWish:
    """The layout that a node shall have.

    Args:
        files: the files of layouts.
        label: value of the node's label; empty if it has none.
        default: the cluster's default; empty if it has none.
        read: reads a file; may remember what it has read.
    """
    name = label or default
    if not name:
        return LayoutWish(reason="no label and no default")
    reason = f"the node's label {MIG_CONFIG_LABEL}" if label else "the cluster's default"
    if name == MIG_CONFIG_DYNAMIC:
        return LayoutWish(name=name, reason=reason, default=not label)
    entries, problem, problem_reason = _found(files, name, read)
    absent = entries is None and problem is None
    return LayoutWish(
        name=name,
        entries=entries,
        reason=reason,
        default=not label,
        problem=problem,
        problem_reason=problem_reason,
        closest=_closest(files, name, read) if absent else "",
    )


def _closest(files: Files, name: str, read: ReadLayouts) -> str:
    """The layout of the files whose name is most like this one; empty if none is."""
    every = [read(text) for text in files.texts.values()]
    names = [each for layouts in every if isinstance(layouts, MigLayouts) for each in layouts.layouts]
    close = get_close_matches(name[:LABEL_LENGTH], [each for each in names if len(each) <= LABEL_LENGTH], n=1)
    return close[0] if close else ""


def _found(files: Files, name: str, read: ReadLayouts) -> tuple[tuple[LayoutEntry, ...] | None, str | None, str | None]:
    """The layout of that name; else what is wrong, in words and in one word; nothing at all if it is merely absent."""
    if files.trouble is not None:
        return None, f"{files.source}: {files.trouble}", UNREADABLE
    found: dict[str, tuple[LayoutEntry, ...]] = {}
    refused: list[str] = []
    for key, text in sorted(files.texts.items()):
        layouts = read(text)
        if isinstance(layouts, FileRefused):
            refused.append(f"{files.source}, file {key}: {layouts}")
        elif name in layouts.layouts:
            found[key] = layouts.layouts[name]
    if len(found) > 1:
        text = f'{files.source}: the layout "{name}" stands in the files {", ".join(found)}; keep it in one of them'
        return None, text, AMBIGUOUS
    if found:
        return next(iter(found.values())), None, None
    return (None, "; ".join(refused), REFUSED) if refused else (None, None, None)
