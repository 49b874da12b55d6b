"""Draws cards as rows of tiles: each memory slot is a group of columns.

Plain text by default; with colour each pod has one colour of a small palette. Eight slots fit a terminal of 80
columns. A label that does not fit its tile is cut, and the list below the cards has it in full. Names are escaped
here, before they are measured and coloured.
"""

from collections.abc import Iterable, Iterator, Sequence

from tessera.explain.card_map import MappedCard, NodeCards, PendingNode, Tile
from tessera.mig.geometry import Geometry, Placement
from tessera.text import one_line

#: Columns of one memory slot, borders included. 8 slots x 9 columns and the card's number fit 80 columns.
SLOT_COLUMNS = 9
#: Columns of one memory slot on cards of 12 slots.
NARROW_COLUMNS = 6

#: ANSI background colours, readable with black text on dark and light terminals.
PALETTE = ("48;5;114", "48;5;111", "48;5;180", "48;5;176", "48;5;80", "48;5;216", "48;5;149", "48;5;147")
FOREIGN = "48;5;245"

#: The note beside a slice without a record, by its state.
_UNRECORDED = {
    "foreign": "not made by Tessera, and not touched",
    "kept": "in use by a running pod; the controller writes its record again",
}


def draw(nodes: Sequence[NodeCards], pending: Sequence[PendingNode] = (), *, colour: bool) -> Iterator[str]:
    """The lines of the whole picture, and of nodes whose cards are not ready yet; a hint if there are no nodes."""
    if not nodes and not pending:
        yield "No node has cards for slices on demand."
        yield "Add a node: kubectl label node NODE nvidia.com/mig.config=dynamic"
        return
    for number, node in enumerate(nodes):
        if number:
            yield ""
        yield from _draw_node(node, colour=colour)
    if nodes and pending:
        yield ""
    for each in pending:
        yield f"{one_line(each.node)}   labelled for slices on demand, but has no cards yet: {one_line(each.why)}"
        yield f"  see tessera why node/{one_line(each.node)}"


def _draw_node(node: NodeCards, *, colour: bool) -> Iterator[str]:
    used, slots = sum(card.used for card in node.cards), sum(card.slots for card in node.cards)
    yield f"{one_line(node.node)}   {_models(node)}   {used} of {slots} memory slots used"
    if not node.cards:
        yield "  none of this node's cards can be sliced"
        return
    letters = _letters(node)
    for card in node.cards:
        yield f" GPU {card.index:<2} {_row(card, letters, colour=colour)}"
    for uid, letter in letters.items():
        yield from _legend(node, uid, letter)
    yield from _foreign(node)


def _models(node: NodeCards) -> str:
    counts: dict[str, int] = {}
    for card in node.cards:
        counts[card.model] = counts.get(card.model, 0) + 1
    return ", ".join(f"{count} x {one_line(model)}" for model, count in counts.items()) or "no cards"


def _letters(node: NodeCards) -> dict[str, str]:
    """A letter for each pod of the node by its UID: a, b, ... z, a1, b1, ..."""
    uids = dict.fromkeys(tile.uid for card in node.cards for tile in card.tiles if tile.uid)
    return {uid: chr(ord("a") + n % 26) + (str(n // 26) if n >= 26 else "") for n, uid in enumerate(uids)}


def _row(card: MappedCard, letters: dict[str, str], *, colour: bool) -> str:
    columns = SLOT_COLUMNS if card.slots <= 8 else NARROW_COLUMNS
    starts = {tile.start: tile for tile in card.tiles}
    parts, slot = [], 0
    while slot < card.slots:
        tile = starts.get(slot)
        if tile is None:
            parts.append(f"[{'':{columns - 2}}]")
            slot += 1
        else:
            parts.append(_tile(tile, letters, columns, colour=colour))
            slot += tile.size
    return "".join(parts)


def _tile(tile: Tile, letters: dict[str, str], columns: int, *, colour: bool) -> str:
    width = tile.size * columns - 2
    profile = one_line(tile.profile)
    label = f"{letters[tile.uid]} {profile}" if tile.uid else f"- {profile or 'foreign'}"
    text = f"[{label[:width]:{width}}]"
    if not colour:
        return text
    paint = PALETTE[list(letters).index(tile.uid) % len(PALETTE)] if tile.uid else FOREIGN
    return f"\x1b[{paint};38;5;16m{text}\x1b[0m"


def _legend(node: NodeCards, uid: str, letter: str) -> Iterator[str]:
    for card in node.cards:
        for tile in card.tiles:
            if tile.uid == uid:
                where = f"GPU {card.index} start {tile.start} size {tile.size}"
                profile, state, pod = map(one_line, (tile.profile, tile.state, tile.pod))
                yield f"  {letter:>3}  {profile:<12} {where:<22} {state:<9} {pod}"


def _foreign(node: NodeCards) -> Iterator[str]:
    for card in node.cards:
        for tile in card.tiles:
            if not tile.uid:
                where = f"GPU {card.index} start {tile.start} size {tile.size}"
                profile = one_line(tile.profile) or "?"
                yield f"    -  {profile:<12} {where:<22} {tile.state:<9} {_UNRECORDED[tile.state]}"


def layout_row(geometry: Geometry, placements: Iterable[Placement]) -> str:
    """A card's memory slots from left to right; free slots are empty tiles."""
    columns = SLOT_COLUMNS if geometry.slots <= 8 else NARROW_COLUMNS
    at = {placed.start: placed for placed in placements}
    parts, slot = [], 0
    while slot < geometry.slots:
        placed = at.get(slot)
        size = 1 if placed is None else placed.size
        width = size * columns - 2
        label = "" if placed is None else placed.profile
        parts.append(f"[{label[:width]:{width}}]")
        slot += size
    return "".join(parts)
