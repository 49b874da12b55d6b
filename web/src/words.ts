// Values as text. What was not measured is "n/a", never 0.

const ABSENT = "n/a";

export function percent(value: number | undefined): string {
  return value === undefined ? ABSENT : `${Math.round(value * 100)} %`;
}

export function gib(value: number | undefined): string {
  return value === undefined ? ABSENT : (value / 2 ** 30).toFixed(value < 10 * 2 ** 30 ? 1 : 0);
}

export function gibOf(value: number | undefined, whole: number | undefined): string {
  return value === undefined ? ABSENT : `${gib(value)} of ${gib(whole)} GiB`;
}

export function watts(value: number | undefined): string {
  return value === undefined ? ABSENT : `${Math.round(value).toLocaleString("en")} W`;
}

export function celsius(value: number | undefined): string {
  return value === undefined ? ABSENT : `${Math.round(value)} °C`;
}

export function age(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "m"]] as const) {
    if (whole >= 2 * size) return `${Math.floor(whole / size)}${unit}`;
  }
  return `${whole}s`;
}

export const STATES: Record<string, string> = {
  busy: "busy",
  resident: "resident: holds memory, computes nothing",
  idle: "idle: no process for 30 minutes",
  never_used: "never used",
  unknown: "not known",
};

export function modelName(model: string): string {
  return model.replace(/^NVIDIA /, "");
}

/** States of cards in words; a card that is well has none. */
export const HEALTH: Record<string, string> = {
  degraded: "degraded",
  draining: "draining",
  needs_reset: "needs a reset",
  needs_reboot: "needs a reboot of its node",
  lost: "lost",
};

/** Kinds of cards in words. */
export const KINDS: Record<string, string> = {
  slice: "on demand",
  mig: "fixed MIG",
  whole: "whole",
  "time-slicing": "time slices",
  mps: "MPS shares",
  "": "not offered",
};

/** What a card may have room for: a profile, the whole card, or a share of it. */
export function roomName(name: string): string {
  return name === "gpu" ? "whole card" : name;
}
