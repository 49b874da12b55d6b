// A small chart of the last hours. A gap is a time without a measurement.

import { count } from "./words";

/** Values of the last hours, the oldest first; null was not measured. */
type Curve = (number | null)[];

const WIDTH = 240;
const HEIGHT = 64;
const DAY = 86_400;

interface ChartProps {
  label: string;
  values: Curve;
  /** Seconds between two values. */
  step: number;
  /** Unix time of the last value. */
  until: number;
  /** True if nothing can be measured any more: the last value is that of an earlier time. */
  lost?: boolean;
  /** The value at the top; without it, the largest one. */
  most?: number | undefined;
  /** A value as text. */
  text: (value: number) => string;
  /** True if the curve may span days, so that times need their day. */
  spans?: boolean;
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

/** A length of time in words. */
export function span(seconds: number): string {
  if (seconds >= 2 * DAY) return count(Math.round(seconds / DAY), "day");
  return seconds >= 7200
    ? count(Math.round(seconds / 3600), "hour")
    : count(Math.max(1, Math.round(seconds / 60)), "minute");
}

/** The time of day of a value, with its day where a curve has several; the figures above the charts may be newer. */
function clock(seconds: number, days: boolean): string {
  const day = days ? ({ weekday: "short", day: "numeric", month: "short" } as const) : {};
  return new Date(seconds * 1000).toLocaleString("en-GB", { ...day, hour: "2-digit", minute: "2-digit" });
}

/** The chart with its axes: the range of its values, and the times of the first and the last. */
export function Chart({ label, values, step, until, lost, most, text, spans = false }: ChartProps) {
  const known = values.filter((value): value is number => value !== null);
  const last = values[values.length - 1];
  if (known.length === 0) {
    return (
      <figure class="chart">
        <figcaption>
          <b>{label}</b> n/a
        </figcaption>
      </figure>
    );
  }
  const top = Math.max(most ?? Math.max(...known), 1e-9);
  const now = lost || last === null || last === undefined ? "n/a" : text(last);
  const seconds = (values.length - 1) * step;
  const days = spans && seconds > DAY / 2;
  const [from, to] = [clock(until - seconds, days), clock(until, days)];
  const range = `${text(Math.min(...known))} to ${text(Math.max(...known))} in ${span(spans ? seconds : seconds + step)}`;
  return (
    <figure class="chart">
      <figcaption>
        <b>{label}</b> <span class="now">{now}</span> <small>at {to}</small>
      </figcaption>
      <div class="plot">
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${label}: ${now} at ${to}, ${range}`}
        >
          <line x1="0" x2={WIDTH} y1={HEIGHT / 2} y2={HEIGHT / 2} />
          {pieces(values, top).map((points) => (
            <polyline key={points} points={points} />
          ))}
        </svg>
        <span class="axis" aria-hidden="true">
          <span>{text(top)}</span>
          <span>{[text(top), text(0)].includes(text(top / 2)) ? "" : text(top / 2)}</span>
          <span>{text(0)}</span>
        </span>
        <span class="times" aria-hidden="true">
          <span>{from}</span>
          <span>{to}</span>
        </span>
      </div>
    </figure>
  );
}
