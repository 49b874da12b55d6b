// The pods that hold cards: state, load and memory of each, and those that hold without need.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Card, Lease } from "./documents";
import { useNear } from "./hooks";
import { PodLink } from "./links";
import { own } from "./own";
import { Panel } from "./panel";
import { type Held, largest, type Survey, unused } from "./survey";
import { age, count, gibOf, integer, isLost, MEANINGS, modelName, percent, stateName, stateOf } from "./words";

/** The number of pods that are shown at once. */
const PAGE = 50;
const LAZY = 200;

interface ListProps {
  held: Held[];
  onOpen: (id: string) => void;
}

interface WastedProps {
  found: Survey;
  filtered: boolean;
  onOpen: (id: string) => void;
  /** Shows the pods of a state. */
  onState: (state: string) => void;
}

/** Who holds something and does not use it, who looks so, and of how many that cannot be known. */
export function Wasted({ found, filtered, onOpen, onState }: WastedProps) {
  const { held, wasted, suspects, unseen, unseenCards, unknown } = found;
  const item = (each: Held, why: ComponentChildren) => {
    const { id, card, profile, lease } = each;
    return (
      <li key={`${id}/${lease.namespace}/${lease.pod}/${lease.container}`} class="item">
        <div class="line">
          <PodLink pod={lease} onOpen={onOpen} />
          <State lease={lease} card={card} />
        </div>
        <div>
          {profile || (lease.share < 1 ? `${percent(lease.share)} of a card` : "a whole card")} on{" "}
          <button type="button" class="link" onClick={() => onOpen(id)}>
            {card.node}, card {card.index}
          </button>{" "}
          <small>{modelName(card.model)}</small>
        </div>
        <div class="quiet">
          {why}
          {lease.owner && `, of ${lease.owner}`}
        </div>
      </li>
    );
  };
  const proven = (each: Held) => {
    const { card, lease } = each;
    const [seconds, failed] = [unused(each), isLost(card) && card.health?.since];
    const parts = [
      `held ${age(lease.held)}`,
      failed && `its card failed ${age(Date.now() / 1000 - failed)} ago`,
      seconds >= LEAST && `${gpuHours(seconds)} GPU-hours unused`,
    ];
    return item(each, parts.filter(Boolean).join(", "));
  };
  const likely = (each: Held) => {
    const { evidence, held, countsFrom = 0 } = each.lease;
    return item(
      each,
      `${evidence || `held ${age(held)}`}; counts as not used from ${Math.round(countsFrom / 60)} min on`,
    );
  };
  const open = unseen.size + unknown.size;
  return (
    <Panel
      filtered={filtered && open + suspects.length === 0}
      title="Held, not used"
      id="wasted"
      size={wasted.length}
      draw={(most) => largest(wasted, most, unused).map(proven)}
      empty={
        open + suspects.length > 0
          ? "No pod is known to hold something without use."
          : held.length === 0
            ? "No pod is known to hold something."
            : "Every pod uses what it holds, as far as that is measured."
      }
      first={4}
      note={wasted.length > 0 ? "most wasted first" : "proven"}
    >
      {suspects.length + open > 0 && (
        <>
          {suspects.length > 0 && (
            <>
              <h3>
                Looks unused so far <span class="number">{integer(suspects.length)}</span>
              </h3>
              <ul class="plain">{largest(suspects, 4, ({ lease }) => lease.held).map(likely)}</ul>
            </>
          )}
          {suspects.length > 4 && <p class="quiet">and {integer(suspects.length - 4)} more, held for a shorter time</p>}
          {open > 0 && (
            <p class="quiet">
              Not known:{" "}
              {unseen.size > 0 && (
                <button type="button" class="link" onClick={() => onState("blind")}>
                  {count(unseen.size, "pod")} on {count(unseenCards, "card")} that cannot be measured
                </button>
              )}
              {unseen.size > 0 && unknown.size > 0 && ", "}
              {unknown.size > 0 && (
                <button type="button" class="link" onClick={() => onState("unknown")}>
                  {count(unknown.size, "pod")} not measured yet, or whose card or node is silent
                </button>
              )}
              .
            </p>
          )}
        </>
      )}
    </Panel>
  );
}

/** GPU-seconds that are not 0.0 GPU-hours. */
const LEAST = 180;

function gpuHours(seconds: number): string {
  return (seconds / 3600).toFixed(seconds < 36000 ? 1 : 0);
}

export function State({ lease, card }: { lease: Lease; card: Card }) {
  const state = stateOf(lease, card);
  return (
    <span class="state" title={[MEANINGS[state], lease.evidence].filter(Boolean).join(": ")}>
      <span class={`mark ${state}`} aria-hidden="true" /> {stateName(lease, card)}
    </span>
  );
}

/** Memory in use against what the pod may use. */
export function Memory({ lease }: { lease: Lease }) {
  const { memory, limit } = lease;
  return (
    <span class="memory">
      {gibOf(memory, limit)}
      {memory !== undefined && limit ? (
        <meter min={0} max={limit} high={limit * 0.9} optimum={0} value={memory} aria-label={gibOf(memory, limit)} />
      ) : null}
    </span>
  );
}

const ORDERS: Record<string, (lease: Lease) => number> = {
  wasted: (lease) => lease.wasted,
  busy: (lease) => lease.busy ?? -1,
  memory: (lease) => lease.memory ?? -1,
  held: (lease) => lease.held,
  findings: (lease) => (lease.findings ?? []).length + (lease.fault ? 1 : 0),
};

export function Pods({ held, pods, onOpen }: ListProps & { pods: number }) {
  const [order, setOrder] = useState("busy");
  const [size, setSize] = useState(PAGE);
  const value = ORDERS[order] ?? ((lease: Lease) => lease.held);
  const place = useRef<HTMLElement>(null);
  // Nobody sees the table of a large cluster while it is far from the window.
  const near = useNear(place, held.length > LAZY, "300px");
  const shown = near ? largest(held, size, ({ lease }) => value(lease)) : [];
  // A fault of a card stands once, at the first of its pods; another one of a GPU instance stands at its own.
  const faults = new Set<string>();
  const isFirst = (fault: string): boolean => !faults.has(fault) && faults.add(fault).has(fault);
  return (
    <section id="pods" class="panel" aria-label="Pods with cards" ref={place}>
      <h2>
        Pods with cards <small>{count(pods, "pod")}</small>
        <label class="switch">
          first{" "}
          <select value={order} onChange={(event) => setOrder(event.currentTarget.value)}>
            <option value="busy">most busy</option>
            <option value="memory">most memory</option>
            <option value="wasted">most wasted</option>
            <option value="held">longest held</option>
            <option value="findings">with findings</option>
          </select>
        </label>
      </h2>
      {held.length === 0 ? (
        <p class="quiet">No pod holds a card that is shown.</p>
      ) : (
        <table class={near ? "" : "far"}>
          <thead>
            <tr>
              {["pod", "state", "busy now", "memory", "place", "held"].map((each) => (
                <th key={each} scope="col">
                  {each}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map(({ id, card, profile, lease }) => (
              <tr key={`${id}/${lease.namespace}/${lease.pod}/${lease.container}`} class={own.has(lease) ? "own" : ""}>
                <th scope="row">
                  <PodLink pod={lease} onOpen={onOpen} /> <small>{lease.owner}</small>
                  {lease.fault && isFirst(`${id} ${lease.fault}`) && <div class="warn">{lease.fault}</div>}
                  {(lease.findings ?? []).map((each) => (
                    <div key={each} class="warn" title={each}>
                      {each.split(":", 1)[0]}
                    </div>
                  ))}
                </th>
                <td data-name="state">
                  <State lease={lease} card={card} />
                </td>
                <td data-name="busy">{percent(lease.busy)}</td>
                <td data-name="memory">
                  <Memory lease={lease} />
                </td>
                <td data-name="place">
                  <button type="button" class="link" onClick={() => onOpen(id)}>
                    {card.node}, card {card.index}
                  </button>{" "}
                  <small>{profile || (lease.share < 1 ? percent(lease.share) : "whole")}</small>
                </td>
                <td data-name="held">{age(lease.held)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {held.length > size && (
        <button type="button" onClick={() => setSize(size + 4 * PAGE)}>
          show more of {integer(held.length)}
        </button>
      )}
    </section>
  );
}
