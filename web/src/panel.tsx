// A short list with its number; the rest of it on request. An empty one is folded into a line.

import type { ComponentChild, ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { integer } from "./words";

/** The most items that are drawn. */
const MOST = 200;

interface PanelProps {
  title: string;
  id: string;
  /** The number of items. */
  size: number;
  /** The number in the heading, if some items are not what it says. */
  number?: number;
  /** The number of entries, if one of them may stand for several items. */
  entries?: number;
  /** Draws the first so many entries. */
  draw: (most: number) => ComponentChild[];
  /** What an empty list means. */
  empty: string;
  /** The list holds only what the filter selects. */
  filtered: boolean;
  /** The number of items that are always shown. */
  first: number;
  note?: string | undefined;
  /** Sentences about the list as a whole. */
  remarks?: string[];
  /** What stands below the list. */
  children?: ComponentChildren;
}

export function Panel({
  title,
  id,
  size,
  draw,
  empty,
  filtered,
  first,
  note,
  remarks = [],
  children,
  entries = size,
  number = size,
}: PanelProps) {
  const [all, setAll] = useState(false);
  if (size === 0 && remarks.length === 0 && !children) {
    return (
      <section id={id} class="folded" aria-label={title}>
        <h2>{title}</h2> <span class="quiet">{filtered ? "nothing here has the words of the filter" : empty}</span>
      </section>
    );
  }
  return (
    <section id={id} class="panel" aria-label={title}>
      <h2>
        {title} <span class="number">{integer(number)}</span> {note && <small>{note}</small>}
      </h2>
      {size === 0 && <p class="quiet">{filtered ? "Nothing here has the words of the filter." : empty}</p>}
      {remarks.map((each) => (
        <p key={each} class="quiet">
          {each}
        </p>
      ))}
      <ul class="plain">{draw(all ? MOST : first)}</ul>
      {entries > first && (
        <button type="button" class="below" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "show fewer" : `show all ${integer(size)}`}
        </button>
      )}
      {all && entries > MOST && <p class="quiet">The first {MOST}; use the filter to find others.</p>}
      {children}
    </section>
  );
}
