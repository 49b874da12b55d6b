// The Workloads that wait in Kueue: Jobs that have no pods yet, and pods that Kueue holds.

import type { Kueue, Unshown, Workload } from "./documents";
import { Panel } from "./panel";
import { age, count, integer } from "./words";

/** By queue, in its order; Workloads without a place last, the oldest first. */
export function inQueue(left: Workload, right: Workload): number {
  const queue = (each: Workload) => `${each.namespace}/${each.queue ?? ""}`;
  const place = (each: Workload) => each.position || Number.POSITIVE_INFINITY;
  if (queue(left) !== queue(right)) return queue(left) < queue(right) ? -1 : 1;
  return place(left) === place(right) ? (left.since ?? 0) - (right.since ?? 0) : place(left) - place(right);
}

interface Props {
  kueue: Kueue;
  workloads: Workload[];
  unshown: Unshown[];
  filtered: boolean;
}

export function KueueWorkloads({ kueue, workloads, unshown, filtered }: Props) {
  const draw = (most: number) =>
    workloads.slice(0, most).map((each) => <Held key={`${each.namespace}/${each.workload}`} workload={each} />);
  const notes = [...gaps(kueue, workloads.length > 0), ...further(unshown)];
  return (
    <Panel
      filtered={filtered}
      title="Waiting in Kueue"
      id="kueue"
      size={workloads.length}
      draw={draw}
      empty={
        notes.length > 0
          ? "No Workload that you may list is shown here."
          : "Kueue holds no Workload that you may list, as far as this page knows."
      }
      first={4}
      note="in the order of its queues"
      remarks={notes}
    />
  );
}

/** What is not known, and why. */
function gaps({ notes = [], detail, read = 0 }: Kueue, shows: boolean): string[] {
  const last = notes.length - 1;
  const sentences = notes.map((note, at) => {
    const text = note.charAt(0).toUpperCase() + note.slice(1);
    return detail && at === last ? `${text}: ${detail}` : `${text}.`;
  });
  return read > 0 && shows ? [...sentences, `This is what waited ${age(Date.now() / 1000 - read)} ago.`] : sentences;
}

/** How many more wait than are shown. */
function further(unshown: Unshown[]): string[] {
  const [first] = unshown;
  if (!first) return [];
  const sum = unshown.reduce((total, each) => total + each.workloads, 0);
  const only = unshown.length === 1;
  const where = only ? `namespace ${first.namespace}` : `${integer(unshown.length)} namespaces`;
  const command = `tessera queue -n ${only ? first.namespace : "NAMESPACE"}`;
  return [`${count(sum, "more Workload")} in ${where} ${sum === 1 ? "waits" : "wait"}; see: ${command}`];
}

function Held({ workload }: { workload: Workload }) {
  const { namespace, owner, queue, since = 0, position = 0, of = 0, ofMore, amongAll = 0, verdict } = workload;
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
              number {integer(position)} of {ofMore && "at least "}
              {integer(of)}
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
