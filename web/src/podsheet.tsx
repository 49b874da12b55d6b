// Everything about one pod, beside the page: where it runs or why it waits, who is before it, and its events.

import { Why } from "./answer";
import type { Waiting } from "./documents";
import { Events } from "./events";
import { PodLink, podOf } from "./links";
import { Memory, State } from "./pods";
import { idOf, leasesOf, store } from "./store";
import type { Held } from "./survey";
import { Place } from "./waiting";
import { age, integer, percent, podName } from "./words";

/** The most pods of the queue that are named. */
const NAMED = 5;

interface PodSheetProps {
  id: string;
  onOpen: (id: string) => void;
}

/** What a pod holds; one pass over all cards, for the one pod whose sheet is open. */
function heldBy({ namespace, pod }: { namespace: string; pod: string }): Held[] {
  const found: Held[] = [];
  for (const card of store.cards.values()) {
    for (const lease of leasesOf(card)) {
      if (lease.namespace !== namespace || lease.pod !== pod) continue;
      const tile = (card.tiles ?? []).find((each) => each.leases?.includes(lease));
      found.push({ id: idOf(card), card, profile: tile?.profile ?? "", lease });
    }
  }
  return found;
}

export function PodDetails({ id, onOpen }: PodSheetProps) {
  const pod = podOf(id);
  if (!pod) return null;
  const held = heldBy(pod);
  const waiting = store.waiting.get(`waiting/${pod.namespace}/${pod.pod}`);
  const joined = held.find((each) => each.lease.joined)?.lease.joined;
  return (
    <>
      {held.length + (waiting ? 1 : 0) === 0 && <p>It holds no card and waits for none, as far as this page knows.</p>}
      {waiting && <Queue pod={waiting} onOpen={onOpen} />}
      <ul class="plain">
        {held.map((each) => (
          <HeldItem key={`${each.id}/${each.lease.container}`} {...each} onOpen={onOpen} />
        ))}
      </ul>
      {joined && <p class="sentence">{joined}.</p>}
      <h3>{waiting ? "Why it waits, and what would help" : "What Tessera says of it"}</h3>
      <Why key={id} pod={pod} />
      <Events pod={pod} describe={`kubectl describe pod ${pod.pod} -n ${pod.namespace}`} />
    </>
  );
}

function HeldItem({ id, card, profile, lease, onOpen }: Held & { onOpen: (id: string) => void }) {
  return (
    <li class="item">
      <div class="line">
        <span>
          on{" "}
          <button type="button" class="link" onClick={() => onOpen(id)}>
            {card.node}, card {card.index}
          </button>{" "}
          <small>{profile || (lease.share < 1 ? `${percent(lease.share)} of it` : "the whole card")}</small>
        </span>
        <State lease={lease} card={card} />
      </div>
      <div class="facts">
        <span>busy {percent(lease.busy)}</span>
        <span>
          memory <Memory lease={lease} />
        </span>
        <span>held {age(lease.held)}</span>
        {lease.container && <span>container {lease.container}</span>}
        {lease.owner && <span>{lease.owner}</span>}
      </div>
      {lease.fault && <div class="warn">{lease.fault}</div>}
      {lease.evidence && <div class="quiet">{lease.evidence}</div>}
      {(lease.findings ?? []).map((each) => (
        <div key={each}>{each}</div>
      ))}
    </li>
  );
}

/** The pod's place, and those that are before it. */
function Queue({ pod, onOpen }: { pod: Waiting; onOpen: (id: string) => void }) {
  const { position = 0 } = pod;
  // Pods that wait for other room have an order of their own, mostly of another number of pods. Two orders of one number
  // have each place twice: then nobody is named, as it is not known which of the two is before this pod.
  const places = new Map<number, Waiting>();
  const same = [...store.waiting.values()].filter(
    (each) => each.of === pod.of && (each.position || position) < position,
  );
  for (const each of same) places.set(each.position ?? 0, each);
  const before =
    places.size === same.length ? same.sort((left, right) => (left.position ?? 0) - (right.position ?? 0)) : [];
  return (
    <>
      <p>
        <b>waits {age(Date.now() / 1000 - pod.since)}</b> for {pod.requests || "slices"}
        {pod.owner && `, of ${pod.owner}`}
      </p>
      {position > 0 && <Place pods={[pod]} />}
      {before.length > 0 && (
        <p>
          Before it in the queue:{" "}
          {before.slice(-NAMED).map((each, number) => (
            <span key={podName(each)}>
              {number > 0 && ", "}
              <PodLink pod={each} onOpen={onOpen} />
            </span>
          ))}
          {before.length > NAMED && `, and ${integer(before.length - NAMED)} more`}
        </p>
      )}
    </>
  );
}
