// A card as a bar: its memory slots with their MIG devices, or its shares. As wide as it is, a part says who holds it;
// in the mosaic of a large cluster a card is one element with a striped background, which costs a browser little.

import type { Card, Lease, Tile } from "./documents";
import { own } from "./own";
import { HEALTH, isHidden, isLost, isOutOfUse, percent, podName, SLICES, STATES, stateOf } from "./words";

/** Activity below which a pod that was busy does nothing now; the agent's threshold of busy. */
const RESTS = 0.01;
/** The most parts that a bar is divided into. */
const MOST = 64;

/** A part of a bar: its place in units of the card, its colour, and its words. */
interface Part {
  at: number;
  size: number;
  /** A state of a lease; `none` for a MIG device without holder, `slot` for a place without MIG device. */
  look: string;
  name: string;
  note: string;
  title: string;
  busy?: number | undefined;
  /** True for a part that the visitor's own pod holds. */
  own?: boolean;
}

export interface Bar {
  units: number;
  parts: Part[];
}

/** What a free place of the card is good for: its look and its words. */
function freePlace(card: Card): { look: string; name: string; title: string } {
  if (!card.kind) return { look: "slot shut", name: "not offered", title: "not offered" };
  const state = card.health?.state ?? "";
  if (isOutOfUse(card)) return { look: "slot shut", name: "", title: `not given out: ${HEALTH[state]}` };
  if (card.slots > 0 && card.kind !== "slice") return { look: "slot shut", name: "", title: "not part of the layout" };
  if (card.slots > 0) return { look: "slot", name: "", title: "free memory slot" };
  return { look: "slot", name: "", title: (card.replicas ?? 1) > 1 ? "free share" : "free" };
}

/** The parts of a card from left to right. */
export function barOf(card: Card): Bar {
  if (card.slots > 0) return slotsOf(card);
  const shares = Math.max(1, Math.min(card.replicas ?? 1, MOST));
  const leases = card.leases ?? [];
  const parts = leases.map((lease) =>
    leasePart(lease, card, Math.max(1, Math.round(lease.share * shares)), "", card.busy),
  );
  const units = Math.max(
    shares,
    parts.reduce((sum, part) => sum + part.size, 0),
  );
  place(parts, 0);
  const free = freePlace(card);
  for (let at = parts.reduce((sum, part) => sum + part.size, 0); at < units; at += 1) {
    parts.push({ at, size: 1, note: "", ...free });
  }
  return { units, parts };
}

function slotsOf(card: Card): Bar {
  // Whole numbers for the shares of each MIG device, as far as they can be seen.
  const scale = Math.min(card.replicas ?? 1, Math.max(1, Math.floor(MOST / card.slots)));
  const parts: Part[] = [];
  const tiles = card.tiles ?? [];
  const taken = new Set<number>();
  const free = freePlace(card);
  for (const tile of tiles) {
    for (let slot = tile.start; slot < tile.start + tile.size; slot += 1) taken.add(slot);
    parts.push(...partsOf(tile, card, scale));
  }
  for (let slot = 0; slot < card.slots; slot += 1) {
    if (!taken.has(slot)) {
      parts.push({ at: slot * scale, size: scale, note: "", ...free });
    }
  }
  return { units: card.slots * scale, parts: parts.sort((left, right) => left.at - right.at) };
}

function partsOf(tile: Tile, card: Card, scale: number): Part[] {
  const at = tile.start * scale;
  const size = tile.size * scale;
  const leases = tile.leases ?? [];
  if (leases.length === 0) {
    const state = SLICES[tile.state ?? ""] ?? "";
    const name = tile.promise ? tile.promise.pod : state || "free";
    const note = [tile.profile, tile.promise && state].filter(Boolean).join(", ");
    const held = isLost(card) ? "lost" : "unknown";
    const look = state ? `none ${tile.state}` : tile.promise ? held : "none";
    const holder = tile.promise ? podName(tile.promise) : "";
    const free = scale > 1 ? "free shares" : "free";
    return [
      {
        at,
        size,
        look,
        name,
        note,
        title: `${tile.profile}: ${[holder, state].filter(Boolean).join(", ") || free}`,
        own: tile.promise !== undefined && own.has(tile.promise),
      },
    ];
  }
  // Shares of one MIG device stand side by side; the rest of it is free.
  const width = scale > 1 ? tile.size : Math.max(1, Math.floor(size / leases.length));
  const parts = leases.map((lease) => leasePart(lease, card, scale > 1 ? width : size, tile.profile, tile.busy));
  if (parts.length === 1 && scale === 1) return [{ ...(parts[0] as Part), at, size }];
  const fitting = parts.slice(0, Math.max(1, Math.floor(size / width))).map((part) => ({ ...part, size: width }));
  place(fitting, at);
  const end = at + fitting.length * width;
  const rest = at + size - end;
  if (rest > 0) {
    fitting.push({ at: end, size: rest, look: "none", name: "free", note: "", title: `${tile.profile}: free shares` });
  }
  return fitting;
}

function place(parts: Part[], start: number): void {
  let at = start;
  for (const part of parts) {
    part.at = at;
    at += part.size;
  }
}

function leasePart(lease: Lease, card: Card, size: number, profile: string, measured: number | undefined): Part {
  const busy = lease.busy ?? measured;
  const look = stateOf(lease, card);
  const rests = look === "busy" && busy !== undefined && busy < RESTS;
  const doing = rests ? `busy before, ${percent(busy)} now` : `${STATES[look] ?? look}, busy ${percent(busy)}`;
  const title = `${profile ? `${profile}: ` : ""}${podName(lease)}, ${doing}`;
  return {
    at: 0,
    size,
    look: rests ? "busy rests" : look,
    name: lease.pod,
    note: profile,
    title,
    busy,
    own: own.has(lease),
  };
}

const looks = new WeakMap<Card, string[]>();

/** The looks of the parts of a card; of one that did not change, those of the last time. */
export function looksOf(card: Card): string[] {
  const known = looks.get(card);
  if (known) return known;
  const found = [...new Set(barOf(card).parts.map(({ look }) => (look === "none deleting" ? "none creating" : look)))];
  looks.set(card, found);
  return found;
}

/** The bar with names. */
export function WideBar({ card }: { card: Card }) {
  const { units, parts } = barOf(card);
  return (
    <span class={card.silent ? "bar silent" : "bar"} style={{ "--units": units }}>
      {parts.map((part) => (
        <span
          key={`${part.at}-${part.size}`}
          class={`part ${part.look}${isHidden(part.name) ? " hidden" : ""}${part.own ? " own" : ""}`}
          style={{ gridColumn: `${part.at + 1} / span ${part.size}` }}
          title={part.title}
        >
          {part.name}
          <i>{part.note}</i>
          {part.busy !== undefined && (
            <b class="load" style={{ width: `${Math.round(Math.min(1, part.busy) * 100)}%` }} />
          )}
        </span>
      ))}
    </span>
  );
}

/** Percent between two parts. */
const GAP = 1.2;
const LOOKS: Record<string, string> = { slot: "--free", "slot shut": "--shut" };

/** The bar as a background: a gradient with hard edges and gaps between its parts; a line marks the visitor's own. */
export function stripes(card: Card): { image: string; own: boolean } {
  const { units, parts } = barOf(card);
  let text = "linear-gradient(90deg";
  let line = "";
  for (const part of parts) {
    const from = Math.round((part.at / units) * 1000) / 10;
    const to = Math.round(((part.at + part.size) / units) * 1000) / 10;
    const look = part.look.endsWith("rests") ? "rests" : part.look.split(" ", 1)[0];
    text += `,var(${LOOKS[part.look] ?? `--${look}`}) ${from}% ${to - GAP}%,var(--paper) ${to - GAP}% ${to}%`;
    if (part.own) line += `,#0000 ${from}%,var(--text) ${from}% ${to - GAP}%,#0000 ${to - GAP}%`;
  }
  const mark = line && `linear-gradient(90deg,#0000 0%${line},#0000 100%),`;
  return { image: `${mark}${text})`, own: line !== "" };
}

/** The state of a card in words, for those who see no colours. */
export function sayCard(card: Card): string {
  const { parts } = barOf(card);
  const states = new Map<string, number>();
  for (const part of parts) {
    if (part.look.startsWith("slot")) continue;
    const words = { ...STATES, none: "free", lost: "held", "busy rests": "busy before" }[part.look];
    const state = words ?? SLICES[part.look.split(" ")[1] ?? ""];
    if (state) states.set(state, (states.get(state) ?? 0) + 1);
  }
  const mine = parts.filter((part) => part.own).length;
  if (mine > 0) states.set("yours", mine);
  const held = [...states].map(([state, number]) => `${number} ${state}`).join(", ");
  return held || (card.kind ? "free" : "not offered");
}
