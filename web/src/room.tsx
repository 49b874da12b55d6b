// What fits now, and where.

import { store } from "./store";
import type { Survey } from "./survey";
import type { View } from "./view";
import { count, integer, roomName } from "./words";

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
  return (
    <section id="room" class="room" aria-label="Free room">
      <h2>
        Free room <small>what fits now, one kind at a time; select one to see its cards</small>
      </h2>
      <p>
        {found.room.map(([name, number]) => (
          <button
            type="button"
            key={name}
            disabled={number === 0}
            aria-pressed={view.room === name}
            onClick={() => change({ room: view.room === name ? "" : name })}
          >
            <b>{integer(number)}</b> {roomName(name, number)}
          </button>
        ))}
      </p>
      <Limits found={found} />
      {view.room && <Places found={found} room={view.room} onOpen={onOpen} />}
    </section>
  );
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
  return reasons.length > 0 ? <small>{reasons.join(" ")}</small> : null;
}

/** What pods ask for, by the name of room: `mig-3g.20gb` for `3g.20gb`. */
function resourceOf(room: string): string {
  if (room === "gpu") return "gpu";
  return room === "share" ? "gpu.shared" : `mig-${room.replace("+me", ".me")}`;
}

/** The cards with room, in words. */
function Places({ found, room, onOpen }: { found: Survey; room: string; onOpen: (id: string) => void }) {
  const ids = found.groups.flatMap((group) => group.ids);
  if (ids.length === 0) return <p role="status">No card that is shown has room for {roomName(room)}.</p>;
  return (
    <p role="status">
      {count(ids.length, "card")} {ids.length === 1 ? "has" : "have"} room for {roomName(room)}:{" "}
      {ids.slice(0, NAMED).map((id, number) => {
        const card = store.cards.get(id);
        return (
          <span key={id}>
            {number > 0 && ", "}
            <button type="button" class="link" onClick={() => onOpen(id)}>
              {card?.node}, card {card?.index}
            </button>
            {(card?.free?.[room] ?? 0) > 1 && ` (${card?.free?.[room]} times)`}
          </span>
        );
      })}
      {ids.length > NAMED && (
        <button type="button" class="link" onClick={showCards}>{` and ${integer(ids.length - NAMED)} more`}</button>
      )}
    </p>
  );
}

function showCards(): void {
  document.getElementById("cards")?.scrollIntoView();
}
