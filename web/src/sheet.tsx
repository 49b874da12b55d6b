// Everything about one card, beside the page: it can be opened from any list and by an address.

import { useEffect, useRef } from "preact/hooks";
import { Chart } from "./curve";
import type { Card, Lease } from "./documents";
import { HealthDetails } from "./health";
import { NodeLink, nodeOf, PodLink, podOf } from "./links";
import { WideBar } from "./mosaic";
import { NodeDetails } from "./nodesheet";
import { lastOf, PastOfRange, Ranges } from "./past";
import { Memory, State } from "./pods";
import { PodDetails } from "./podsheet";
import { barredRooms } from "./room";
import { leasesOf, store } from "./store";
import {
  ABSENCES,
  age,
  byName,
  celsius,
  count,
  gibOf,
  isHidden,
  kindName,
  modelName,
  percent,
  podName,
  roomName,
  watts,
} from "./words";

interface SheetProps {
  id: string;
  onOpen: (id: string) => void;
  onFilter: (text: string) => void;
  onClose: () => void;
  ranges: string[];
  range: string;
  onRange: (range: string) => void;
}

export function Sheet({ id, onOpen, onFilter, onClose, ...past }: SheetProps) {
  const heading = useRef<HTMLHeadingElement>(null);
  const pod = podOf(id);
  const node = nodeOf(id);
  const known = store.cards.has(id);
  // A link is opened before its card has come.
  useEffect(() => heading.current?.focus(), [id, known]);
  const card = store.cards.get(id);
  if (store.summary === undefined) return null;
  return (
    <aside class="sheet" aria-label={pod ? "Pod" : node ? "Node" : "Card"}>
      <div class="line">
        <h2 ref={heading} tabIndex={-1}>
          {node ?? (pod ? podName(pod) : card ? `${card.node}, card ${card.index}` : "No such card")}
        </h2>
        <button type="button" onClick={onClose}>
          close
        </button>
      </div>
      {pod && <PodDetails id={id} onOpen={onOpen} />}
      {node && <NodeDetails {...{ id, onOpen, onFilter }} />}
      {card && <Details {...{ id, onOpen }} {...past} />}
      {!pod && !node && !card && <p>{id} is not here, or you may not see its name.</p>}
    </aside>
  );
}

type DetailsProps = Pick<SheetProps, "id" | "onOpen" | "ranges" | "range" | "onRange">;

function Details({ id, onOpen, range, ...more }: DetailsProps) {
  const card = store.cards.get(id);
  if (!card) return null;
  const leases = leasesOf(card);
  const free = Object.entries(card.free ?? {})
    .filter(([, number]) => number > 0)
    .sort(([left], [right]) => byName(left, right));
  const barred = barredRooms(free.map(([name]) => name));
  const roomOf = ([name, number]: [string, number]): string =>
    `${number} x ${roomName(name)}${barred.has(name) ? ", reserved for pods that go first" : ""}`;
  return (
    <>
      <p>
        {modelName(card.model)}, {kindName(card)}
        <br />
        <small>{card.uuid}</small>
      </p>
      <p>
        Of node <NodeLink node={card.node} onOpen={onOpen} />: its reason, its events and its other cards.
      </p>
      {card.silent && <p class="warn">The node's agent does not answer: what is shown are Tessera's records.</p>}
      {card.health && <HealthDetails health={card.health} card={card} />}
      {(card.throttled ?? []).length > 0 && (
        <p class="warn">Slowed down: {(card.throttled ?? []).join(", ").replaceAll("_", " ")}.</p>
      )}
      <WideBar card={card} />
      <dl class="figures">
        <Value name="busy">
          {percent(card.busy)} <small>{ABSENCES[card.busyAbsent ?? ""]}</small>
        </Value>
        <Value name="memory">{gibOf(card.memory, card.memoryTotal)}</Value>
        <Value name="power">
          {watts(card.power)}
          {card.powerLimit !== undefined && <small class="unit"> of {watts(card.powerLimit)}</small>}
        </Value>
        <Value name="heat">{celsius(card.temperature)}</Value>
      </dl>
      <h3>Room</h3>
      {card.closed && <p>Its node takes no new pods: it is cordoned, or not ready.</p>}
      {(card.blocked ?? 0) > 0 && (
        <p>
          Free, and kube-scheduler leaves it empty, since it counts pods on withheld cards of this node against the
          other cards. Delete those pods.
        </p>
      )}
      <p>{free.length > 0 ? free.map(roomOf).join(", or ") : "None."}</p>
      <h3>Held by {leases.length === 0 ? "no pod" : count(new Set(leases.map(podName)).size, "pod")}</h3>
      <ul class="plain">
        {leases.map((lease) => (
          <LeaseItem key={`${lease.namespace}/${lease.pod}/${lease.container}`} {...{ lease, card, onOpen }} />
        ))}
      </ul>
      <CardPast {...{ id, card, range }} {...more} />
    </>
  );
}

function CardPast({ id, card, ranges, range, onRange }: { card: Card } & Omit<DetailsProps, "onOpen">) {
  const curves = store.curves.get(id);
  const lost = card.health?.state === "lost";
  const axis = curves && { step: curves.step, until: curves.until, lost, most: 1, text: percent };
  // Only who may see the card's name may see its past.
  const offered = isHidden(card.uuid) ? [] : ranges;
  const chosen = offered.includes(range) ? range : "";
  const seen = curves && axis && curves.held.length > 1;
  if (!seen && offered.length === 0) return null;
  return (
    <>
      <h3>{lastOf(chosen, curves)}</h3>
      <Ranges ranges={offered} range={chosen} onRange={onRange} />
      {chosen !== "" && <PastOfRange range={chosen} subject={`/card/${encodeURIComponent(card.uuid)}`} />}
      {chosen === "" && !seen && <p class="quiet">This page has not seen this card long enough for a curve.</p>}
      {chosen === "" && seen && (
        <div class="charts">
          <Chart label="busy" values={curves.busy} {...axis} />
          <Chart label="memory" values={curves.memory} {...axis} />
          <Chart label="held" values={curves.held} {...axis} />
        </div>
      )}
    </>
  );
}

function Value({ name, children }: { name: string; children: preact.ComponentChildren }) {
  return (
    <div class="figure">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface LeaseItemProps {
  lease: Lease;
  card: Card;
  onOpen: (id: string) => void;
}

function LeaseItem({ lease, card, onOpen }: LeaseItemProps) {
  return (
    <li class="item">
      <div class="line">
        <PodLink pod={lease} onOpen={onOpen} />
        <State lease={lease} card={card} />
      </div>
      <div class="facts">
        <span>busy {percent(lease.busy)}</span>
        <span>
          memory <Memory lease={lease} />
        </span>
        <span>{percent(lease.share)} of the card</span>
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
