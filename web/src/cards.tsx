// All cards by node. Of many nodes only those near the window are drawn.

import { useRef } from "preact/hooks";
import { CardTile, type Form } from "./card";
import { useNear } from "./hooks";
import { NodeLink } from "./links";
import { own } from "./own";
import { store } from "./store";
import type { CardGroup, Survey } from "./survey";
import type { View } from "./view";
import { count, integer, MEANINGS, modelName, roomName, STATES } from "./words";

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
      {view.room && found.shown > 0 && <p class="quiet">These have room for {roomName(view.room)}.</p>}
      {!mosaic && found.shown > 0 && (
        <div class="row heads" aria-hidden="true">
          <span>card</span>
          <span>who holds which part; the dark line shows how busy a part is</span>
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
      {all > 0 && <Legend />}
    </section>
  );
}

/** Frames of cards, and what they mean. */
const FRAMES: [string, string][] = [
  ["frame-degraded", "card has errors, still in use"],
  ["frame-cordoned", "card cordoned by hand"],
  ["frame-silent", "node is silent: what its cards do is unknown"],
];

function Legend() {
  return (
    <p class="legend">
      {Object.entries(STATES).map(([state, name]) => (
        <span key={state} title={MEANINGS[state]}>
          <span class={`mark ${state}`} aria-hidden="true" /> {name}
        </span>
      ))}
      <span>
        <span class="mark none" aria-hidden="true" /> slice without a pod
      </span>
      <span>
        <span class="mark slot" aria-hidden="true" /> free
      </span>
      {FRAMES.map(([frame, name]) => (
        <span key={frame}>
          <span class={`mark ${frame}`} aria-hidden="true" /> {name}
        </span>
      ))}
      <span>
        <span class="mark own" aria-hidden="true" /> your pods
      </span>
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
