// Keeps the documents, and tells those who show them what changed. A card's tile hears of its own card only, so that a
// thousand changes a second draw no more than the tiles in the window; lists hear of all changes, a few times a second.

import type {
  Card,
  CardHistory,
  Failure,
  FleetHistory,
  Kueue,
  Lease,
  NodeState,
  Service,
  Spare,
  Summary,
  Team,
  Unshown,
  Waiting,
  Workload,
} from "./documents";
import type { Change } from "./feed";

type Listener = () => void;

export class Store {
  summary: Summary | undefined;
  history: FleetHistory | undefined;
  /** Undefined where Kueue is not installed. */
  kueue: Kueue | undefined;
  /** By `idOf`. */
  readonly cards = new Map<string, Card>();
  /** By `idOf` of the card. */
  readonly curves = new Map<string, CardHistory>();
  /** By the key in the feed. */
  readonly waiting = new Map<string, Waiting>();
  readonly workloads = new Map<string, Workload>();
  readonly unshown = new Map<string, Unshown>();
  readonly services = new Map<string, Service>();
  readonly spares = new Map<string, Spare>();
  /** By the key in the feed, and the teams by namespace. */
  readonly #teamKeys = new Map<string, string>();
  readonly teams = new Map<string, string>();
  readonly failures = new Map<string, Failure>();
  readonly nodes = new Map<string, NodeState>();
  /** The id of a card or a curve by its key in the feed; a hidden name makes them differ. */
  readonly #ids = new Map<string, string>();
  readonly #watchers = new Map<string, Set<Listener>>();
  readonly #listeners = new Set<Listener>();

  /** Replaces all documents. */
  reset(change: Change): void {
    this.clear();
    this.apply(change);
    for (const id of this.#watchers.keys()) this.#tell(id);
  }

  clear(): void {
    this.summary = undefined;
    this.history = undefined;
    this.kueue = undefined;
    const queued = [this.waiting, this.workloads, this.unshown, this.services, this.spares];
    for (const each of [this.teams, this.#teamKeys]) each.clear();
    for (const each of [this.cards, this.curves, ...queued, this.failures, this.nodes, this.#ids]) each.clear();
    this.#tellAll();
  }

  apply(change: Change): void {
    for (const [key, document] of Object.entries(change.set)) this.#set(key, document);
    for (const key of change.gone) this.#remove(key);
    this.#tellAll();
  }

  /** Calls back when the card changed; returns the end of it. */
  watch(id: string, listener: Listener): Listener {
    const watchers = this.#watchers.get(id) ?? new Set();
    this.#watchers.set(id, watchers.add(listener));
    return () => {
      watchers.delete(listener);
      if (watchers.size === 0) this.#watchers.delete(id);
    };
  }

  /** Calls back when anything changed; returns the end of it. */
  listen(listener: Listener): Listener {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #set(key: string, document: unknown): void {
    const kind = key.split("/", 1)[0];
    if (kind === "card") {
      const id = this.#name(key, document as Card);
      this.cards.set(id, document as Card);
      this.#tell(id);
    } else if (kind === "history" && key !== "history") {
      this.curves.set(this.#name(key, document as CardHistory), document as CardHistory);
    } else if (kind === "waiting") this.waiting.set(key, document as Waiting);
    else if (kind === "workload") this.workloads.set(key, document as Workload);
    else if (kind === "unshown") this.unshown.set(key, document as Unshown);
    else if (kind === "service") this.services.set(key, document as Service);
    else if (kind === "spare") this.spares.set(key, document as Spare);
    else if (kind === "team") {
      const { namespace, team } = document as Team;
      this.#teamKeys.set(key, namespace);
      this.teams.set(namespace, team);
    } else if (key === "kueue") this.kueue = document as Kueue;
    else if (kind === "failure") this.failures.set(key, document as Failure);
    else if (kind === "node") this.nodes.set(key, document as NodeState);
    else if (key === "history") this.history = document as FleetHistory;
    else if (key === "summary") this.summary = document as Summary;
  }

  #name(key: string, document: { node: string; uuid: string }): string {
    const id = idOf(document);
    this.#ids.set(key, id);
    return id;
  }

  #remove(key: string): void {
    const id = this.#ids.get(key);
    if (id !== undefined) {
      (key.startsWith("card/") ? this.cards : this.curves).delete(id);
      this.#ids.delete(key);
      this.#tell(id);
    }
    const namespace = this.#teamKeys.get(key);
    if (namespace !== undefined) {
      this.#teamKeys.delete(key);
      this.teams.delete(namespace);
    }
    if (key === "kueue") this.kueue = undefined;
    this.spares.delete(key);
    this.waiting.delete(key);
    this.workloads.delete(key);
    this.unshown.delete(key);
    this.services.delete(key);
    this.failures.delete(key);
    this.nodes.delete(key);
  }

  #tell(id: string): void {
    for (const each of this.#watchers.get(id) ?? []) each();
  }

  #tellAll(): void {
    for (const each of this.#listeners) each();
  }
}

export const store = new Store();

/** The team of a namespace: itself, unless its label names one. */
export function teamOf(namespace: string): string {
  return store.teams.get(namespace) ?? namespace;
}

export function leasesOf(card: Card): Lease[] {
  return [...(card.leases ?? []), ...(card.tiles ?? []).flatMap((tile) => tile.leases ?? [])];
}

/** Identity of a card on the page and in its address. */
export function idOf(card: { node: string; uuid: string }): string {
  return `${card.node}/${card.uuid}`;
}
