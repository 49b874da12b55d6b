// What fits now, and where.

import type { Waiting } from "./documents";
import { store } from "./store";
import type { Survey } from "./survey";
import type { View } from "./view";
import { inOrder, startsIn } from "./waiting";
import { count, HEALTH, integer, roomName } from "./words";

/** The most cards that are named. */
const NAMED = 6;

interface RoomProps {
  found: Survey;
  view: View;
  change: (part: Partial<View>) => void;
  onOpen: (id: string) => void;
}

export function Room({ found, view, change, onOpen }: RoomProps) {
  if (found.room.length === 0) return null;
  const waiting = byRequest();
  const ofAll = view.text || view.state ? " of the whole cluster" : "";
  return (
    <section id="room" class="room" aria-label="Free room">
      <h2>
        Free room{" "}
        <small>what fits now{ofAll}, one kind at a time; select one to see its cards, or why there is none</small>
      </h2>
      <p>
        {found.room.map(([name, number]) => (
          <button
            type="button"
            key={name}
            class={number === 0 ? "none" : ""}
            aria-pressed={view.room === name}
            onClick={() => change({ room: view.room === name ? "" : name })}
          >
            <b>{integer(number)}</b> {roomName(name, number)}
            {note(number, waiting.get(resourceOf(name)) ?? [])}
          </button>
        ))}
      </p>
      <Limits found={found} />
      {view.room && <Places found={found} room={view.room} waiting={waiting} onOpen={onOpen} />}
    </section>
  );
}

/** The pods that wait for a device, by its resource. */
function byRequest(): Map<string, Waiting[]> {
  const found = new Map<string, Waiting[]>();
  for (const pod of store.waiting.values()) {
    for (const each of pod.requests.split(", ")) {
      const name = each.slice(each.indexOf(" x ") + 3);
      const pods = found.get(name);
      if (pods) pods.push(pod);
      else found.set(name, [pod]);
    }
  }
  return found;
}

/** Who waits for a kind of room, and whether what is free of it is for pods that go first, as one device is too much. */
function note(number: number, waiting: Waiting[]) {
  if (number > 0 && isBarred(waiting)) return <small> reserved</small>;
  return waiting.length > 0 ? <small> {integer(waiting.length)} waiting</small> : null;
}

function isBarred(waiting: Waiting[]): boolean {
  return waiting.some(({ case: reason, requests }) => reason === "reserved" && isOne(requests));
}

/** The names of room of which what is free is for pods that go first. */
export function barredRooms(names: string[]): Set<string> {
  const waiting = byRequest();
  return new Set(names.filter((name) => isBarred(waiting.get(resourceOf(name)) ?? [])));
}

/** True for a request for one device alone. */
function isOne(requests: string): boolean {
  return requests.startsWith("1 x ") && !requests.includes(", ");
}

/** Why a pod may wait although there is room: what is not counted, and which part is not for every pod. */
function Limits({ found: { blocked, closed, room } }: { found: Survey }) {
  const cases = [...store.waiting.values()].map((pod) => pod.case);
  const barred = cases.filter((each) => each === "reserved").length;
  const placing = cases.filter((each) => each === "placing").length;
  const free = new Set(room.filter(([, number]) => number > 0).map(([name]) => `1 x ${resourceOf(name)}`));
  const full = [...store.waiting.values()].filter((pod) => pod.case === "full" && free.has(pod.requests)).length;
  const starting = store.summary?.starting ?? 0;
  const reasons = [
    closed > 0 && `Not counted: ${count(closed, "card")} on nodes that take no new pods (cordoned, or not ready).`,
    blocked > 0 &&
      `Not counted: ${count(blocked, "free device")} that kube-scheduler leaves empty, since it counts pods on withheld cards against the other cards; delete those pods.`,
    barred > 0 && `Reserved for pods that go first: what ${count(barred, "waiting pod")} would use.`,
    placing > 0 && `${count(placing, "waiting pod")} will get a part of it now.`,
    starting > 0 && `${count(starting, "pod")} will take a part of it: they have their place, and start now.`,
    full > 0 &&
      `${count(full, "waiting pod")} found none of it: it became free just now, or their nodes are others (choose "why").`,
  ].filter((each) => each !== false);
  // Its line is there before its words, so that nothing below moves when they come.
  return <p class="quiet limits">{reasons.join(" ")}</p>;
}

/** What pods ask for, by the name of room: `mig-3g.20gb` for `3g.20gb`. */
function resourceOf(room: string): string {
  if (room === "gpu") return "gpu";
  return room === "share" ? "gpu.shared" : `mig-${room.replace("+me", ".me")}`;
}

interface PlacesProps {
  found: Survey;
  room: string;
  waiting: Map<string, Waiting[]>;
  onOpen: (id: string) => void;
}

/** "8 pods wait for it; the first starts in 4 m to 9 m." */
function queueFor(waiting: Waiting[]): string {
  const [first, ...others] = waiting.sort(inOrder);
  if (first === undefined) return "";
  const who = others.length > 0 ? `${count(waiting.length, "pod")} wait for it` : "1 pod waits for it";
  if (!first.position) return ` ${who}.`;
  return ` ${who}; ${others.length > 0 && first.p50 !== undefined ? "the first " : ""}${startsIn(first)}.`;
}

/** The cards with room, in words; or why there is none. */
function Places({ found, room, waiting, onOpen }: PlacesProps) {
  const ids = found.groups.flatMap((group) => group.ids);
  const waits = waiting.get(resourceOf(room)) ?? [];
  const [queue, isReserved] = [queueFor(waits), waits.some((pod) => pod.case === "reserved")];
  if (ids.length === 0) {
    return (
      <p role="status">
        No card that is shown has room for {roomName(room)}.{queue}
      </p>
    );
  }
  if (ids.every((id) => !store.cards.get(id)?.free?.[room])) {
    const nodes = found.groups.map(({ node }) => node);
    const named = nodes.length > NAMED ? count(nodes.length, "node") : nodes.join(", ");
    return (
      <p role="status">
        No card has room for {roomName(room)} now; {count(ids.length, "card")} on {named} can give it once others end.
        {queue}
      </p>
    );
  }
  return (
    <p role="status">
      {count(ids.length, "card")} {ids.length === 1 ? "has" : "have"} room for {roomName(room)}
      {isReserved && ", reserved for pods that go first"}:{" "}
      {ids.slice(0, NAMED).map((id, number) => {
        const card = store.cards.get(id);
        return (
          <span key={id}>
            {number > 0 && ", "}
            <button type="button" class="link" onClick={() => onOpen(id)}>
              {card?.node}, card {card?.index}
            </button>
            {(card?.free?.[room] ?? 0) > 1 && ` (${card?.free?.[room]} times)`}
            {card?.health && <span class="warn"> {HEALTH[card.health.state] ?? card.health.state}</span>}
            {!card?.health && (card?.throttled ?? []).length > 0 && <span class="warn"> slowed down</span>}
          </span>
        );
      })}
      {ids.length > NAMED && (
        <button type="button" class="link" onClick={showCards}>{` and ${integer(ids.length - NAMED)} more`}</button>
      )}
      {queue && `.${queue}`}
    </p>
  );
}

function showCards(): void {
  document.getElementById("cards")?.scrollIntoView();
}
