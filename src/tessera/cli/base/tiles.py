"""Draws cards as rows of tiles: each memory slot, or each share of a card, is a group of columns.

Plain text by default; with colour each pod has one colour of a small palette. Eight slots fit a terminal of 80
columns, and narrower ones down to 60. A label that does not fit its tile is cut, and the list below the cards has it in
full. Names are escaped here, before they are measured and coloured.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tessera.cli.base.console import COLOUR
from tessera.cli.base.usage import SHARES
from tessera.explain.card_map import CardHolder, MappedCard, NodeCards, PendingNode, Tile
from tessera.explain.fleet_map import FREE, HELD, ModelSummary
from tessera.limits import FACT_SHOWN
from tessera.mig.geometry import Geometry, Placement
from tessera.text import count_noun, list_names, one_line, percent

#: Columns of one memory slot, borders included. 8 slots x 9 columns and the card's number fit 80 columns.
SLOT_COLUMNS = 9
#: Columns of one memory slot on cards of 12 slots.
NARROW_COLUMNS = 6
#: Least columns of a memory slot or a share: a letter between two borders.
LEAST_COLUMNS = 3
#: Columns of the usual terminal, and of a file.
WIDTH = 80

#: Kinds of cards in words.
KINDS: Mapping[str, str] = {
    "slice": "on demand",
    "mig": "fixed MIG",
    "whole": "whole",
    **SHARES,
    "shares": "share",
    "": "not offered",
}

#: ANSI background colours, readable with black text on dark and light terminals.
PALETTE = ("48;5;114", "48;5;111", "48;5;180", "48;5;176", "48;5;80", "48;5;216", "48;5;149", "48;5;147")
FOREIGN = "48;5;245"

#: The model of a card that only records name, and the profile of a slice of which only the place is on record.
UNKNOWN_MODEL, UNKNOWN_PROFILE = "unknown model", "?"
#: The note beside a slice whose pod's request was removed.
_GONE = "its pod is gone"
#: The note beside a slice without a record, by its state.
_UNRECORDED = {
    "foreign": "not made by Tessera, and not touched",
    "kept": "in use by a running pod; the controller writes its record again",
}


def draw(
    nodes: Sequence[NodeCards], pending: Sequence[PendingNode] = (), *, colour: bool, width: int = WIDTH
) -> Iterator[str]:
    """The lines of the whole picture, and of nodes whose cards are not ready yet.

    Args:
        nodes: the nodes with their cards.
        pending: nodes that are labelled for slices on demand and have no cards yet.
        colour: True to paint the slices of each pod.
        width: columns of the terminal, at least 60.
    """
    for number, node in enumerate(nodes):
        if number:
            yield ""
        yield from _draw_node(node, colour=colour, width=width)
    if nodes and pending:
        yield ""
    for each in pending:
        yield f"{one_line(each.node)}   labelled for slices on demand, but has no cards yet: {one_line(each.why)}"
        yield f"  see tessera why node/{one_line(each.node)}"


def draw_summary(
    models: Sequence[ModelSummary], *, nodes: int, waiting: int | None, width: int = WIDTH
) -> Iterator[str]:
    """Lines for each model, and the number of pods that wait (None if they may not be read)."""
    cards = sum(each.cards for each in models)
    wait = "" if waiting is None else f", {count_noun(waiting, 'pod')} waiting for cards"
    yield f"{count_noun(nodes, 'node')}, {count_noun(cards, 'card')}{wait}"
    for each in models:
        kinds = ", ".join(f"{count} {kind_name(kind)}" for kind, count in sorted(each.kinds.items()))
        model = one_line(each.model) or UNKNOWN_MODEL
        yield from _wrap(f"  {each.cards} x {model}: {kinds}; {percent(each.held / each.cards)} held", width)
        room = ", ".join(f"{number} x {one_line(name)}" for name, number in each.possible.items())
        alone = " (each alone)" if len(each.possible) > 1 else ""
        yield from _wrap(f"      room for {room or 'nothing'}{alone}", width)


def kind_name(kind: str) -> str:
    """The kind of a card in words; a word that only a newer agent knows stays as it is."""
    return KINDS.get(kind) or one_line(kind)


def _wrap(line: str, width: int) -> list[str]:
    """The line on as many lines as it needs, with its indent; a number stays with what it counts."""
    indent = " " * (len(line) - len(line.lstrip()))
    whole = line.replace(" x ", "\xa0x\xa0")
    wrapped = textwrap.wrap(whole, width, subsequent_indent=f"{indent}  ", break_on_hyphens=False)
    return [each.replace("\xa0", " ") for each in wrapped]


def _draw_node(node: NodeCards, *, colour: bool, width: int) -> Iterator[str]:
    yield from _heading(node, width)
    if node.unread:
        which = "only cards on record are shown" if node.cards else "its cards are not shown"
        yield f"  {which}: {one_line(node.unread)}"
    elif not node.cards and not node.resources:
        yield "  none of this node's cards can be sliced"
    if node.closed:
        yield "  takes no new pods now: the node is cordoned, or not ready"
    for sentence in node.blocked:
        yield from _wrap(f"  {one_line(sentence, FACT_SHOWN)}", width)
    letters, room = _letters(node), width - 8
    whole = _columns_for_names(node, letters)
    for card in node.cards:
        cells = (
            _row(card, letters, room, whole, colour=colour) if card.slots else _bar(card, letters, room, colour=colour)
        )
        tiles = f" GPU {card.index:<2} {cells}"
        health = f" {one_line(card.health)}" if card.health else ""
        if not health or len(COLOUR.sub("", tiles)) + len(health) <= width:
            yield tiles + health
        else:  # it has a line of its own, so that the tiles of all cards stay below each other
            yield tiles
            yield f"       {health}"
    for resource in node.resources:
        pods = f": {list_names(resource.pods)}" if resource.pods else ""
        what = f"{resource.kind} of {one_line(resource.product)}" if resource.kind != "whole" else resource.product
        yield f"  {one_line(resource.resource)}  {one_line(what)}  {resource.used} of {resource.count} used{pods}"
    for row_of_legend in _legend(node, letters):
        yield _legend_line(*row_of_legend, width=width)


def _heading(node: NodeCards, width: int) -> Iterator[str]:
    parts = [one_line(node.node), *filter(None, [_models(node)]), *_sums(node.cards)]
    line = "   ".join(parts)
    if len(line) <= width or width >= WIDTH:
        yield line
        return
    yield parts[0]
    for part in [*_models(node).split(", "), *_sums(node.cards)]:
        yield f"  {part}"


def _sums(cards: Sequence[MappedCard]) -> Iterator[str]:
    sliced = [card for card in cards if card.slots]
    if sliced:
        used = sum(card.used for card in sliced)
        yield f"{used} of {sum(card.slots for card in sliced)} memory slots used"
    whole = [card for card in cards if not card.slots and card.kind == "whole"]
    if whole:
        yield f"{sum(bool(card.holders) for card in whole)} of {count_noun(len(whole), 'card')} held"
    shared = [card for card in cards if not card.slots and card.kind not in {"whole", ""}]
    if shared:
        held = sum(_shares(each, card) for card in shared for each in card.holders)
        yield f"{held} of {sum(card.replicas for card in shared)} shares held"


def _shares(holder: CardHolder, card: MappedCard) -> int:
    return max(1, round(holder.share * card.replicas))


def _models(node: NodeCards) -> str:
    counts: dict[str, int] = {}
    for card in node.cards:
        counts[card.model] = counts.get(card.model, 0) + 1
    if not counts:
        return "" if node.resources or node.unread else "no cards"
    return ", ".join(f"{count} x {one_line(model) or UNKNOWN_MODEL}" for model, count in counts.items())


def _letters(node: NodeCards) -> dict[str, str]:
    """A letter for each pod of the node by its UID, or by its name where the UID is not known: a, b, ... z, a1, ..."""
    keys = dict.fromkeys(
        key
        for card in node.cards
        for key in (*(tile.uid for tile in card.tiles if tile.uid), *(each.pod for each in card.holders))
    )
    return {key: chr(ord("a") + n % 26) + (str(n // 26) if n >= 26 else "") for n, key in enumerate(keys)}


def _columns_for_names(node: NodeCards, letters: dict[str, str]) -> int:
    """Columns of a memory slot with which every slice of the node shows its whole profile."""
    labels = ((_label(tile, letters), max(1, tile.size)) for card in node.cards if card.slots for tile in card.tiles)
    return max((-(-(len(label) + 2) // size) for label, size in labels), default=0)


def _row(card: MappedCard, letters: dict[str, str], room: int, whole: int, *, colour: bool) -> str:
    usual = max(whole, SLOT_COLUMNS if card.slots <= 8 else NARROW_COLUMNS)
    columns = max(LEAST_COLUMNS, min(usual, room // card.slots))
    starts = {tile.start: tile for tile in card.tiles}
    parts, slot = [], 0
    while slot < card.slots:
        tile = starts.get(slot)
        if tile is None:
            parts.append(f"[{'':{columns - 2}}]")
            slot += 1
        else:
            parts.append(_tile(tile, letters, columns, colour=colour))
            slot += max(1, tile.size)
    return "".join(parts)


def _label(tile: Tile, letters: dict[str, str]) -> str:
    profile = one_line(tile.profile)
    if tile.state == FREE:
        return profile
    return f"{letters[tile.uid]} {profile or UNKNOWN_PROFILE}" if tile.uid else f"- {profile or 'foreign'}"


def _tile(tile: Tile, letters: dict[str, str], columns: int, *, colour: bool) -> str:
    label, columns = _label(tile, letters), max(1, tile.size) * columns
    if tile.state == FREE and len(label) + 5 <= columns - 2:
        label = f"{label} free"
    text = _cell(label, columns)
    if not colour or tile.state == FREE:
        return text
    paint = PALETTE[list(letters).index(tile.uid) % len(PALETTE)] if tile.uid else FOREIGN
    return f"\x1b[{paint};38;5;16m{text}\x1b[0m"


def _cell(label: str, columns: int) -> str:
    if len(label) > columns - 2:
        label = label.removesuffix("gb")  # rather than a part of the unit
    return f"[{label[: columns - 2]:{columns - 2}}]"


def _bar(card: MappedCard, letters: dict[str, str], room: int, *, colour: bool) -> str:
    """A card that is not cut: one cell, or a cell for each share where they fit."""
    room = min(room, 8 * SLOT_COLUMNS)
    cells = card.replicas if card.kind not in {"whole", ""} else 1
    held = [each.pod for each in card.holders for _ in range(_shares(each, card) if cells > 1 else 1)]
    if not card.kind:
        return _cell("not offered", room)
    if cells * LEAST_COLUMNS > room:
        return _cell(f"{len(held)} of {cells} shares held: {' '.join(letters[each] for each in held)}", room)
    columns = room // cells
    name = "whole card" if card.kind == "whole" else kind_name(card.kind)
    parts = []
    for number in range(cells):
        key = held[number] if number < len(held) else ""
        text = _cell(f"{letters[key]} {name}" if key else "", columns)
        if key and colour:
            text = f"\x1b[{PALETTE[list(letters).index(key) % len(PALETTE)]};38;5;16m{text}\x1b[0m"
        parts.append(text)
    return "".join(parts)


def _legend(node: NodeCards, letters: dict[str, str]) -> Iterator[tuple[str, str, str, str, str]]:
    """Letter, kind, place, state and pod of each tile and holder: by letter, then what has no pod."""
    rows: dict[str, list[tuple[str, str, str, str, str]]] = {}
    for card in node.cards:
        for tile in card.tiles:
            where = f"GPU {card.index} start {tile.start} size {tile.size}"
            if tile.uid:
                lent = f"; used by {list_names(tile.users, 3)}" if tile.users else ""
                pod = f"{tile.pod}{lent}" or _GONE
                row = (letters[tile.uid], tile.profile or UNKNOWN_PROFILE, where, tile.state, pod)
                rows.setdefault(tile.uid, []).append(row)
            elif tile.state != FREE:
                note = _UNRECORDED.get(tile.state, "")
                rows.setdefault("", []).append(("-", tile.profile or UNKNOWN_PROFILE, where, tile.state, note))
        for each in card.holders:
            what = kind_name(card.kind)
            part = f"GPU {card.index}"
            if card.replicas > 1:
                part += f" shares {_shares(each, card)} of {card.replicas}"
            rows.setdefault(each.pod, []).append((letters[each.pod], what, part, HELD, each.pod))
    for key in (*letters, ""):
        yield from rows.get(key, ())


def _legend_line(letter: str, kind: str, where: str, state: str, pod: str, *, width: int) -> str:
    kind, state, pod = map(one_line, (kind, state, pod))
    line = f"  {letter:>3}  {kind:<12} {where:<22} {state:<9} {pod}"
    if len(line) <= width or width >= WIDTH:
        return line
    place = where.removeprefix("GPU ").replace(" start ", ":").replace(" size ", "+").replace(" shares ", ":")
    place = place.replace(" of ", "/")
    narrow = f" {letter:>3} {kind:<10} {place:<7} {pod}"
    return narrow if len(narrow) <= width else f"{narrow[: width - 1]}>"


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
