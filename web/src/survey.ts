// What the lists of the page need, found in one pass over all cards, since there may be thousands.

import type { Card, Lease, Waiting } from "./documents";
import { looksOf } from "./mosaic";
import { own } from "./own";
import { type Store, teamOf } from "./store";
import type { Filter } from "./view";
import { byName, frameOf, isCordoned, isHidden, isLost, isSuspect, stateOf, WASTED } from "./words";

/** What the shown pods hold together. */
export class Sum {
  /** Cards, parts added. */
  held = 0;
  /** Cards whose activity is known, parts added, and the same times the activity. */
  measured = 0;
  active = 0;
  /** GPU-seconds that were held and not used. */
  wasted = 0;
  /** Leases, and those whose activity is known. */
  leases = 0;
  measuredLeases = 0;
  /** Bytes in use, and watts, of the leases that measure it; undefined if none does. */
  memory: number | undefined;
  power: number | undefined;
  readonly pods = new Set<string>();
  waiting = 0;

  add(each: Held): void {
    const { namespace, pod, share, busy, memory, power } = each.lease;
    this.held += share;
    this.wasted += unused(each);
    this.leases += 1;
    this.pods.add(`${namespace}/${pod}`);
    if (memory !== undefined) this.memory = (this.memory ?? 0) + memory;
    if (power !== undefined) this.power = (this.power ?? 0) + power;
    if (busy === undefined) return;
    this.measuredLeases += 1;
    this.measured += share;
    this.active += share * busy;
  }

  /** Mean activity; undefined if nothing measures it. */
  get busy(): number | undefined {
    return this.measured > 0 ? this.active / this.measured : undefined;
  }
}

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
  /** Cards that a person has taken out of service, chosen by the same words. */
  cordoned: [string, Card][];
  /** Leases that make no use of what they hold, and those that look so for too short a time, chosen by the same words. */
  wasted: Held[];
  suspects: Held[];
  /** Pods of which nobody can measure what they do, with the number of their cards; and of which nobody knows it yet. */
  unseen: Set<string>;
  unseenCards: number;
  unknown: Set<string>;
  /** What the shown pods hold: all together, by team, by namespace, and by workload. */
  sum: Sum;
  teams: Map<string, Sum>;
  namespaces: Map<string, Sum>;
  owners: Map<string, Sum>;
  /** Watts of the shown cards that measure it. */
  power: number | undefined;
  /** True if pods that are not shown hold parts of shown cards. */
  shared: boolean;
  /** Looks of the parts and frames of shown cards; `own` if one has a part of the visitor's own pod. */
  looks: Set<string>;
  /** What fits, by name, whatever the filter. */
  room: [string, number][];
  /** Cards on nodes that take no new pods, whatever the filter. */
  closed: number;
  /** Free devices that kube-scheduler gives to no pod, whatever the filter. */
  blocked: number;
  /** True if a name is hidden from the visitor. */
  hidesPods: boolean;
  hidesNodes: boolean;
}

/** The leases of a card with their places; a document does not change, so they are found once for each. */
const places = new WeakMap<Card, Held[]>();

function heldOf(id: string, card: Card): Held[] {
  const known = places.get(card);
  if (known) return known;
  const found = (card.leases ?? []).map((lease) => ({ id, card, profile: "", lease }));
  for (const { profile, leases } of card.tiles ?? []) {
    for (const lease of leases ?? []) found.push({ id, card, profile, lease });
  }
  places.set(card, found);
  return found;
}

function chosen(held: Held[], card: Card, filter: Filter): Held[] {
  if (filter.empty || held.length === 0) return held;
  const leases = filter.leases(card);
  return leases.length === held.length ? held : held.filter(({ lease }) => leases.includes(lease));
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
    cordoned: [],
    wasted: [],
    suspects: [],
    unseen: new Set(),
    unseenCards: 0,
    unknown: new Set(),
    sum: new Sum(),
    teams: new Map(),
    namespaces: new Map(),
    owners: new Map(),
    power: undefined,
    shared: false,
    looks: new Set(["slot"]),
    room: [],
    closed: 0,
    blocked: 0,
    hidesPods: false,
    hidesNodes: false,
  };
  for (const [id, card] of store.cards) {
    const { free } = card;
    for (const name in free) room.set(name, (room.get(name) ?? 0) + (free[name] ?? 0));
    if (card.closed) found.closed += 1;
    found.blocked += card.blocked ?? 0;
    if (isHidden(card.node)) found.hidesNodes = true;
    const held = heldOf(id, card);
    if (held[0] && isHidden(held[0].lease.pod)) found.hidesPods = true;
    if (words.card(card)) {
      if (card.health) (isCordoned(card) ? found.cordoned : found.unwell).push([id, card]);
      const leases = chosen(held, card, words);
      for (const each of leases) judge(found, each);
      if (leases.some(({ lease }) => stateOf(lease, card) === "blind")) found.unseenCards += 1;
    }
    if (!filter.card(card)) continue;
    found.shown += 1;
    const group = groups.get(card.node);
    if (group) group.push(id);
    else groups.set(card.node, [id]);
    if (card.power !== undefined) found.power = (found.power ?? 0) + card.power;
    const shown = chosen(held, card, filter);
    if (shown.length < held.length) found.shared = true;
    found.looks.add(frameOf(card));
    for (const look of looksOf(card)) found.looks.add(look);
    if (held.some(({ lease }) => own.has(lease))) found.looks.add("own");
    for (const each of shown) {
      found.held.push(each);
      for (const sum of sumsOf(found, each.lease)) sum.add(each);
    }
  }
  for (const pod of store.waiting.values()) {
    if (isHidden(pod.pod)) found.hidesPods = true;
    if (filter.waiting(pod)) for (const sum of sumsOf(found, pod)) sum.waiting += 1;
  }
  const order = (id: string): number => store.cards.get(id)?.index ?? 0;
  for (const [node, ids] of groups) found.groups.push({ node, ids: ids.sort((a, b) => order(a) - order(b)) });
  found.groups.sort((left, right) => byName(left.node, right.node));
  for (const cards of [found.unwell, found.cordoned]) {
    cards.sort(([, left], [, right]) => byName(left.node, right.node) || left.index - right.index);
  }
  found.room = [...room].sort(([left], [right]) => byName(left, right));
  return found;
}

/**
 * GPU-seconds without use; on a card that failed, also those since then, which the agent counts itself once the lease
 * is in a state without use.
 */
export function unused({ lease, card }: Held): number {
  if (!isLost(card)) return lease.wasted;
  const failed = card.health?.since ? Math.max(0, Date.now() / 1000 - card.health.since) : lease.held;
  const since = lease.share * Math.min(lease.held, failed);
  return WASTED.includes(lease.state) ? Math.max(lease.wasted, since) : lease.wasted + since;
}

/** Notes a lease without use, one that looks so, or one that cannot be measured. */
function judge(found: Survey, each: Held): void {
  const state = stateOf(each.lease, each.card);
  if (WASTED.includes(state)) found.wasted.push(each);
  else if (isSuspect(each.lease, each.card)) found.suspects.push(each);
  else if (state === "unknown" || state === "blind")
    found[state === "blind" ? "unseen" : "unknown"].add(`${each.lease.namespace}/${each.lease.pod}`);
}

/** The sums that a pod counts in. */
function sumsOf({ sum, teams, namespaces, owners }: Survey, pod: Lease | Waiting): Sum[] {
  const hidden = isHidden(pod.pod);
  const namespace = hidden ? "" : pod.namespace;
  const owner = hidden ? "" : `${pod.namespace}/${pod.owner || pod.pod}`;
  const team = hidden ? "" : teamOf(namespace);
  return [sum, sumOf(teams, team), sumOf(namespaces, namespace), sumOf(owners, owner)];
}

function sumOf(sums: Map<string, Sum>, name: string): Sum {
  const found = sums.get(name) ?? new Sum();
  sums.set(name, found);
  return found;
}

/** The first `most` items by a value, the largest first; cheaper than to sort thousands for a few. */
export function largest<T>(items: T[], most: number, value: (item: T) => number): T[] {
  const kept: { item: T; value: number }[] = [];
  for (const item of items) {
    const own = value(item);
    const last = kept[kept.length - 1];
    if (kept.length === most && last && own <= last.value) continue;
    let at = kept.length;
    while (at > 0 && (kept[at - 1]?.value ?? 0) < own) at -= 1;
    kept.splice(at, 0, { item, value: own });
    if (kept.length > most) kept.pop();
  }
  return kept.map(({ item }) => item);
}
