// Values as text. What was not measured is "n/a", never 0.

import type { Card, Lease, Waiting } from "./documents";

const ABSENT = "n/a";
const GIB = 2 ** 30;

export function percent(value: number | undefined): string {
  if (value === undefined) return ABSENT;
  return value > 0 && value < 0.01 ? "< 1 %" : `${Math.round(value * 100)} %`;
}

function gib(value: number): string {
  return (value / GIB).toFixed(value < 10 * GIB ? 1 : 0);
}

export function gibOf(value: number | undefined, whole: number | undefined): string {
  if (value === undefined) return ABSENT;
  return whole === undefined ? `${gib(value)} GiB` : `${gib(value)} of ${gib(whole)} GiB`;
}

export function watts(value: number | undefined): string {
  if (value === undefined) return ABSENT;
  return value < 1000 ? `${integer(value)} W` : `${decimal(value / 1000)} kW`;
}

/** A value as text, if it is known. */
export function known<T>(value: T | undefined, text: (value: T) => string): string {
  return value === undefined ? ABSENT : text(value);
}

export function celsius(value: number | undefined): string {
  return value === undefined ? ABSENT : `${Math.round(value)} °C`;
}

/** The time of day. */
export function clock(seconds: number): string {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** Time until something is expected: as expected times are whole minutes, so is it. */
export function until(seconds: number): string {
  return seconds < 60 ? "under 1 m" : seconds < 7200 ? `${Math.round(seconds / 60)} m` : age(seconds);
}

export function age(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const sizes: [number, string][] = [
    [86400, "d"],
    [3600, "h"],
    [60, "m"],
  ];
  for (const [size, unit] of sizes) if (whole >= 2 * size) return `${Math.floor(whole / size)} ${unit}`;
  return `${whole} s`;
}

const integers = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const decimals = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

export function integer(value: number): string {
  return integers.format(value);
}

export function decimal(value: number): string {
  return decimals.format(value);
}

export function count(number: number, noun: string): string {
  return `${integer(number)} ${noun}${number === 1 ? "" : "s"}`;
}

const order = new Intl.Collator("en", { numeric: true });

export function byName(left: string, right: string): number {
  return order.compare(left, right);
}

/** What a pod does with what it holds, in words. The last three say that this is not known, and why. */
export const STATES: Record<string, string> = {
  busy: "busy",
  resident: "resident",
  idle: "idle",
  never_used: "never used",
  unknown: "not known yet",
  blind: "not measurable",
  lost: "card failed",
};

/** What these states mean. */
export const MEANINGS: Record<string, string> = {
  busy: "computed in the last 30 minutes",
  resident: "holds memory, computes nothing",
  idle: "no process for 30 minutes",
  never_used: "no process has ever held the device",
  unknown: "not measured yet, or its card or node is silent",
  blind: "the driver reports no activity for it",
  lost: "its card must be reset, replaced, or its node rebooted",
};

/** The state of a lease, a key of `STATES`; on a card that works for nobody it is the card's. */
export function stateOf(lease: Lease, card: Card): string {
  if (isLost(card)) return "lost";
  return lease.blind ? "blind" : lease.state;
}

/** The state of a lease in words. */
export function stateName(lease: Lease, card: Card): string {
  const state = stateOf(lease, card);
  return STATES[state] ?? state;
}

/** True for a pod that looks unused so far, and is not proven to be. */
export function isSuspect(lease: Lease, card: Card): boolean {
  return stateOf(lease, card) === "unknown" && lease.countsFrom !== undefined;
}

/** Why the activity of a card is not known. */
export const ABSENCES: Record<string, string> = {
  not_supported: "the card or its driver does not report it",
  mig_mode: "the driver does not report it in MIG mode",
  no_gpm: "only Hopper and newer cards report it",
  first_sample: "a mean needs two samples",
  no_permission: "the agent may not read it",
  failed: "the driver failed to report it",
};

/** States in which a pod makes no use of what it holds. */
export const WASTED = ["never_used", "idle", "resident", "lost"];

/** States of cards in words; a card that is well has none. */
export const HEALTH: Record<string, string> = {
  degraded: "degraded",
  replace: "to be replaced",
  cordoned: "cordoned by hand",
  withheld: "withheld",
  needs_reset: "needs a reset",
  needs_reboot: "needs a reboot of its node",
  lost: "lost",
};

/** States of cards on which nothing works. */
const LOST = ["needs_reset", "needs_reboot", "lost"];

/** True for a card on which nothing works until it is reset, or its node is booted. */
export function isLost(card: Card): boolean {
  return LOST.includes(card.health?.state ?? "");
}

/** True for a card that pods get nothing of. */
export function isOutOfUse(card: Card): boolean {
  return ["cordoned", "withheld", ...LOST].includes(card.health?.state ?? "");
}

/** How bad a card is, as a class of its frame; empty for one that is well. */
export function frameOf(card: Card): string {
  if (card.silent) return "frame-silent";
  if (!card.health) return (card.throttled ?? []).length > 0 ? "frame-degraded" : "";
  if (isCordoned(card)) return "frame-cordoned";
  return isLost(card) ? "frame-lost" : "frame-degraded";
}

/** True for a card with which nothing is wrong, and that a person has taken out of service. */
export function isCordoned(card: Card): boolean {
  return card.health?.state === "cordoned";
}

/** States of slices that no container holds in the usual way. */
export const SLICES: Record<string, string> = {
  creating: "being made",
  deleting: "being removed",
  foreign: "made by others",
  kept: "its record is lost",
};

export function modelName(model: string): string {
  return model.replace(/^NVIDIA /, "");
}

/** How a card is offered, in words. */
export function kindName(card: Card): string {
  const shares = card.replicas ?? 1;
  const inMig = card.slots > 0;
  switch (card.kind) {
    case "slice":
      return "slices on demand";
    case "mig":
      return "fixed MIG";
    case "whole":
      return "whole";
    case "time-slicing":
      return inMig ? `fixed MIG, ${shares} time slices each` : `${shares} time slices`;
    case "shares":
      return `${shares} shares`;
    case "mps":
      return inMig ? `fixed MIG, ${shares} MPS shares each` : `${shares} MPS shares`;
    default:
      return "not offered";
  }
}

/** End of the name of a share of a MIG device. */
const SHARED = ".shared";

/** What a card may have room for: a profile, the whole card, or a share of a card or a MIG device. */
export function roomName(name: string, number = 1): string {
  const plural = number === 1 ? "" : "s";
  if (name === "gpu") return `whole card${plural}`;
  if (name === "share") return `share${plural}`;
  return name.endsWith(SHARED) ? `share${plural} of ${name.slice(0, -SHARED.length)}` : name;
}

/** True for the alias that stands for a name which the visitor may not see. */
export function isHidden(name: string): boolean {
  return name.startsWith("~");
}

export function podName(pod: { namespace?: string; pod?: string }): string {
  if (isHidden(pod.pod ?? "")) return pod.pod ?? "";
  return `${pod.namespace}/${pod.pod}`;
}

/** Why a pod waits, as far as the reader may know. */
export function reasonOf(pod: Waiting): string {
  return pod.why ?? pod.reason ?? "";
}
