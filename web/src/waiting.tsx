// The pods that wait, and why.

import { useState } from "preact/hooks";
import { Answer, type Explanation, explain } from "./answer";
import type { Waiting } from "./documents";
import { PodLink } from "./links";
import { Panel } from "./panel";
import { store } from "./store";
import { age, count, integer, isHidden, reasonOf } from "./words";

/** Pods of one workload that wait for the same, each group by its first pod; any other pod is alone. */
export function alike(pods: Waiting[]): [Waiting, ...Waiting[]][] {
  const groups = new Map<string, [Waiting, ...Waiting[]]>();
  for (const pod of pods) {
    const { namespace, owner, requests, gated } = pod;
    const reason = reasonOf(pod);
    const key = JSON.stringify(owner ? [namespace, owner, requests, reason, gated] : [namespace, pod.pod]);
    const group = groups.get(key);
    if (group) group.push(pod);
    else groups.set(key, [pod]);
  }
  return [...groups.values()];
}

/** What an expected start rests on. */
const BASES: Record<string, string> = {
  deadline: "by the deadlines of the pods before it",
  history: "from how long such pods ran before",
  waits: "from how long such pods ran and waited before",
  rate: "from the starts of pods that had waited, in the last hour",
};

/** In the order of the queue, pods without a place last, the oldest first. */
export function inOrder(left: Waiting, right: Waiting): number {
  const place = (pod: Waiting) => pod.position || Number.POSITIVE_INFINITY;
  return place(left) === place(right) ? left.since - right.since : place(left) - place(right);
}

/** "starts in 4 m to 9 m"; the range that holds the first time and the last. */
export function startsIn(pod: Waiting): string {
  if (pod.p50 === undefined) return `start not known: ${count(pod.starts ?? 0, "such pod")} started in the last hour`;
  const now = Date.now() / 1000;
  const first = age(pod.p50 - now);
  const last = pod.p90 === undefined ? undefined : age(pod.p90 - now);
  if (last === undefined) return `starts in more than ${first}`;
  return first === last ? `starts in about ${first}` : `starts in ${first} to ${last}`;
}

export function Place({ pod }: { pod: Waiting }) {
  const basis = pod.p50 === undefined ? undefined : BASES[pod.basis ?? ""];
  return (
    <div class="place">
      <b>
        number {integer(pod.position ?? 0)} of {integer(pod.of ?? 0)}
      </b>{" "}
      <span>{startsIn(pod)}</span>
      {basis && <span class="quiet">{basis}</span>}
    </div>
  );
}

/** Says that the controller does not tell its queue. */
function unqueued(): string[] {
  const { unqueued, unqueuedDetail } = store.summary ?? {};
  const why = unqueuedDetail ? `: ${unqueuedDetail}` : "";
  return unqueued
    ? [`Places and expected starts are not known, since the controller's queue cannot be read${why}.`]
    : [];
}

interface WaitingProps {
  pods: Waiting[];
  filtered: boolean;
  onOpen: (id: string) => void;
}

export function WaitingPods({ pods, filtered, onOpen }: WaitingProps) {
  const groups = alike(pods);
  const draw = (most: number) =>
    groups
      .slice(0, most)
      .map(([pod, ...others]) => (
        <WaitingPod key={`${pod.namespace}/${pod.pod}`} pod={pod} others={others.length} onOpen={onOpen} />
      ));
  return (
    <Panel
      filtered={filtered}
      title="Waiting"
      id="waiting"
      size={pods.length}
      entries={groups.length}
      draw={draw}
      empty="No pod waits for cards."
      first={4}
      remarks={unqueued()}
      note={pods.some((pod) => pod.position) ? "in the order of the queue" : "oldest first"}
    />
  );
}

interface WaitingPodProps {
  pod: Waiting;
  others: number;
  onOpen: (id: string) => void;
}

function WaitingPod({ pod, others, onOpen }: WaitingPodProps) {
  const [answer, setAnswer] = useState<Explanation | "asked" | undefined>();
  const ask = async (): Promise<void> => {
    if (answer !== undefined) return setAnswer(undefined);
    setAnswer("asked");
    setAnswer(await explain(pod));
  };
  const hidden = isHidden(pod.pod);
  return (
    <li class="item">
      <div class="line">
        <PodLink pod={pod} onOpen={onOpen} />
        <span class="quiet">waits {age(Date.now() / 1000 - pod.since)}</span>
      </div>
      {others > 0 && (
        <div>
          and {integer(others)} more of {pod.owner}
        </div>
      )}
      <div>
        {others > 0 ? "each asks" : "asks"} for {pod.requests || "slices"}
      </div>
      {pod.position ? <Place pod={pod} /> : null}
      {reasonOf(pod) && <p class="reason">{reasonOf(pod)}</p>}
      {!hidden && (
        <button type="button" aria-expanded={answer !== undefined} onClick={() => void ask()}>
          why, and what would help
        </button>
      )}
      {answer === "asked" && <p class="quiet">asking…</p>}
      {answer !== undefined && answer !== "asked" && <Answer answer={answer} />}
    </li>
  );
}
