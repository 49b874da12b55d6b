// The documents of the feed, as src/tessera/dashboard/documents.py makes them. A value that was not measured is missing.

export interface Evidence {
  source: string;
  text: string;
  asks: string;
  since?: number;
  count?: number;
  spared?: boolean;
}

export interface Holder {
  namespace?: string;
  pod?: string;
  pid?: number;
  process?: string;
}

export interface Health {
  state: string;
  since?: number;
  evidence?: Evidence[];
  next?: string;
  holders?: Holder[];
  cut?: number;
}

export interface Lease {
  namespace: string;
  pod: string;
  container: string;
  owner: string;
  kind: string;
  share: number;
  state: string;
  evidence: string;
  held: number;
  wasted: number;
  busy?: number;
  memory?: number;
  findings?: string[];
}

export interface Tile {
  start: number;
  size: number;
  profile: string;
  busy?: number;
  memory?: number;
  memoryTotal?: number;
  leases?: Lease[];
}

export interface Card {
  node: string;
  index: number;
  uuid: string;
  model: string;
  mig: boolean;
  slots: number;
  held: number;
  busy?: number;
  memory?: number;
  memoryTotal?: number;
  power?: number;
  powerLimit?: number;
  temperature?: number;
  throttled?: string[];
  tiles?: Tile[];
  leases?: Lease[];
  free?: Record<string, number>;
  kind?: string;
  replicas?: number;
  health?: Health;
}

export interface Waiting {
  namespace: string;
  pod: string;
  requests: string;
  since: number;
  gated?: boolean;
  case?: string;
  reason?: string;
}

export interface Failure {
  node: string;
  reason: string;
}

export interface Driver {
  strategy: string;
  phase: string;
  version?: string;
  since?: string;
  reason?: string;
  upgrade?: string;
  offered?: string;
}

export interface Startup {
  verdict: string;
  overdue?: boolean;
  facts?: string[];
  phases?: { name: string; seconds: number }[];
}

export interface NodeState {
  node: string;
  driver?: Driver;
  startup?: Startup;
}

/** Values of the last hours, the oldest first; null was not measured. */
export type Curve = (number | null)[];

export interface FleetHistory {
  until: number;
  step: number;
  held: Curve;
  busy: Curve;
  power: Curve;
  waiting: Curve;
}

export interface CardHistory {
  until: number;
  step: number;
  held: Curve;
  busy: Curve;
  memory: Curve;
}

export interface Summary {
  nodes: number;
  cards: number;
  pods: number;
  waiting: number;
  held: number;
  wastedLeases: number;
  measured: number;
  unwell?: number;
  busy?: number;
  power?: number;
  simulated?: boolean;
}

export interface Change {
  set: Record<string, unknown>;
  gone: string[];
}

export interface Cluster {
  summary: Summary | undefined;
  cards: Map<string, Card>;
  waiting: Map<string, Waiting>;
  failures: Map<string, Failure>;
  nodes: Map<string, NodeState>;
  history: FleetHistory | undefined;
  /** By the key of the card. */
  curves: Map<string, CardHistory>;
}

export function emptyCluster(): Cluster {
  return {
    summary: undefined,
    cards: new Map(),
    waiting: new Map(),
    failures: new Map(),
    nodes: new Map(),
    history: undefined,
    curves: new Map(),
  };
}

/** Applies a change; documents that did not change keep their identity, so their rows are not drawn again. */
export function applyChange(cluster: Cluster, change: Change): void {
  for (const [key, document] of Object.entries(change.set)) {
    if (key.startsWith("card/")) cluster.cards.set(key, document as Card);
    else if (key.startsWith("waiting/")) cluster.waiting.set(key, document as Waiting);
    else if (key.startsWith("failure/")) cluster.failures.set(key, document as Failure);
    else if (key.startsWith("node/")) cluster.nodes.set(key, document as NodeState);
    else if (key.startsWith("history/")) cluster.curves.set(key.replace("history/", "card/"), document as CardHistory);
    else if (key === "history") cluster.history = document as FleetHistory;
    else if (key === "summary") cluster.summary = document as Summary;
  }
  for (const key of change.gone) {
    cluster.cards.delete(key);
    cluster.waiting.delete(key);
    cluster.failures.delete(key);
    cluster.nodes.delete(key);
    cluster.curves.delete(key.replace("history/", "card/"));
  }
}

export function leasesOf(card: Card): Lease[] {
  return [...(card.leases ?? []), ...(card.tiles ?? []).flatMap((tile) => tile.leases ?? [])];
}
