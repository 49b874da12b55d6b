// Where is my pod, and why does it wait: the first thing on the page, for those who marked a namespace, who see the
// names of their own pods alone, or who typed a name.

import type { Waiting } from "./documents";
import { PodLink } from "./links";
import { own } from "./own";
import { State } from "./pods";
import type { Held, Survey } from "./survey";
import { alike, placeOf, startsIn } from "./waiting";
import { age, integer, percent, reasonOf } from "./words";

/** The most pods that are named. */
const MOST = 6;

interface MineProps {
  found: Survey;
  waiting: Waiting[];
  /** True if the visitor's words choose the pods. */
  filtered: boolean;
  onOpen: (id: string) => void;
}

export function Mine({ found, waiting, filtered, onOpen }: MineProps) {
  const held = filtered ? found.held : found.held.filter(({ lease }) => own.has(lease));
  const queued = filtered ? waiting : waiting.filter((pod) => own.has(pod));
  if (held.length + queued.length === 0) return null;
  const groups = alike(queued);
  const rest = Math.max(0, MOST - groups.length);
  const more = Math.max(0, groups.length - MOST) + Math.max(0, held.length - rest);
  return (
    <section id="mine" class="panel mine" aria-label={filtered ? "Pods that match" : "Your pods"}>
      <h2>
        {filtered ? "Pods that match" : "Your pods"}{" "}
        <small>
          {[
            queued.length > 0 && `${integer(queued.length)} waiting`,
            held.length > 0 && `${integer(held.length)} running`,
          ]
            .filter(Boolean)
            .join(", ")}
        </small>
      </h2>
      <ul class="plain">
        {groups.slice(0, MOST).map(([pod, ...others]) => (
          <WaitingLine key={`w/${pod.namespace}/${pod.pod}`} {...{ pod, others, onOpen }} />
        ))}
        {held.slice(0, rest).map((each) => (
          <HeldLine
            key={`${each.id}/${each.lease.namespace}/${each.lease.pod}/${each.lease.container}`}
            {...each}
            {...{ onOpen }}
          />
        ))}
      </ul>
      {more > 0 && <p class="quiet">and {integer(more)} more below</p>}
    </section>
  );
}

interface WaitingProps {
  pod: Waiting;
  /** Pods of the same workload that wait for the same. */
  others: Waiting[];
  onOpen: (id: string) => void;
}

function WaitingLine({ pod, others, onOpen }: WaitingProps) {
  return (
    <li class="item">
      <PodLink pod={pod} onOpen={onOpen} /> {others.length > 0 && `and ${integer(others.length)} more of ${pod.owner} `}
      <b>waits {age(Date.now() / 1000 - pod.since)}</b>
      {pod.position ? `, ${placeOf([pod, ...others])}, ${startsIn(pod)}` : ""}
      {reasonOf(pod) && <div class="reason">{reasonOf(pod)}</div>}
    </li>
  );
}

function HeldLine({ id, card, profile, lease, onOpen }: Held & { onOpen: (id: string) => void }) {
  return (
    <li class="item">
      <PodLink pod={lease} onOpen={onOpen} /> <State lease={lease} card={card} />
      {lease.busy !== undefined && `, ${percent(lease.busy)} now`}, on{" "}
      <button type="button" class="link" onClick={() => onOpen(id)}>
        {card.node}, card {card.index}
      </button>{" "}
      <small>{profile || (lease.share < 1 ? `${percent(lease.share)} of it` : "whole")}</small>
      {lease.fault && <div class="warn">{lease.fault}</div>}
    </li>
  );
}
