// Made by scripts/page_types.py from the documents of Python. A value that was not measured is missing.

/** A pod that a slice is reserved for. */
export interface PodPromise {
  namespace: string;
  pod: string;
}

/**
 * Hold of a container on a device; see tessera.api.nodes.usage.LeaseUsage. `limit` is the memory of the device in
 * bytes; of a shared device, the part that belongs to the lease. `fault` is the sentence about the fault of its card or
 * GPU instance. `blind` is true if processes hold the device, and its activity cannot be measured: its state stays
 * unknown. `joined` says how the cards are joined that its pod has. `power` is its part of the card's watts.
 * `counts_from`, of a lease that looks unused so far: seconds without use from which on it counts as not used.
 */
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
  limit?: number;
  blind?: boolean;
  findings?: string[];
  fault?: string;
  joined?: string;
  power?: number;
  countsFrom?: number;
}

/** A MIG device on a card: its place in memory slots, and who holds it. */
export interface Tile {
  /** First memory slot. */
  start: number;
  /** Memory slots. */
  size: number;
  /** NVIDIA's name; empty for a foreign slice of unknown profile. */
  profile: string;
  /**
   * `creating`, `deleting`, `foreign` or `kept` of a slice that no container holds in the usual way; see
   * tessera.explain.card_map.Tile.
   */
  state?: string;
  /** The pod that the slice is reserved for. */
  promise?: PodPromise;
  /** Share of time in which it computed. */
  busy?: number;
  /** Bytes in use. */
  memory?: number;
  /** Bytes of the device. */
  memoryTotal?: number;
  /** The containers that hold it. */
  leases?: Lease[];
}

/**
 * An error of a card that is not over; see tessera.api.nodes.health.Evidence. `source` is in words. The class of a
 * fault is no secret of another tenant, and its sentence names nobody: everybody may see it.
 */
export interface Evidence {
  source: string;
  text: string;
  asks: string;
  since?: number;
  count?: number;
  spared?: boolean;
}

/** A pod, or a process of the host, that holds a card which must be reset or booted. */
export interface Holder {
  namespace?: string;
  pod?: string;
  pid?: number;
  process?: string;
}

/** The health of a card that is not well; see tessera.api.nodes.health.CardHealth. */
export interface Health {
  state: string;
  since?: number;
  evidence?: Evidence[];
  next?: string;
  holders?: Holder[];
  cut?: number;
}

/** A card. */
export interface Card {
  /** Its node. */
  node: string;
  /** Of the driver. */
  index: number;
  /** Of the card. */
  uuid: string;
  /** The product's name. */
  model: string;
  /** True if MIG mode is on. */
  mig: boolean;
  /** Its memory slots; 0 without MIG. */
  slots: number;
  /** Part of the card that containers hold. */
  held: number;
  /** Share of time in which it computed. */
  busy?: number;
  /** Why that was not measured, a value of tessera.nvml.measurements.Absence. */
  busyAbsent?: string;
  /** Bytes in use. */
  memory?: number;
  /** Bytes of the card. */
  memoryTotal?: number;
  /** Watts. */
  power?: number;
  /** Watts. */
  powerLimit?: number;
  /** Degrees Celsius. */
  temperature?: number;
  /** Reasons for which it is slowed down. */
  throttled?: string[];
  /** Its MIG devices by their place. */
  tiles?: Tile[];
  /** What containers hold of the card itself. */
  leases?: Lease[];
  /** What more would fit, each alone: slices by profile, `gpu` for the whole card, `share` for shares. */
  free?: Record<string, number>;
  /**
   * Its offer, `slice` (on demand), `mig`, `whole`, `time-slicing`, `mps`, of a silent card `shares` of either; empty
   * if not offered.
   */
  kind?: string;
  /** Shares of the card, or of each of its MIG devices. */
  replicas?: number;
  /** Its state and evidence; None for a card that is well. */
  health?: Health;
  /** True if the node's agent does not answer: what is shown are Tessera's records. */
  silent?: boolean;
  /** True if the node takes no new pods: it is cordoned, or not ready. Nothing more fits then. */
  closed?: boolean;
  /** Its free devices that kube-scheduler gives to no pod (tessera.api.nodes.card_faults). */
  blocked?: number;
}

/** Something that is wrong with pods of a service, or with their cards. */
export interface ServiceFinding {
  /** In words: `throttled`, `never used`, `card fault`. */
  kind: string;
  /** The pods that have it. */
  pods: number;
  /** The one that has it the longest. */
  pod: string;
  /** Its node. */
  node: string;
  /** The evidence of that one: since when, measurements, what to do. */
  text: string;
}

/** An update of a service whose pods wait for each other's slots. */
export interface ServiceUpdate {
  /** What happens, as .UpdateStep has it. */
  step: string;
  /** The same in some words. */
  state: string;
  /** The pod that is next, and what `tessera why` says of it. */
  text: string;
  /** It does not go on before a person acts. */
  stuck?: boolean;
  /** What the server or kubelet says against it. */
  said?: string;
  /** Unix time since when; 0 if not known. */
  since?: number;
  /** Pods of the new revision that wait, or that start where an old one waits. */
  new?: string[];
  /** Pods of older revisions whose slots they need or have got. */
  old?: string[];
  /** The node to which images come; empty if none do, or it is not known. */
  node?: string;
  /** The ways out. */
  help?: string[];
}

/** A service: an owner whose pods hold or want cards, such as a Deployment. */
export interface Service {
  /** Its namespace. */
  namespace: string;
  /** Of the owner. */
  kind: string;
  /** Of the owner. */
  name: string;
  /** Pods that are ready. */
  ready: number;
  /** Pods that the owner states; if that is not known, those that it made and that have not ended. */
  wanted: number;
  /** Requests per second that ended well, over a minute. */
  requests?: number;
  /** Requests that its pods compute. */
  running?: number;
  /** Requests that wait in its pods. */
  waiting?: number;
  /** Part of the KV cache in use. */
  kvCache?: number;
  /** Seconds to the first token of nine tenths of the requests. */
  firstToken?: number;
  /** Further pods that fit now. */
  room?: number;
  /** Pods that wait for a place. */
  starts?: number;
  /** Names of the first of them. */
  queued?: string[];
  /** Unix time before which half of such pods as the next one start, a whole minute; None if not known. */
  start?: number;
  /** Share of time in which its cards compute, weighed by their size. */
  busy?: number;
  /** Its part of its cards' watts. */
  power?: number;
  /** For 1,000 requests. */
  joules?: number;
  /** Pods that no agent reports. */
  unknown?: number;
  /** What is wrong, one of each kind. */
  findings?: ServiceFinding[];
  /** An update that waits; None without one. */
  update?: ServiceUpdate;
}

/** A pod that asks for cards and has no node. */
export interface Waiting {
  /** Of the pod. */
  namespace: string;
  /** Its name. */
  pod: string;
  /** The resources that it asks for, as text. */
  requests: string;
  /** Unix time of its creation. */
  since: number;
  /** The workload that made it, `Kind/name`; empty if none did. */
  owner?: string;
  /** True while Tessera holds it until a slice has room. */
  gated?: boolean;
  /** The kind of reason, as `tessera why` has it; empty while it is not known. */
  case?: string;
  /** The first line of `tessera why` by the controller's reason; it names no other pod and no node. */
  why?: string;
  /** That line for a pod of which the controller says none. */
  reason?: string;
  /** Its place in the order of the pods that compete with each other for room, from 1; 0 while it is not known. */
  position?: number;
  /** The number of pods in that order. */
  of?: number;
  /** Those before it that want cards that it may use; the others wait for other cards. */
  ahead?: number;
  /** Unix time before which half of such pods start, a whole minute; None if nothing is known. */
  p50?: number;
  /** That of nine of ten; None if it is too far away to say. */
  p90?: number;
  /**
   * What the start rests on: `deadline`, `history`, `waits` (history and past waits), `rate` or `unknown`; empty
   * without a position.
   */
  basis?: string;
  /** Pods with the same slices that started in the last hour. */
  starts?: number;
}

/** A Workload that waits in Kueue; see tessera.explain.kueue_rows.KueueRow. */
export interface Workload {
  /** Its namespace. */
  namespace: string;
  /** Its name. */
  workload: string;
  /** What it is for: `Job/train`, or the name of a pod; empty if nothing owns it. */
  owner?: string;
  /** Its LocalQueue. */
  queue?: string;
  /** Unix time of its creation. */
  since?: number;
  /** Its place in the LocalQueue, from 1; 0 while it is not known. */
  position?: number;
  /** The number of pending Workloads of that queue. */
  of?: number;
  /** True if the queue may have more than `of`. */
  ofMore?: boolean;
  /** Its place among all queues that share the quota, from 1; 0 while it is not known. */
  amongAll?: number;
  /** The kind of waiting, as `tessera why` has it. */
  case?: string;
  /** Why it waits. */
  verdict?: string;
}

/** Kueue is there. */
export interface Kueue {
  /** What is not known of its queues, and why: sentences of Tessera that name no object of the cluster. */
  notes?: string[];
  /** What the server said about it. */
  detail?: string;
  /** If the last reading failed, the Unix time of the last one that did not; 0 if there is none. */
  read?: number;
}

/** The number of Workloads of a namespace that wait in Kueue, beside those that have a document. */
export interface Unshown {
  namespace: string;
  workloads: number;
}

/** A resource of a node whose agent does not answer: its devices, and those that pods ask for. */
export interface Offer {
  resource: string;
  model: string;
  count: number;
  used: number;
}

/** A node whose agent should answer and does not. */
export interface Failure {
  /** Its name. */
  node: string;
  /** Why. */
  reason: string;
  /** Unix time since when; 0 if that is not known. */
  since?: number;
  /** What to do. */
  next?: string;
  /** What the node offers, as far as the node itself says. */
  offers?: Offer[];
}

/** The cluster as a whole. */
export interface Summary {
  /** Nodes whose agents answer, and those of silent cards. */
  nodes: number;
  /** Cards, with the silent ones. */
  cards: number;
  /** Pods that hold cards. */
  pods: number;
  /** Pods that wait for cards. */
  waiting: number;
  /** Cards that containers hold, parts added; of silent cards, what Tessera's records say. */
  held: number;
  /** Cards whose activity is measured. */
  measured: number;
  /**
   * Pods that have a place for whole cards or shares, which no agent lists as theirs yet: what fits now still counts
   * these.
   */
  starting?: number;
  /** Cards whose agent does not answer, known from Tessera's records. */
  silent?: number;
  /** Cards with which something is wrong. */
  unwell?: number;
  /** Cards with which nothing is wrong, and that a person has taken out of service. */
  cordoned?: number;
  /** Those of them that work for nobody until a reset or a reboot. */
  heldLost?: number;
  /** Mean activity of these cards. */
  busy?: number;
  /** Watts of all cards that measure it. */
  power?: number;
  /** True if cards exist only in a lab, also while their agents are silent. */
  simulated?: boolean;
  /** True if the controller's queue cannot be read: nobody knows places and expected starts. */
  unqueued?: boolean;
  /** Why it cannot. */
  unqueuedDetail?: string;
  /** True if the controller does not tell the services. */
  unserved?: boolean;
  /** Why it does not. */
  unservedDetail?: string;
  /** Services that the controller does not tell, beyond its most. */
  servicesCut?: number;
}

/** A node's driver. */
export interface Driver {
  /** How it is installed: `precompiled`, `built`, `pre-installed`, ... */
  strategy: string;
  /** `ready`, `pulling`, `failed`, ... */
  phase: string;
  /** The version or branch that the policy asks for. */
  version?: string;
  /** When the phase began, RFC 3339. */
  since?: string;
  /** Why this strategy, or what the node waits for. */
  reason?: string;
  /** State of the node in a rollout, in NVIDIA's words. */
  upgrade?: string;
  /** A better driver that is possible now. */
  offered?: string;
}

/** A phase of a node's start that is over, and its seconds. */
export interface Phase {
  name: string;
  seconds: number;
}

/** A node that comes up. */
export interface Startup {
  /** The phase that it is in, and what it waits for. */
  verdict: string;
  /** True if its deadline has passed. */
  overdue?: boolean;
  /** What is known of its start. */
  facts?: string[];
  /** The phases that are over. */
  phases?: Phase[];
}

/** A node with a driver of Tessera, or on its way to usable cards. */
export interface NodeState {
  /** Its name. */
  node: string;
  /** Its driver; None if Tessera does not install it. */
  driver?: Driver;
  /** Its way; None once its cards can be used. */
  startup?: Startup;
}

/** A namespace whose label names a team; the others are teams of their own. */
export interface Team {
  namespace: string;
  team: string;
}

/** Slices that a queue keeps free for pods of its services. */
export interface Spare {
  /** The queue. */
  queue: string;
  /** The slices. */
  profile: string;
  /** Those that are free now. */
  free: number;
  /** Those that it should keep. */
  wanted: number;
  /** Why there can be none; empty if there can. */
  fault: string;
  /** How the number came, if the queue leaves it to the controller. */
  why: string;
}

/** The last hours of the fleet; `None` for a value that was not measured. */
export interface FleetHistory {
  /** Unix time of the last value. */
  until: number;
  /** Seconds between two values. */
  step: number;
  /** Cards that containers hold, parts added. */
  held: (number | null)[];
  /** Mean activity of the cards that measure it. */
  busy: (number | null)[];
  /** Watts of all cards that measure it. */
  power: (number | null)[];
  /** Pods that wait for cards. */
  waiting: (number | null)[];
}

/** The last hours of a card; `None` for a value that was not measured. */
export interface CardHistory {
  /** Its node. */
  node: string;
  /** Of the card. */
  uuid: string;
  /** Unix time of the last value. */
  until: number;
  /** Seconds between two values. */
  step: number;
  /** Part of the card that containers hold. */
  held: (number | null)[];
  /** Its activity, 0 to 1. */
  busy: (number | null)[];
  /** Part of its memory that is in use. */
  memory: (number | null)[];
}

/** Curves of one time. */
export interface Past {
  /** Unix time of the last value. */
  until: number;
  /** Seconds between two values. */
  step: number;
  /** Values by the name of the curve, the oldest first; None where Prometheus has none. */
  curves: Record<string, (number | null)[]>;
}
