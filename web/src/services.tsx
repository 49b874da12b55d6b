// The services: owners whose pods hold or want cards, each with what is known of its pods, load, room and cards.

import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Service, ServiceUpdate } from "./documents";
import { useNear } from "./hooks";
import { NodeLink, PodLink } from "./links";
import { store } from "./store";
import { largest } from "./survey";
import { age, count, decimal, integer, known, percent, until, watts } from "./words";

/** The number of services that are shown at once. */
const PAGE = 50;
const LAZY = 20;
/** The most further pods that are counted. */
const COUNTED = 64;

/** Pods with findings, those that no agent reports, and one for an update that waits for a person. */
function troubles({ findings = [], unknown = 0, update }: Service): number {
  return findings.reduce((sum, { pods }) => sum + pods, unknown + (update?.stuck ? 1 : 0));
}

const ORDERS: Record<string, (service: Service) => number> = {
  findings: troubles,
  requests: (service) => service.requests ?? -1,
  waiting: (service) => service.waiting ?? -1,
  power: (service) => service.power ?? -1,
  energy: (service) => service.joules ?? -1,
};

/** "in 4 m"; a dash if no pod waits for a place. */
function nextStart({ starts = 0, start }: Service): string {
  if (starts === 0) return "—";
  return start === undefined ? "not known" : `in ${until(start - Date.now() / 1000)}`;
}

/** Joules for 1,000 requests. */
function energy(joules: number): string {
  return joules < 10_000 ? `${integer(joules)} J` : `${decimal(joules / 1000)} kJ`;
}

/** The text as a sentence: with a capital and a full stop. */
function asSentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;
}

interface UpdateProps {
  update: ServiceUpdate;
  namespace: string;
  onOpen: (id: string) => void;
}

/** What an update waits for: its pods, the step, since when, and the ways out. */
function Update({ update, namespace, onOpen }: UpdateProps) {
  const { state, text, said, since = 0, node, help = [] } = update;
  const pods = (names: string[] = []) =>
    names.length === 0
      ? "none"
      : names.map((pod, at) => (
          <span key={pod}>
            {at > 0 && ", "}
            <PodLink pod={{ namespace, pod }} onOpen={onOpen} />
          </span>
        ));
  return (
    <details>
      <summary class={update.stuck ? "warn" : ""}>
        update: {state}
        {since > 0 && `, for ${age(Date.now() / 1000 - since)}`}
      </summary>
      <div>
        {asSentence(text)}
        <br />
        new: {pods(update.new)}; old: {pods(update.old)}
        {node && (
          <>
            ; images come to <NodeLink node={node} onOpen={onOpen} />
          </>
        )}
        {said && <p class="quiet">The answer was: {asSentence(said)}</p>}
        {help.length > 0 && (
          <ul>
            {help.map((each) => (
              <li key={each}>{each}</li>
            ))}
          </ul>
        )}
      </div>
    </details>
  );
}

interface ServicesProps {
  /** With their keys. */
  services: [string, Service][];
  filtered: boolean;
  onOpen: (id: string) => void;
}

export function Services({ services, filtered, onOpen }: ServicesProps) {
  const [order, setOrder] = useState("findings");
  const [size, setSize] = useState(PAGE);
  const place = useRef<HTMLElement>(null);
  const near = useNear(place, services.length > LAZY, "300px");
  const { unserved, unservedDetail, servicesCut = 0 } = store.summary ?? {};
  if (services.length === 0 && !unserved && store.spares.size === 0) return null;
  const value = ORDERS[order] ?? troubles;
  const byKey = ([left]: [string, Service], [right]: [string, Service]): number => (left < right ? -1 : 1);
  const shown = near ? largest(services.sort(byKey), size, ([, service]) => value(service)) : [];
  const rows = services.map(([, service]) => service);
  const columns = COLUMNS.filter((name) => !OPTIONAL[name] || rows.some((row) => OPTIONAL[name]?.(row) !== undefined));
  return (
    <section id="services" class="panel" aria-label="Services" ref={place}>
      <h2>
        Services <small>{count(services.length, "service")}</small>
        <label class="switch">
          first{" "}
          <select value={order} onChange={(event) => setOrder(event.currentTarget.value)}>
            <option value="findings">with findings</option>
            <option value="requests">most requests</option>
            <option value="waiting">most queued requests</option>
            <option value="power">most power</option>
            <option value="energy">most energy for a request</option>
          </select>
        </label>
      </h2>
      {unserved && (
        <p class="quiet">
          Services are not known, since the controller does not tell them{unservedDetail && `: ${unservedDetail}`}.
        </p>
      )}
      {services.length === 0 ? (
        filtered && !unserved && <p class="quiet">Nothing here has the words of the filter.</p>
      ) : (
        <table class={near ? "" : "far"}>
          <thead>
            <tr>
              {columns.map((each) => (
                <th key={each} scope="col">
                  {each}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map(([key, service]) => (
              <Row key={key} {...{ service, columns, onOpen }} />
            ))}
          </tbody>
        </table>
      )}
      {servicesCut > 0 && (
        <p class="quiet">
          Not shown: {count(servicesCut, "more service")}, beyond the most that the controller reports.
        </p>
      )}
      <Spares />
      {services.length > size && (
        <button type="button" onClick={() => setSize(size + 4 * PAGE)}>
          show more of {integer(services.length)}
        </button>
      )}
    </section>
  );
}

/** What queues keep free for the next pods of their services. */
function Spares() {
  const spares = [...store.spares].sort(([left], [right]) => (left < right ? -1 : 1));
  if (spares.length === 0) return null;
  return (
    <ul class="plain" aria-label="Spare slices">
      {spares.map(([key, { queue, profile, free, wanted, fault, why }]) => (
        <li key={key}>
          Queue {queue} keeps{" "}
          <b class={free < wanted ? "warn" : ""}>{wanted === 0 ? "no" : `${integer(free)} of ${integer(wanted)}`}</b>{" "}
          {profile} free for the next pods of its services{fault && `: ${fault}`}.
          {why && <span class="quiet"> {asSentence(why)}</span>}
        </li>
      ))}
    </ul>
  );
}

const COLUMNS = [
  "service",
  "ready",
  "requests/s",
  "queued",
  "room",
  "next start",
  "busy",
  "power",
  "energy/1,000 req.",
];

/** Columns that are left out while no service has a value. */
const OPTIONAL: Record<string, (service: Service) => unknown> = {
  "requests/s": ({ requests }) => requests,
  queued: ({ waiting }) => waiting,
  room: ({ room }) => room,
  busy: ({ busy }) => busy,
  power: ({ power }) => power,
  "energy/1,000 req.": ({ joules }) => joules,
};

interface RowProps {
  service: Service;
  columns: string[];
  onOpen: (id: string) => void;
}

function Row({ service, columns, onOpen }: RowProps) {
  const { namespace, kind, name, ready, wanted, room, findings = [], unknown = 0, starts = 0, update } = service;
  const values: Record<string, ComponentChildren> = {
    ready: (
      <b class={ready < wanted ? "warn" : ""}>
        {integer(ready)} of {integer(wanted)}
        {starts > 0 && `, ${integer(starts)} waiting`}
      </b>
    ),
    "requests/s": known(service.requests, decimal),
    queued: known(service.waiting, integer),
    room: known(room, (pods) => `${integer(pods)}${pods >= COUNTED ? "+" : ""}`),
    "next start": nextStart(service),
    busy: percent(service.busy),
    power: watts(service.power),
    "energy/1,000 req.": known(service.joules, energy),
  };
  return (
    <tr>
      <th scope="row">
        {namespace}/{name} <small>{kind}</small>
        {unknown > 0 && <div class="warn">no agent reports {count(unknown, "pod")}</div>}
        {update && <Update update={update} namespace={namespace} onOpen={onOpen} />}
        {findings.map((each) => (
          <details key={each.kind}>
            <summary class="warn">
              {each.kind}, {count(each.pods, "pod")}
            </summary>
            <div>
              <PodLink pod={{ namespace, pod: each.pod }} onOpen={onOpen} /> on{" "}
              <NodeLink node={each.node} onOpen={onOpen} />: {each.text}
            </div>
          </details>
        ))}
      </th>
      {columns.slice(1).map((each) => (
        <td key={each} data-name={each}>
          {values[each]}
        </td>
      ))}
    </tr>
  );
}
