// All cards by node. Of many nodes only those near the window are drawn.

import { useRef } from "preact/hooks";
import { CardTile } from "./card";
import { useNear } from "./hooks";
import { store } from "./store";
import type { CardGroup, Survey } from "./survey";
import type { View } from "./view";
import { count, integer, MEANINGS, modelName, roomName, STATES } from "./words";

/** From so many cards on, the mosaic is the first choice. */
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
  return view.form ? view.form === "mosaic" : store.cards.size >= MANY;
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
          <button type="button" aria-pressed={!mosaic} onClick={() => change({ form: "rows" })}>
            rows
          </button>
          <button type="button" aria-pressed={mosaic} onClick={() => change({ form: "mosaic" })}>
            mosaic
          </button>
        </span>
      </h2>
      <Legend />
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
          <span>memory slots, or shares; the line below a part is its load</span>
          <span class="numbers">
            <span>busy</span>
            <span>memory</span>
            <span>power</span>
            <span>heat</span>
          </span>
        </div>
      )}
      <div class={mosaic ? "mosaic" : "rows"}>
        {found.groups.map((group) => (
          <NodeGroup
            key={group.node}
            group={group}
            lazy={found.shown >= LAZY}
            {...{ mosaic, onOpen }}
            open={view.open}
          />
        ))}
      </div>
    </section>
  );
}

function Legend() {
  return (
    <p class="legend">
      {Object.entries(STATES).map(([state, name]) => (
        <span key={state} title={MEANINGS[state]}>
          <span class={`mark ${state}`} aria-hidden="true" /> {name}
          <small> {MEANINGS[state] !== name && MEANINGS[state]}</small>
        </span>
      ))}
      <span>
        <span class="mark none" aria-hidden="true" /> MIG device without holder
      </span>
      <span>
        <span class="mark slot" aria-hidden="true" /> free
      </span>
    </p>
  );
}

interface GroupProps {
  group: CardGroup;
  lazy: boolean;
  mosaic: boolean;
  open: string;
  onOpen: (id: string) => void;
}

function NodeGroup({ group, lazy, mosaic, open, onOpen }: GroupProps) {
  const place = useRef<HTMLDivElement>(null);
  const drawn = useNear(place, lazy, "300px");
  const models = [...new Set(group.ids.map((id) => modelName(store.cards.get(id)?.model ?? "")))];
  return (
    <div
      class="node"
      ref={place}
      style={drawn ? undefined : { minHeight: mosaic ? "5.6rem" : `${group.ids.length * 2.6 + 2}rem` }}
    >
      <h3>
        {group.node} <small>{mosaic ? models.join(", ") : ""}</small>
      </h3>
      <div class={mosaic ? "tiles" : ""}>
        {drawn &&
          group.ids.map((id) => <CardTile key={id} id={id} mosaic={mosaic} open={open === id} onOpen={onOpen} />)}
      </div>
    </div>
  );
}
