// The curves of the fleet, of a namespace or of a card: the last hours as this page saw them, or a range of Prometheus.

import { useEffect, useState } from "preact/hooks";
import { Chart, span } from "./curve";
import type { FleetHistory, Past as PastCurves } from "./documents";
import { readRefusal } from "./feed";
import { session } from "./session";
import { store } from "./store";
import type { View } from "./view";
import { celsius, decimal, percent, watts } from "./words";

/** The ranges' names for readers. */
const NAMES: Record<string, string> = { "15m": "15 min", "1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 d" };
/** Milliseconds after which curves are asked for again; steps of longer ranges are longer. */
const SHORTEST = 15_000;
/** Curves of recording rules; the others are in the scrapes themselves. */
const RECORDED = ["busy", "computing", "unused", "memory"];

/** How each curve is drawn. */
const CURVES: Record<string, { label: string; most?: number; text: (value: number) => string }> = {
  held: { label: "cards held", text: decimal },
  busy: { label: "busy", most: 1, text: percent },
  computing: { label: "cards computing", text: decimal },
  unused: { label: "cards held, not used", text: decimal },
  memory: { label: "memory", most: 1, text: percent },
  power: { label: "power", text: watts },
  heat: { label: "heat", text: celsius },
  waiting: { label: "pods waiting", text: (value) => value.toFixed(0) },
};

/** Of a card, the part that pods hold. */
const HELD = { label: "held", most: 1, text: percent };

/** The heading of curves; what this page saw itself may be less than hours. */
export function lastOf(range: string, seen?: { held: unknown[]; step: number }): string {
  if (range === "" && seen && seen.held.length > 1) return `The last ${span((seen.held.length - 1) * seen.step)}`;
  return range === "" ? "The last hours" : `The last ${NAMES[range] ?? range}`;
}

interface RangesProps {
  /** What the server offers; empty without a Prometheus. */
  ranges: string[];
  /** The chosen one; empty for the page's own memory. */
  range: string;
  onRange: (range: string) => void;
}

export function Ranges({ ranges, range, onRange }: RangesProps) {
  if (ranges.length === 0) return null;
  return (
    <fieldset class="ranges" aria-label="Time range">
      {["", ...ranges].map((each) => (
        <button key={each} type="button" aria-pressed={range === each} onClick={() => onRange(each)}>
          {each === "" ? "as seen here" : (NAMES[each] ?? each)}
        </button>
      ))}
    </fieldset>
  );
}

type Found = PastCurves | { error: string };

async function ask(path: string, signal: AbortSignal): Promise<Found> {
  try {
    const response = await fetch(path, { headers: session.headers, cache: "no-store", signal });
    return response.ok ? ((await response.json()) as PastCurves) : await readRefusal(response);
  } catch (error) {
    return { error: `this page's server does not answer: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** What Prometheus has of a subject, asked for again with each step; undefined until the first answer. */
function usePast(range: string, subject: string): Found | undefined {
  const [found, setFound] = useState<Found | undefined>();
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const read = async (): Promise<void> => {
      let next = SHORTEST;
      if (document.visibilityState === "visible") {
        const answer = await ask(`/past/${range}${subject}`, abort.signal);
        if (abort.signal.aborted) return;
        setFound(answer);
        if (!("error" in answer)) next = Math.max(SHORTEST, answer.step * 1000);
      }
      timer = setTimeout(() => void read(), next);
    };
    setFound(undefined);
    if (range !== "") void read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [range, subject]);
  return found;
}

interface RangeProps {
  range: string;
  /** Path of the subject below the range; empty for the cluster. */
  subject: string;
  /** The values at the top of curves that have one. */
  most?: Record<string, number | undefined>;
}

/** The curves of a range, or why there are none. */
export function PastOfRange({ range, subject, most = {} }: RangeProps) {
  const found = usePast(range, subject);
  if (found === undefined) return <p class="quiet">Asking Prometheus…</p>;
  if ("error" in found) return <p class="warn">{found.error}.</p>;
  const curves = Object.entries(found.curves);
  const absent = curves.filter(([, values]) => values.every((value) => value === null)).map(([name]) => name);
  if (absent.length === curves.length) {
    return <p class="quiet">Prometheus has no value of this time: it does not scrape Tessera, or did not then.</p>;
  }
  return (
    <>
      <div class="charts">
        {curves.map(([name, values]) => {
          const ofCard = name === "held" && subject.startsWith("/card/");
          const drawn = ofCard ? HELD : (CURVES[name] ?? { label: name, text: decimal });
          const top = drawn.most ?? most[name];
          return <Chart key={name} {...drawn} values={values} step={found.step} until={found.until} most={top} spans />;
        })}
      </div>
      {absent.some((name) => RECORDED.includes(name)) && (
        <p class="quiet">n/a: no card measures it, or Prometheus lacks Tessera's recording rules.</p>
      )}
    </>
  );
}

interface PastProps {
  ranges: string[];
  view: View;
  change: (part: Partial<View>) => void;
  /** The namespace that the filter names; empty for the whole cluster. */
  namespace: string;
  filtered: boolean;
}

export function Past({ ranges, view, change, namespace, filtered }: PastProps) {
  const past = store.history;
  const range = ranges.includes(view.range) ? view.range : "";
  if (ranges.length === 0 && (past === undefined || past.held.length < 2)) return null;
  const about = range !== "" && namespace !== "" ? namespace : "";
  return (
    <section id="past" class="panel" aria-label="The last hours">
      <h2>{lastOf(range, past)}</h2>
      <Ranges {...{ ranges, range }} onRange={(chosen) => change({ range: chosen })} />
      {about !== "" && <p class="quiet about">Of the pods of namespace {about}.</p>}
      {about === "" && filtered && <p class="quiet about">Of the whole cluster, whatever the filter.</p>}
      {range === "" ? (
        <AsSeen past={past} />
      ) : (
        <PastOfRange
          range={range}
          subject={about === "" ? "" : `/namespace/${encodeURIComponent(about)}`}
          most={about === "" ? { held: store.summary?.cards } : {}}
        />
      )}
    </section>
  );
}

function AsSeen({ past }: { past: FleetHistory | undefined }) {
  if (past === undefined || past.held.length < 2) {
    return <p class="quiet">This page has not run long enough for a curve.</p>;
  }
  const { step, until } = past;
  return (
    <div class="charts">
      <Chart
        label="cards held"
        values={past.held}
        step={step}
        until={until}
        most={store.summary?.cards}
        text={(value) => value.toFixed(1)}
      />
      <Chart label="busy" values={past.busy} step={step} until={until} most={1} text={percent} />
      <Chart label="power" values={past.power} step={step} until={until} text={watts} />
      <Chart label="pods waiting" values={past.waiting} step={step} until={until} text={(value) => value.toFixed(0)} />
    </div>
  );
}
