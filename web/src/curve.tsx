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
  const found: string[] = [];
  let points: string[] = [];
  const end = (): void => {
    if (points.length > 0) found.push([...points, points[points.length - 1]].join(" "));
    points = [];
  };
  for (const [number, value] of values.entries()) {
    if (value === null) {
      end();
      continue;
    }
    const x = values.length > 1 ? (number / (values.length - 1)) * WIDTH : WIDTH;
    const y = HEIGHT - 2 - (Math.min(value, most) / most) * (HEIGHT - 4);
    points.push(`${x.toFixed(1)},${y.toFixed(1)}`);
  }
  end();
  return found;
}

function span(seconds: number): string {
  return seconds >= 7200 ? `${Math.round(seconds / 3600)} hours` : `${Math.max(1, Math.round(seconds / 60))} minutes`;
}

/** The chart with its range in words, so that it needs no axis. */
export function Chart({ label, values, step, most, text }: ChartProps) {
  const known = values.filter((value): value is number => value !== null);
  const last = known[known.length - 1];
  if (last === undefined) {
    return (
      <figure class="chart">
        <figcaption>
          <b>{label}</b> n/a
        </figcaption>
      </figure>
    );
  }
  const top = Math.max(most ?? Math.max(...known), 1e-9);
  const range = `${text(Math.min(...known))} to ${text(Math.max(...known))} in ${span(values.length * step)}`;
  return (
    <figure class="chart">
      <figcaption>
        <b>{label}</b> now {text(last)} <small>{range}</small>
      </figcaption>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${label}: now ${text(last)}, ${range}`}
      >
        {pieces(values, top).map((points) => (
          <polyline key={points} points={points} />
        ))}
      </svg>
    </figure>
  );
}
