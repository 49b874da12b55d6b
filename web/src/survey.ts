// What the lists of the page need, found in one pass over all cards, since there may be thousands.

import type { Card, Lease } from "./documents";
import type { Store } from "./store";
import type { Filter } from "./view";
import { byName, isHidden, WASTED } from "./words";

/** A lease with its place. */
export interface Held {
  id: string;
  card: Card;
  profile: string;
  lease: Lease;
}

export interface CardGroup {
  node: string;
  ids: string[];
}

export interface Survey {
  /** The cards that are shown, by node. */
  groups: CardGroup[];
  shown: number;
  /** The leases that are shown. */
  held: Held[];
  /** Cards that are not well, among those that the words of the filter select. */
  unwell: [string, Card][];
  /** Leases that could serve somebody else, chosen by the same words; the most wasted first. */
  wasted: Held[];
  /** What fits, by name, whatever the filter. */
  room: [string, number][];
  /** True if a name is hidden from the visitor. */
  hidesPods: boolean;
  hidesNodes: boolean;
}

/**
 * Looks at all cards once.
 *
 * @param filter selects the cards and leases that are shown.
 * @param words the same filter without a chosen state and room: a choice of cards says nothing about what is broken.
 */
export function survey(store: Store, filter: Filter, words: Filter): Survey {
  const groups = new Map<string, string[]>();
  const room = new Map<string, number>();
  const found: Survey = {
    groups: [],
    shown: 0,
    held: [],
    unwell: [],
    wasted: [],
    room: [],
    hidesPods: false,
    hidesNodes: false,
  };
  for (const [id, card] of store.cards) {
    for (const [name, number] of Object.entries(card.free ?? {})) room.set(name, (room.get(name) ?? 0) + number);
    if (isHidden(card.node)) found.hidesNodes = true;
    if (words.card(card)) {
      if (card.health) found.unwell.push([id, card]);
      for (const each of heldOf(id, card, words)) if (WASTED.includes(each.lease.state)) found.wasted.push(each);
    }
    const held = filter.card(card) ? heldOf(id, card, filter) : undefined;
    if (!held) continue;
    found.shown += 1;
    const group = groups.get(card.node);
    if (group) group.push(id);
    else groups.set(card.node, [id]);
    for (const each of held) {
      found.held.push(each);
      if (isHidden(each.lease.pod)) found.hidesPods = true;
    }
  }
  for (const pod of store.waiting.values()) if (isHidden(pod.pod)) found.hidesPods = true;
  const order = (id: string): number => store.cards.get(id)?.index ?? 0;
  for (const [node, ids] of groups) found.groups.push({ node, ids: ids.sort((a, b) => order(a) - order(b)) });
  found.groups.sort((left, right) => byName(left.node, right.node));
  found.unwell.sort(([, left], [, right]) => byName(left.node, right.node) || left.index - right.index);
  found.wasted.sort((left, right) => right.lease.wasted - left.lease.wasted);
  found.room = [...room].sort(([left], [right]) => byName(left, right));
  return found;
}

/** The leases of a card that a filter selects, with their places. */
function heldOf(id: string, card: Card, filter: Filter): Held[] {
  const found = (card.leases ?? []).map((lease) => ({ id, card, profile: "", lease }));
  for (const { profile, leases } of card.tiles ?? []) {
    for (const lease of leases ?? []) found.push({ id, card, profile, lease });
  }
  if (filter.empty) return found;
  const chosen = new Set(filter.leases(card));
  return found.filter(({ lease }) => chosen.has(lease));
}
