// The documents of the feed, as src/tessera/dashboard/documents.py makes them. A value that was not measured is missing.

export interface Evidence {
  /** The source of the error in words. */
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
  /** Bytes that it may use. */
  limit?: number;
  /** Its state can never be told: the device's activity cannot be measured. */
  blind?: boolean;
  findings?: string[];
  /** The sentence about the fault of its card or GPU instance. */
  fault?: string;
}

export interface Tile {
  start: number;
  size: number;
  profile: string;
  /** What is special about it: creating, deleting, foreign, kept. */
  state?: string;
  /** The pod that it is reserved for. */
  promise?: { namespace: string; pod: string };
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
  /** Why `busy` was not measured. */
  busyAbsent?: string;
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
  /** The node's agent does not answer; the rest are Tessera's records. */
  silent?: boolean;
  /** The node takes no new pods: it is cordoned, or not ready. */
  closed?: boolean;
  /** Its free devices that kube-scheduler gives to no pod, since pods hold withheld ones of the node. */
  blocked?: number;
}

export interface Waiting {
  namespace: string;
  pod: string;
  requests: string;
  since: number;
  /** The workload that made the pod. */
  owner?: string;
  gated?: boolean;
  case?: string;
  reason?: string;
  /** Its place among the pods that compete for the same room. */
  position?: number;
  of?: number;
  /** When half, and nine of ten, of such pods have started. */
  p50?: number;
  p90?: number;
  /** What the start rests on. */
  basis?: string;
  /** Starts of such pods in the last hour. */
  starts?: number;
}

/** Kueue is there. */
export interface Kueue {
  /** What is not known of its queues, and why. */
  notes?: string[];
  /** What the server said about it. */
  detail?: string;
  /** When it was read last, if the last reading failed. */
  read?: number;
}

/** The number of Workloads of a namespace that have no document. */
export interface Unshown {
  namespace: string;
  workloads: number;
}

/** A Workload that waits in Kueue. */
export interface Workload {
  namespace: string;
  workload: string;
  /** What it is for. */
  owner?: string;
  /** Its LocalQueue. */
  queue?: string;
  since?: number;
  /** Its place in that queue. */
  position?: number;
  of?: number;
  /** The queue may have more. */
  ofMore?: boolean;
  /** Its place among all queues that share the quota. */
  amongAll?: number;
  case?: string;
  verdict?: string;
}

/** A resource of a node whose agent does not answer. */
export interface Offer {
  resource: string;
  model: string;
  count: number;
  used: number;
}

export interface Failure {
  node: string;
  reason: string;
  since?: number;
  next?: string;
  offers?: Offer[];
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
  node: string;
  uuid: string;
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
  /** Pods that have a place for whole cards or shares, and are not listed with these yet. */
  starting?: number;
  /** The controller's queue cannot be read, and why. */
  unqueued?: boolean;
  unqueuedDetail?: string;
  held: number;
  wastedLeases: number;
  measured: number;
  /** Cards whose agent does not answer. */
  silent?: number;
  unwell?: number;
  /** Cards that a person has taken out of service. */
  cordoned?: number;
  busy?: number;
  power?: number;
  simulated?: boolean;
}

export interface Change {
  set: Record<string, unknown>;
  gone: string[];
}

export function leasesOf(card: Card): Lease[] {
  return [...(card.leases ?? []), ...(card.tiles ?? []).flatMap((tile) => tile.leases ?? [])];
}

/** Identity of a card on the page and in its address. */
export function idOf(card: { node: string; uuid: string }): string {
  return `${card.node}/${card.uuid}`;
}
