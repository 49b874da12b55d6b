// The Workloads that wait in Kueue: Jobs that have no pods yet, and pods that Kueue holds.

import type { Workload } from "./documents";
import { Panel } from "./panel";
import { age, integer } from "./words";

/** By queue, in its order; Workloads without a place last, the oldest first. */
export function inQueue(left: Workload, right: Workload): number {
  const queue = (each: Workload) => `${each.namespace}/${each.queue ?? ""}`;
  const place = (each: Workload) => each.position || Number.POSITIVE_INFINITY;
  if (queue(left) !== queue(right)) return queue(left) < queue(right) ? -1 : 1;
  return place(left) === place(right) ? (left.since ?? 0) - (right.since ?? 0) : place(left) - place(right);
}

interface Props {
  workloads: Workload[];
  /** What is not shown, and why. */
  note: string | undefined;
  filtered: boolean;
}

export function KueueWorkloads({ workloads, note, filtered }: Props) {
  const draw = (most: number) =>
    workloads.slice(0, most).map((each) => <Held key={`${each.namespace}/${each.workload}`} workload={each} />);
  return (
    <Panel
      filtered={filtered}
      title="Waiting in Kueue"
      id="kueue"
      size={workloads.length}
      draw={draw}
      empty="Kueue holds none of the Workloads that you may list."
      first={4}
      note={note || "in the order of its queues"}
    />
  );
}

function Held({ workload }: { workload: Workload }) {
  const { namespace, owner, queue, since = 0, position = 0, of = 0, amongAll = 0, verdict } = workload;
  return (
    <li class="item">
      <div class="line">
        <b>
          {namespace}/{owner || workload.workload}
        </b>
        <span class="quiet">waits {age(Date.now() / 1000 - since)}</span>
      </div>
      {queue && (
        <div class="place">
          {position > 0 && (
            <b>
              number {integer(position)} of {integer(of)}
            </b>
          )}{" "}
          <span>in the queue {queue}</span>
          {amongAll > 0 && <span class="quiet">number {integer(amongAll)} among all queues that share its quota</span>}
        </div>
      )}
      {verdict && <p class="reason">{verdict}</p>}
    </li>
  );
}
