// The events of a pod or a node, as `kubectl describe` shows them, asked for once.

import { useEffect, useState } from "preact/hooks";
import { askAbout } from "./answer";
import { age } from "./words";

interface PodEvent {
  type: string;
  reason: string;
  message: string;
  last: number;
  count: number;
}

type Found = PodEvent[] | { error: string } | null;

interface EventsProps {
  pod: { namespace: string; pod: string };
  /** The command that shows them in a terminal. */
  describe: string;
}

export function Events({ pod, describe }: EventsProps) {
  const [found, setFound] = useState<Found | undefined>();
  const { namespace, pod: name } = pod;
  useEffect(() => {
    void askAbout<PodEvent[] | null>("events", { namespace, pod: name }).then(setFound);
  }, [namespace, name]);
  // Null: this page reads no events for visitors without a token.
  if (found === undefined || found === null) return null;
  return (
    <section aria-label="Events">
      <h3>Events</h3>
      <Listed found={found} />
      <p class="quiet">
        In a terminal: <code>{describe}</code>
      </p>
    </section>
  );
}

function Listed({ found }: { found: PodEvent[] | { error: string } }) {
  if (!Array.isArray(found)) return <p class="warn">{found.error}</p>;
  if (found.length === 0) return <p class="quiet">No event of the last hour.</p>;
  return (
    <ul class="plain">
      {found.map((each, number) => (
        <li key={number} class="item">
          <b class={each.type === "Warning" ? "warn" : ""}>{each.reason}</b>{" "}
          <small>
            {each.last > 0 && `${age(Date.now() / 1000 - each.last)} ago`}
            {each.count > 1 && `, ${each.count} times`}
          </small>
          <div>{each.message}</div>
        </li>
      ))}
    </ul>
  );
}
