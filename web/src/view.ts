// What the visitor chose: filter, room, open card. It stands in the address, so that a view can be sent to somebody.

import type { Card, Lease, NodeState, Service, Waiting, Workload } from "./documents";
import { leasesOf, teamOf } from "./store";
import {
  HEALTH,
  isCordoned,
  isOutOfUse,
  isSuspect,
  kindName,
  reasonOf,
  SLICES,
  STATES,
  stateName,
  stateOf,
  WASTED,
} from "./words";

export interface View {
  /** Words of the filter. */
  text: string;
  /** A key of `CHOICES`. */
  state: string;
  /** What shown cards have room for. */
  room: string;
  /** `idOf` of the open card, or `podId` of the open pod. */
  open: string;
  /** `rows`; else the mosaic. */
  form: string;
  /** The time range of curves from Prometheus; empty for what the page saw itself. */
  range: string;
}

/** The states to choose from. */
export const CHOICES: [string, string][] = [
  ["free", "with room"],
  ["wasted", "held, not used"],
  ["never_used", "never used"],
  ["idle", "idle"],
  ["resident", "resident"],
  ["busy", "busy"],
  ["unknown", "not known yet"],
  ["blind", "not measurable"],
  ["unwell", "broken or degraded"],
  ["cordoned", "cordoned"],
];

const NAMES: Record<keyof View, string> = {
  text: "q",
  state: "state",
  room: "room",
  open: "open",
  form: "form",
  range: "t",
};

export function readView(): View {
  const values = new URLSearchParams(location.hash.slice(1));
  const value = (name: keyof View): string => values.get(NAMES[name]) ?? "";
  return {
    text: value("text"),
    state: value("state"),
    room: value("room"),
    open: value("open"),
    form: value("form"),
    range: value("range"),
  };
}

/** Writes the view into the address. A choice is a step back for the browser; typing is not. */
export function writeView(view: View, before: View): void {
  const values = new URLSearchParams();
  for (const [name, short] of Object.entries(NAMES)) {
    const value = view[name as keyof View];
    if (value) values.set(short, value);
  }
  const address = `#${values.toString()}`;
  if (view.text === before.text) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

/** A word of the filter; `node:gpu-1` looks at one field, a bare word at all. */
interface Term {
  field: string;
  word: string;
}

const FIELDS: Record<string, string> = {
  node: "node",
  model: "model",
  kind: "kind",
  ns: "namespace",
  namespace: "namespace",
  pod: "pod",
  owner: "owner",
  team: "team",
  state: "state",
  profile: "profile",
};

function readTerms(text: string): Term[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return words.map((each) => {
    const at = each.indexOf(":");
    const field = FIELDS[each.slice(0, at)];
    return at > 0 && field ? { field, word: each.slice(at + 1) } : { field: "", word: each };
  });
}

type Fields = Record<string, string>;

function cardFields(card: Card): Fields {
  const state = [card.health && (HEALTH[card.health.state] ?? card.health.state), card.silent && "silent"];
  return {
    node: card.node,
    model: card.model,
    kind: `${kindName(card)} ${card.kind}`,
    uuid: card.uuid,
    state: `${card.health?.state ?? ""} ${state.filter(Boolean).join(" ")}`,
    profile: (card.tiles ?? []).map((tile) => `${tile.profile} ${SLICES[tile.state ?? ""] ?? ""}`).join(" "),
    pod: (card.tiles ?? []).map((tile) => tile.promise?.pod ?? "").join(" "),
    namespace: (card.tiles ?? []).map((tile) => tile.promise?.namespace ?? "").join(" "),
  };
}

function leaseFields(lease: Lease, card: Card): Fields {
  const { namespace, pod, owner, state } = lease;
  return {
    namespace,
    team: teamOf(namespace),
    pod: `${namespace}/${pod}`,
    owner,
    // What looks unused so far is not proven: its state is unknown, and it is found by the words of what it looks like.
    state: `${state} ${stateName(lease, card)}${isSuspect(lease, card) ? " idle so far, looks unused" : ""}`,
  };
}

/** The fields of a service; a document does not change, so they are made once for each of a thousand. */
const ofServices = new WeakMap<Service, Fields>();

function serviceFields(service: Service): Fields {
  const known = ofServices.get(service);
  if (known) return known;
  const { namespace, kind, name, findings = [] } = service;
  const state = findings.map((each) => each.kind).join(" ");
  const pod = findings.map((each) => `${namespace}/${each.pod}`).join(" ");
  const found = {
    namespace,
    team: teamOf(namespace),
    owner: `${kind}/${name}`,
    name: `${namespace}/${name}`,
    state,
    pod,
  };
  ofServices.set(service, found);
  return found;
}

function hits(term: Term, fields: Fields): boolean {
  if (term.field) return (fields[term.field] ?? "").toLowerCase().includes(term.word);
  return Object.values(fields).some((value) => value.toLowerCase().includes(term.word));
}

/** Decides what is shown. Words about pods must all be true of one pod of the card. */
export class Filter {
  readonly #terms: Term[];
  readonly #view: View;
  /** True if the chosen room is asked for of cards that can give it once pods end, since none has it now. */
  readonly #able: boolean;

  constructor(view: View, able = false) {
    this.#view = view;
    this.#able = able;
    this.#terms = readTerms(view.text);
  }

  /** True if words are part of it. */
  get hasWords(): boolean {
    return this.#terms.length > 0;
  }

  /** The namespace, if it is all that the words name. */
  get namespace(): string {
    const [only, ...more] = this.#terms;
    return only?.field === "namespace" && more.length === 0 ? only.word : "";
  }

  get empty(): boolean {
    return this.#terms.length === 0 && this.#view.state === "" && this.#view.room === "";
  }

  card(card: Card): boolean {
    const { room, state } = this.#view;
    const has = this.#able ? card.free?.[room] !== undefined && !card.closed && !isOutOfUse(card) : card.free?.[room];
    if (room && !has) return false;
    if (state === "free" && !Object.values(card.free ?? {}).some((number) => number > 0)) return false;
    if (state === "unwell" && (card.health === undefined || isCordoned(card)) && !card.silent) return false;
    if (state === "cordoned" && !isCordoned(card)) return false;
    const ofLease = state !== "" && !["free", "unwell", "cordoned"].includes(state);
    if (this.#terms.length === 0 && !ofLease) return true;
    const rest = this.#restOf(card);
    if (rest.length === 0 && !ofLease) return true;
    return leasesOf(card).some((lease) => this.#takes(lease, card, rest));
  }

  /** The leases of a card that is shown. */
  leases(card: Card): Lease[] {
    if (this.#terms.length === 0 && this.#view.state === "") return leasesOf(card);
    const rest = this.#restOf(card);
    return leasesOf(card).filter((lease) => this.#takes(lease, card, rest));
  }

  workload(each: Workload): boolean {
    const { namespace, workload, owner = "", queue = "", verdict: state = "" } = each;
    return this.#terms.every((term) => hits(term, { namespace, workload, owner, queue, state }));
  }

  service(each: Service): boolean {
    return this.#terms.every((term) => hits(term, serviceFields(each)));
  }

  waiting(pod: Waiting): boolean {
    const { namespace, owner = "", requests: profile } = pod;
    const name = `${namespace}/${pod.pod}`;
    const team = teamOf(namespace);
    const fields = { namespace, team, pod: name, owner, profile, state: "waiting", reason: reasonOf(pod) };
    return this.#terms.every((term) => hits(term, fields));
  }

  node(node: { node: string } & Partial<NodeState>): boolean {
    const { driver, startup } = node;
    const state = [driver?.phase, driver?.upgrade, startup?.overdue && "overdue"].filter(Boolean).join(" ");
    const fields = { node: node.node, state, driver: `${driver?.version ?? ""} ${driver?.strategy ?? ""}` };
    return this.#terms.every((term) => hits(term, fields));
  }

  /** The words that the card itself does not have. */
  #restOf(card: Card): Term[] {
    const fields = this.#terms.length ? cardFields(card) : {};
    return this.#terms.filter((term) => !hits(term, fields));
  }

  #takes(lease: Lease, card: Card, rest: Term[]): boolean {
    const { state } = this.#view;
    const own = stateOf(lease, card);
    if (state === "wasted" ? !WASTED.includes(own) : STATES[state] !== undefined && own !== state) return false;
    const fields = leaseFields(lease, card);
    return rest.every((term) => hits(term, fields));
  }
}
