// The pods that wait, and why.

import { useEffect, useRef, useState } from "preact/hooks";
import { Answer, type Explanation, explain } from "./answer";
import type { Waiting } from "./documents";
import { useNarrow } from "./hooks";
import { PodLink } from "./links";
import { Panel } from "./panel";
import { store } from "./store";
import { age, clock, count, integer, isHidden, reasonOf, until } from "./words";

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

/**
 * The soonest start first, then by their places, the oldest first. Places alone give no order: pods that wait for
 * other room have places of their own.
 */
export function inOrder(left: Waiting, right: Waiting): number {
  const later = (a: number | undefined, b: number | undefined): number => {
    const [first, second] = [a || Number.MAX_VALUE, b || Number.MAX_VALUE];
    return first - second;
  };
  return later(left.p50, right.p50) || later(left.position, right.position) || left.since - right.since;
}

/** "starts in 4 m to 9 m"; the range that holds the first time and the last. */
export function startsIn(pod: Waiting): string {
  if (pod.p50 === undefined) return `start not known: ${count(pod.starts ?? 0, "such pod")} started in the last hour`;
  const now = Date.now() / 1000;
  const first = until(pod.p50 - now);
  if (pod.p90 === undefined) return pod.p50 < now + 60 ? "starts in 1 m or more" : `starts in more than ${first}`;
  if (pod.p90 < now) return `was expected by ${clock(pod.p90)}`;
  const last = until(pod.p90 - now);
  if (pod.p50 < now + 60) return first === last ? "starts in under 1 m" : `starts in under ${last}`;
  return first === last ? `starts in about ${first}` : `starts in ${first} to ${last}`;
}

/**
 * "number 2 of 5 for its room"; of several pods "numbers 2 to 4 of 5". Where not all pods before the first of them
 * wait for the same cards, "number 4 of 5 (1 of the 3 before it waits for cards that it may use)".
 */
export function placeOf(pods: [Waiting, ...Waiting[]]): string {
  const placed = pods.filter(({ position = 0 }) => position > 0);
  const places = placed.map(({ position = 0 }) => position);
  const [first, last] = [Math.min(...places), Math.max(...places)];
  const { of = 0, ahead = 0 } = placed.find(({ position }) => position === first) ?? pods[0];
  const row = last - first < places.length;
  const numbers =
    places.length < 2 ? `number ${integer(first)}` : `numbers ${integer(first)} ${row ? "to" : "…"} ${integer(last)}`;
  if (ahead >= first - 1) return `${numbers} of ${integer(of)} for ${pods.length > 1 ? "that" : "its"} room`;
  const who = places.length < 2 ? "it" : "the first";
  const rivals = `${ahead > 0 ? integer(ahead) : "none"} of the ${integer(first - 1)} before ${who}`;
  return `${numbers} of ${integer(of)} (${rivals} ${ahead > 1 ? "wait" : "waits"} for cards that it may use)`;
}

export function Place({ pods }: { pods: [Waiting, ...Waiting[]] }) {
  const [pod] = pods;
  const basis = pod.p50 === undefined ? undefined : BASES[pod.basis ?? ""];
  const times = pod.p50 && `${clock(pod.p50)}${pod.p90 ? ` to ${clock(pod.p90)}` : ""}`;
  return (
    <div class="place">
      <b>{placeOf(pods)}</b>{" "}
      <span title={times || undefined}>
        {pods.length > 1 && pod.p50 !== undefined && "the first "}
        {startsIn(pod)}
      </span>
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
  const narrow = useNarrow();
  const draw = (most: number) =>
    groups
      .slice(0, most)
      .map(([pod, ...others]) => <WaitingPod key={`${pod.namespace}/${pod.pod}`} {...{ pod, others, onOpen }} />);
  return (
    <Panel
      filtered={filtered}
      title="Waiting"
      id="waiting"
      size={pods.length}
      entries={groups.length}
      draw={draw}
      empty="No pod waits for cards."
      first={narrow ? 2 : 4}
      remarks={unqueued()}
      note={pods.some((pod) => pod.p50) ? "soonest start first" : "oldest first"}
    />
  );
}

interface WaitingPodProps {
  pod: Waiting;
  /** Pods of the same workload that wait for the same. */
  others: Waiting[];
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
  const place = useRef<HTMLDivElement>(null);
  // The answer opens below its button, which may be the last thing in the window.
  useEffect(() => {
    if (answer !== undefined) place.current?.scrollIntoView({ block: "nearest" });
  }, [answer]);
  return (
    <li class="item">
      <div class="line">
        <PodLink pod={pod} onOpen={onOpen} />
        <span class="quiet">waits {age(Date.now() / 1000 - pod.since)}</span>
      </div>
      {others.length > 0 && (
        <div>
          and {integer(others.length)} more of {pod.owner}
        </div>
      )}
      <div>
        {others.length > 0 ? "each asks" : "asks"} for {pod.requests || "slices"}
      </div>
      {pod.position ? <Place pods={[pod, ...others]} /> : null}
      {reasonOf(pod) && <p class="reason">{reasonOf(pod)}</p>}
      {!hidden && (
        <button type="button" aria-expanded={answer !== undefined} onClick={() => void ask()}>
          why, and what would help
        </button>
      )}
      <div ref={place}>
        {answer === "asked" && <p class="quiet">asking…</p>}
        {answer !== undefined && answer !== "asked" && <Answer answer={answer} />}
      </div>
    </li>
  );
}
