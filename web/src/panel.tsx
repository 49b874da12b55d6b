// A short list with its number; the rest of it on request.

import type { ComponentChild } from "preact";
import { useState } from "preact/hooks";

/** The most items that are drawn. */
const MOST = 200;

interface PanelProps {
  title: string;
  id: string;
  items: ComponentChild[];
  /** What an empty list means. */
  empty: string;
  /** The list holds only what the filter selects. */
  filtered: boolean;
  /** The number of items that are always shown. */
  first: number;
  note?: string;
}

export function Panel({ title, id, items, empty, filtered, first, note }: PanelProps) {
  const [all, setAll] = useState(false);
  const shown = items.slice(0, all ? MOST : first);
  return (
    <section id={id} class="panel" aria-label={title}>
      <h2>
        {title} <span class="number">{items.length}</span> {note && <small>{note}</small>}
      </h2>
      {items.length === 0 && <p class="quiet">{filtered ? "Nothing here has the words of the filter." : empty}</p>}
      <ul class="plain">{shown}</ul>
      {items.length > first && (
        <button type="button" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "show fewer" : `show all ${items.length}`}
        </button>
      )}
      {all && items.length > MOST && <p class="quiet">The first {MOST}; use the filter to find others.</p>}
    </section>
  );
}
