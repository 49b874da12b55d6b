// All cards by node. Of many nodes only those near the window are drawn.

import { useRef } from "preact/hooks";
import { CardTile, type Form } from "./card";
import { useNear } from "./hooks";
import { NodeLink } from "./links";
import { own } from "./own";
import { store } from "./store";
import type { CardGroup, Survey } from "./survey";
import type { View } from "./view";
import { count, integer, MEANINGS, modelName, STATES } from "./words";

/** From so many cards on, the mosaic has no names. */
const MANY = 65;
/** From so many cards on, nodes far from the window are not drawn. */
const LAZY = 200;

interface CardsProps {
  found: Survey;
  view: View;
  change: (part: Partial<View>) => void;
  onOpen: (id: string) => void;
}

export function isMosaic(view: View): boolean {
  return view.form !== "rows";
}

export function Cards({ found, view, change, onOpen }: CardsProps) {
  const mosaic = isMosaic(view);
  const all = store.cards.size;
  return (
    <section id="cards" aria-label="Cards">
      <h2>
        Cards{" "}
        <small>{found.shown === all ? count(all, "card") : `${integer(found.shown)} of ${integer(all)} shown`}</small>
        <span class="switch">
          <button type="button" aria-pressed={mosaic} onClick={() => change({ form: "" })}>
            mosaic
          </button>
          <button type="button" aria-pressed={!mosaic} onClick={() => change({ form: "rows" })}>
            rows
          </button>
        </span>
      </h2>
      {store.summary !== undefined && all === 0 && <p>No agent has reported a card yet.</p>}
      {all > 0 && found.shown === 0 && (
        <p>
          No card matches the filter.{" "}
          <button type="button" onClick={() => change({ text: "", state: "", room: "" })}>
            clear the filter
          </button>
        </p>
      )}

      {!mosaic && found.shown > 0 && (
        <div class="row heads" aria-hidden="true">
          <span>card</span>
          <span>who holds which part; the dark line shows how busy a part is now</span>
          <span class="numbers">
            <span>busy</span>
            <span>memory</span>
            <span>power</span>
            <span>heat</span>
          </span>
        </div>
      )}
      <div class={mosaic ? (all < MANY ? "mosaic names" : "mosaic") : "rows"}>
        {found.groups.map((group) => (
          <NodeGroup
            key={group.node}
            group={group}
            lazy={found.shown >= LAZY}
            form={mosaic ? (all < MANY ? "names" : "tiles") : "rows"}
            onOpen={onOpen}
            open={view.open}
          />
        ))}
      </div>
      {all > 0 && <Legend looks={found.looks} />}
    </section>
  );
}

/** What colours mean, where the name of a state does not say it. */
const SHORT: Record<string, string> = {
  busy: "busy in the last 30 min",
  blind: "in use or not: cannot be measured",
};

/** Frames of cards, and what they mean. */
const FRAMES: [string, string][] = [
  ["frame-degraded", "card has errors or is slowed down; its pods still run"],
  ["frame-cordoned", "card cordoned by hand"],
  ["frame-silent", "node is silent: what its cards do is unknown"],
];

/** Looks that were explained since the page was opened; they stay, so that nothing moves when one comes back. */
const explained = new Set<string>();

/** What looks mean, of those that occur. */
function Legend({ looks }: { looks: Set<string> }) {
  for (const each of looks) explained.add(each);
  const entries: [string, string][] = [
    ...Object.entries(STATES).map(([state, name]): [string, string] => [state, SHORT[state] ?? name]),
    ["busy rests", "busy before, not now"],
    ["none", "free slice, made already"],
    ["slot", "free"],
    ["none creating", "slice being made or removed"],
    ...FRAMES,
  ];
  return (
    <p class="legend">
      {entries
        .filter(([look]) => explained.has(look))
        .map(([look, name]) => (
          <span key={look} title={MEANINGS[look]}>
            <span class={`mark ${look}`} aria-hidden="true" /> {name}
          </span>
        ))}
      <span>
        <span class="mark line" aria-hidden="true" /> how busy a part is now
      </span>
      {explained.has("own") ? (
        <span>
          <span class="mark own" aria-hidden="true" /> your pods
        </span>
      ) : null}
    </p>
  );
}

interface GroupProps {
  group: CardGroup;
  lazy: boolean;
  form: Form;
  open: string;
  onOpen: (id: string) => void;
}

/** Height of a node's cards while they are not drawn, in rem. */
const HEIGHTS: Record<Form, (cards: number) => number> = {
  rows: (cards) => cards * 2.6 + 2,
  names: (cards) => cards * 2.4 + 2,
  tiles: (cards) => Math.ceil(cards / 8) * 2 + 3.5,
};

function NodeGroup({ group, lazy, form, open, onOpen }: GroupProps) {
  const place = useRef<HTMLDivElement>(null);
  const drawn = useNear(place, lazy, "300px");
  const models = [...new Set(group.ids.map((id) => modelName(store.cards.get(id)?.model ?? "")))];
  const each = { form, own: own.version, onOpen };
  return (
    <div class="node" ref={place} style={drawn ? undefined : { minHeight: `${HEIGHTS[form](group.ids.length)}rem` }}>
      <h3>
        <NodeLink node={group.node} onOpen={onOpen} /> <small>{form === "rows" ? "" : models.join(", ")}</small>
      </h3>
      <div class={form === "tiles" ? "tiles" : ""}>
        {drawn && group.ids.map((id) => <CardTile key={id} id={id} open={open === id} {...each} />)}
      </div>
    </div>
  );
}
