// A small chart of the last hours. A gap is a time without a measurement.

import type { Curve } from "./documents";

const WIDTH = 240;
const HEIGHT = 44;

interface ChartProps {
  label: string;
  values: Curve;
  /** Seconds between two values. */
  step: number;
  /** The value at the top; without it, the largest one. */
  most?: number | undefined;
  /** A value as text. */
  text: (value: number) => string;
}

/** The pieces of the line between the gaps, as points of an SVG polyline. */
function pieces(values: Curve, most: number): string[] {
  const found: string[][] = [[]];
  values.forEach((value, number) => {
    if (value === null) {
      if (found[found.length - 1]!.length) found.push([]);
      return;
    }
    const x = values.length > 1 ? (number / (values.length - 1)) * WIDTH : WIDTH;
    const y = HEIGHT - 2 - (Math.min(value, most) / most) * (HEIGHT - 4);
    found[found.length - 1]!.push(`${x.toFixed(1)},${y.toFixed(1)}`);
  });
  return found.filter((points) => points.length > 0).map((points) => (points.length === 1 ? [points[0]!, points[0]!] : points).join(" "));
}

function span(seconds: number): string {
  return seconds >= 7200 ? `${Math.round(seconds / 3600)} hours` : `${Math.max(1, Math.round(seconds / 60))} minutes`;
}

/** The chart with its range in words, so that it needs no axis. */
export function Chart({ label, values, step, most, text }: ChartProps) {
  const known = values.filter((value): value is number => value !== null);
  if (known.length === 0) return <figure class="chart"><figcaption>{label}: n/a</figcaption></figure>;
  const top = most ?? Math.max(...known, 1e-9);
  const words = `${label}: now ${text(known[known.length - 1]!)}, ${text(Math.min(...known))} to ${text(Math.max(...known))} in ${span(values.length * step)}`;
  return (
    <figure class="chart">
      <figcaption>{words}</figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={words}>
        {pieces(values, top).map((points) => <polyline key={points} points={points} />)}
      </svg>
    </figure>
  );
}
