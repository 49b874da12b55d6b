// The live page. One connection brings all documents and then their changes; each frame draws what changed.

import { type ComponentChildren, Component, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Chart } from "./curve";
import { type Card, type CardHistory, type Change, type Cluster, type Health, type Holder, type Lease, type NodeState, type Tile, type Waiting } from "./documents";
import { applyChange, emptyCluster, leasesOf } from "./documents";
import { HEALTH, KINDS, STATES, age, celsius, gibOf, modelName, percent, roomName, watts } from "./words";

const cluster: Cluster = emptyCluster();

interface Explanation {
  answers?: { verdict: string; facts: string[]; help: string[] }[];
  error?: string;
}

/** What the address bar holds, so that a view can be sent to somebody. */
interface View {
  text: string;
  state: string;
  room: string;
  open: string;
}

function readView(): View {
  const values = new URLSearchParams(location.hash.slice(1));
  const value = (name: string): string => values.get(name) ?? "";
  return { text: value("q"), state: value("state"), room: value("room"), open: value("open") };
}

function writeView(view: View): void {
  const values = new URLSearchParams();
  if (view.text) values.set("q", view.text);
  if (view.state) values.set("state", view.state);
  if (view.room) values.set("room", view.room);
  if (view.open) values.set("open", view.open);
  history.replaceState(null, "", `#${values.toString()}`);
}

function cardText(card: Card): string {
  const pods = leasesOf(card).map((lease) => `${lease.namespace}/${lease.pod} ${lease.owner} ${lease.state}`);
  const tiles = (card.tiles ?? []).map((tile) => tile.profile);
  const health = card.health ? HEALTH[card.health.state] ?? card.health.state : "";
  return [card.node, card.model, card.uuid, KINDS[card.kind ?? ""], health, ...pods, ...tiles].join(" ").toLowerCase();
}

function matches(card: Card, view: View): boolean {
  const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
  const text = words.length ? cardText(card) : "";
  if (!words.every((word) => text.includes(word))) return false;
  if (view.room && !((card.free ?? {})[view.room] ?? 0)) return false;
  if (view.state === "") return true;
  if (view.state === "free") return freeOf(card).length > 0;
  if (view.state === "unwell") return card.health !== undefined;
  if (view.state === "wasted") return leasesOf(card).some((each) => ["idle", "never_used", "resident"].includes(each.state));
  return leasesOf(card).some((lease) => lease.state === view.state);
}

/** What has room on a card, the names in the order of their sizes. */
function freeOf(card: Card): [string, number][] {
  return Object.entries(card.free ?? {}).filter(([, count]) => count > 0).sort(([left], [right]) => byName(left, right));
}

function byName(left: string, right: string): number {
  return left.localeCompare(right, "en", { numeric: true });
}

function holderName(holder: Holder): string {
  return holder.pod ? `pod ${holder.namespace}/${holder.pod}` : `process ${holder.pid} ${holder.process ?? ""}`;
}

/** What is wrong with a card: its errors, who holds it, and the next step. */
function HealthDetails({ health }: { health: Health }) {
  const now = Date.now() / 1000;
  return (
    <div class="health">
      <p><b class="warn">{HEALTH[health.state] ?? health.state}</b>{health.since ? ` for ${age(now - health.since)}` : ""}</p>
      <ul>
        {(health.evidence ?? []).map((each) => (
          <li key={each.source + each.text}>
            {!each.text.startsWith(each.source) && <b>{each.source}</b>} {each.text}
            <span class="quiet">{" "}asks for {each.asks}{(each.count ?? 1) > 1 ? `, ${each.count} times` : ""}{each.since ? `, first ${age(now - each.since)} ago` : ""}</span>
            {each.spared && <span> The card stays in use: the breaker spares it.</span>}
          </li>
        ))}
      </ul>
      {(health.holders ?? []).length > 0 && <p>Held by {(health.holders ?? []).map(holderName).join(", ")}.</p>}
      {health.next && <p>{health.next}</p>}
    </div>
  );
}

function LeaseLine({ lease }: { lease: Lease }) {
  return (
    <li>
      <span class={`mark ${lease.state}`} aria-hidden="true" />{" "}
      <b>{lease.namespace}/{lease.pod}</b> {lease.owner && <span class="quiet">{lease.owner}</span>}
      <div class="facts">
        <span>{STATES[lease.state] ?? lease.state}</span>
        <span>busy {percent(lease.busy)}</span>
        <span>memory {gibOf(lease.memory, undefined).replace(" of n/a", "")}</span>
        <span>{lease.kind}, {percent(lease.share)} of the card</span>
        <span>held {age(lease.held)}</span>
      </div>
      <div class="quiet">{lease.evidence}</div>
      {(lease.findings ?? []).map((each) => <div key={each}>{each}</div>)}
    </li>
  );
}

function tileName(tile: Tile): string {
  return (tile.leases ?? []).map((lease) => lease.pod).join(", ");
}

function tileState(leases: Lease[] | undefined): string {
  return leases?.[0]?.state ?? "none";
}

/** The card as a bar: memory slots with their MIG devices, or the shares of its holders. */
function Mosaic({ card }: { card: Card }) {
  const slots = card.slots;
  if (slots > 0) {
    return (
      <span class="bar" style={`--slots:${slots}`}>
        {Array.from({ length: slots }, (_, slot) => <span key={slot} class="slot" style={`--at:${slot + 1};--span:1`} />)}
        {(card.tiles ?? []).map((tile) => (
          <span
            key={`${tile.start}-${tile.profile}`}
            class={`tile ${tileState(tile.leases)}`}
            style={`--at:${tile.start + 1};--span:${tile.size}`}
            title={`${tile.profile}: ${tileName(tile) || "free"}`}
          >
            {tileName(tile)} <i>{tile.profile}</i>
          </span>
        ))}
      </span>
    );
  }
  const leases = card.leases ?? [];
  const cells = Math.max(1, Math.min(card.replicas ?? 1, 24));
  const shares = leases.map((lease) => Math.max(1, Math.round(lease.share * cells)));
  const free = Math.max(0, cells - shares.reduce((sum, each) => sum + each, 0));
  const none = card.kind === undefined || card.kind === "" ? "not offered" : "";
  return (
    <span class="bar" style={`--slots:${Math.max(cells, shares.reduce((sum, each) => sum + each, 0))}`}>
      {leases.map((lease, number) => (
        <span
          key={`${lease.namespace}/${lease.pod}/${lease.container}`}
          class={`tile ${lease.state}`}
          style={`--at:auto;--span:${shares[number]}`}
          title={`${lease.namespace}/${lease.pod}: ${KINDS[lease.kind] ?? lease.kind}`}
        >
          {lease.pod}
        </span>
      ))}
      {Array.from({ length: free }, (_, number) => <span key={`free${number}`} class="slot" style="--at:auto;--span:1">{none}</span>)}
    </span>
  );
}

interface RowProps {
  id: string;
  card: Card;
  curves: CardHistory | undefined;
  open: boolean;
  toggle: (id: string) => void;
}

/** One card. It is drawn again only if its document or its state changed. */
class CardRow extends Component<RowProps> {
  override shouldComponentUpdate(next: RowProps): boolean {
    const { card, open, curves } = this.props;
    return next.card !== card || next.open !== open || (next.open && next.curves !== curves);
  }

  override render({ id, card, curves, open, toggle }: RowProps) {
    const free = freeOf(card);
    const leases = leasesOf(card);
    return (
      <div class="card">
        <button type="button" class="row" aria-expanded={open} onClick={() => toggle(id)}>
          <span class="name">{card.index} <span class="quiet">{modelName(card.model)}, {KINDS[card.kind ?? ""] ?? card.kind}</span></span>
          <Mosaic card={card} />
          <span class="numbers">
            <span>{percent(card.busy)}</span>
            <span>{gibOf(card.memory, card.memoryTotal)}</span>
            <span>{watts(card.power)}</span>
            <span>{celsius(card.temperature)}</span>
          </span>
          {card.health && <span class="warn">{HEALTH[card.health.state] ?? card.health.state}: {(card.health.evidence ?? []).map((each) => each.source).join(", ") || "see its details"}</span>}
          {(card.throttled ?? []).length > 0 && <span class="warn">slowed down: {(card.throttled ?? []).join(", ")}</span>}
        </button>
        {open && (
          <div class="details">
            <p class="quiet">{card.uuid}</p>
            {card.health && <HealthDetails health={card.health} />}
            {leases.length === 0 && <p>No pod holds it.</p>}
            {curves && curves.held.length > 1 && (
              <div class="charts">
                <Chart label="busy" values={curves.busy} step={curves.step} most={1} text={percent} />
                <Chart label="memory" values={curves.memory} step={curves.step} most={1} text={percent} />
                <Chart label="held" values={curves.held} step={curves.step} most={1} text={percent} />
              </div>
            )}
            <ul>{leases.map((lease) => <LeaseLine key={`${lease.pod}/${lease.container}`} lease={lease} />)}</ul>
            {free.length > 0 && <p>Room for {free.map(([name, count]) => `${count} x ${roomName(name)}`).join(", or ")}.</p>}
          </div>
        )}
      </div>
    );
  }
}

function WaitingRow({ pod }: { pod: Waiting }) {
  const [reason, setReason] = useState<Explanation | "asked" | undefined>();
  const ask = async (): Promise<void> => {
    setReason("asked");
    const path = `/why/${encodeURIComponent(pod.namespace)}/${encodeURIComponent(pod.pod)}`;
    try {
      setReason((await (await fetch(path)).json()) as Explanation);
    } catch (error) {
      setReason({ error: String(error) });
    }
  };
  const explained = reason === "asked" ? undefined : reason;
  return (
    <li class="card">
      <button type="button" class="row wait" aria-expanded={reason !== undefined} onClick={() => void ask()}>
        <b>{pod.namespace}/{pod.pod}</b>
        <span>{pod.requests}</span>
        <span class="quiet">waits {age(Date.now() / 1000 - pod.since)}</span>
        <span class="link">why?</span>
        {pod.reason && <span class="reason">{pod.reason}</span>}
      </button>
      {reason === "asked" && <p class="details quiet">asking…</p>}
      {explained?.error && <p class="details warn">{explained.error}</p>}
      {(explained?.answers ?? []).map((answer, number) => (
        <div class="details" key={number}>
          <p>{answer.verdict}</p>
          <ul>{answer.facts.map((fact) => <li key={fact}>{fact}</li>)}</ul>
          {answer.help.length > 0 && <p>What would help:</p>}
          <ul>{answer.help.map((each) => <li key={each}>{each}</li>)}</ul>
        </div>
      ))}
    </li>
  );
}

/** A node whose driver or start somebody should look at. */
function NodeLine({ state }: { state: NodeState }) {
  const { driver, startup } = state;
  const phases = startup?.phases ?? [];
  const total = phases.reduce((sum, { seconds }) => sum + seconds, 0);
  return (
    <li class={`card${startup?.overdue || ["failed", "blocked"].includes(driver?.phase ?? "") ? " unwell" : ""}`}>
      <b>{state.node}</b>{" "}
      {startup && <span class={startup.overdue ? "warn" : ""}>{startup.verdict}</span>}
      {!startup && driver && <span>driver {driver.version} ({driver.strategy}): {driver.phase}{driver.upgrade && driver.upgrade !== "upgrade-done" ? `, ${driver.upgrade}` : ""}</span>}
      {phases.length > 0 && (
        <span class="phases">{phases.map(({ name, seconds }) => (
          <span key={name} style={`flex-grow:${Math.max(1, Math.round((100 * seconds) / Math.max(total, 1)))}`} title={`${name} ${seconds} s`}>{name} {Math.round(seconds)} s</span>
        ))}</span>
      )}
      {driver?.reason && !startup && <div class="quiet">{driver.reason}</div>}
      {(startup?.facts ?? []).map((fact) => <div class="quiet" key={fact}>{fact}</div>)}
      {driver?.offered && <div class="quiet">a better driver is possible: {driver.offered}</div>}
    </li>
  );
}

/** The drivers of the fleet by version and way, and the nodes on their way. */
function Drivers() {
  const states = [...cluster.nodes.values()].sort((left, right) => byName(left.node, right.node));
  if (states.length === 0) return null;
  const groups = new Map<string, number>();
  for (const { driver } of states) {
    if (driver) {
      const way = driver.strategy === driver.phase ? driver.phase : `${driver.strategy}, ${driver.phase}`;
      const name = `${driver.version || "driver"}: ${way}`;
      groups.set(name, (groups.get(name) ?? 0) + 1);
    }
  }
  const moving = states.filter(({ driver, startup }) => startup || (driver && (driver.phase !== "ready" || (driver.upgrade && driver.upgrade !== "upgrade-done"))));
  return (
    <section aria-label="Drivers and nodes on their way">
      <h2>Drivers and nodes on their way</h2>
      {groups.size > 0 && <p class="groups">{[...groups].sort(([left], [right]) => byName(left, right)).map(([name, count]) => <span class="badge" key={name}><b>{count}</b> {name}</span>)}</p>}
      {moving.length === 0 && <p class="quiet">Every node has its driver, and none is coming up.</p>}
      <ul class="plain">{moving.slice(0, 100).map((state) => <NodeLine key={state.node} state={state} />)}</ul>
      {moving.length > 100 && <p class="quiet">and {moving.length - 100} more</p>}
    </section>
  );
}

function Past() {
  const past = cluster.history;
  if (past === undefined || past.held.length < 2) return null;
  const cards = cluster.summary?.cards;
  return (
    <section aria-label="The last hours">
      <h2>The last hours</h2>
      <div class="charts">
        <Chart label="cards held" values={past.held} step={past.step} most={cards} text={(value) => value.toFixed(1)} />
        <Chart label="busy" values={past.busy} step={past.step} most={1} text={percent} />
        <Chart label="power" values={past.power} step={past.step} text={watts} />
        <Chart label="pods waiting" values={past.waiting} step={past.step} text={(value) => value.toFixed(0)} />
      </div>
    </section>
  );
}

const KEYS: [string, string][] = [
  ["/", "filter"],
  ["Escape", "clear the filter, close the card"],
  ["j, k", "next card, card before"],
  ["Enter", "open or close the card"],
  ["?", "this list"],
];

function Figure({ label, children }: { label: string; children: ComponentChildren }) {
  return <div class="figure"><dt>{label}</dt><dd>{children}</dd></div>;
}

function freeRoom(): [string, number][] {
  const room = new Map<string, number>();
  for (const card of cluster.cards.values()) {
    for (const [name, count] of Object.entries(card.free ?? {})) room.set(name, (room.get(name) ?? 0) + count);
  }
  return [...room].sort(([left], [right]) => byName(left, right));
}

function Page({ live }: { live: boolean }) {
  const [view, setView] = useState(readView);
  const [showsKeys, setShowsKeys] = useState(false);
  const search = useRef<HTMLInputElement>(null);
  const change = (part: Partial<View>): void => {
    const next = { ...view, ...part };
    writeView(next);
    setView(next);
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const typing = document.activeElement instanceof HTMLInputElement || document.activeElement instanceof HTMLSelectElement;
      if (event.key === "?" && !typing) {
        setShowsKeys(!showsKeys);
      } else if ((event.key === "j" || event.key === "k") && !typing) {
        const rows = [...document.querySelectorAll<HTMLButtonElement>("button.row[aria-expanded]")];
        const at = rows.indexOf(document.activeElement as HTMLButtonElement);
        rows[Math.max(0, Math.min(rows.length - 1, at + (event.key === "j" ? 1 : -1)))]?.focus();
      } else if (event.key === "/" && document.activeElement !== search.current) {
        event.preventDefault();
        search.current?.focus();
      } else if (event.key === "Escape") {
        change({ text: "", state: "", room: "", open: "" });
        setShowsKeys(false);
        search.current?.blur();
      }
    };
    const onHash = (): void => setView(readView());
    addEventListener("keydown", onKey);
    addEventListener("hashchange", onHash);
    return () => {
      removeEventListener("keydown", onKey);
      removeEventListener("hashchange", onHash);
    };
  });
  const shown = [...cluster.cards].filter(([, card]) => matches(card, view));
  const nodes = groupByNode(shown);
  const names = [...nodes.keys()].sort(byName);
  const unwell = [...cluster.cards].filter(([, card]) => card.health !== undefined);
  const waiting = [...cluster.waiting.values()].sort((left, right) => left.since - right.since);
  const summary = cluster.summary;
  const toggle = (id: string): void => change({ open: view.open === id ? "" : id });
  return (
    <>
      <header>
        <h1>Tessera</h1>
        {summary?.simulated && <span class="badge">simulated cards</span>}
        <span class={live ? "badge live" : "badge warn"} role="status">{live ? "live" : "not connected"}</span>
        <button type="button" class="keys" aria-expanded={showsKeys} onClick={() => setShowsKeys(!showsKeys)}>keys</button>
      </header>
      {showsKeys && <dl class="keylist">{KEYS.map(([key, what]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{what}</dd></div>)}</dl>}
      <main>
        {summary === undefined ? <p>Reading the cluster…</p> : (
          <dl class="figures">
            <Figure label="cards">{summary.cards} <small>on {summary.nodes} nodes</small></Figure>
            <Figure label="held">{summary.held.toFixed(1)} <small>of {summary.cards} cards</small></Figure>
            <Figure label="busy">{percent(summary.busy)} {summary.measured < summary.cards && <small>of {summary.measured} that measure it</small>}</Figure>
            <Figure label="power">{watts(summary.power)}</Figure>
            <Figure label="pods with cards">{summary.pods}</Figure>
            <Figure label="held, not used">{summary.wastedLeases}</Figure>
            <Figure label="waiting">{summary.waiting}</Figure>
            <Figure label="not well">{summary.unwell ?? 0}</Figure>
          </dl>
        )}
        {freeRoom().length > 0 && (
          <section class="room" aria-label="Free room">
            <h2>Room for <small>each alone; choose one to see the cards</small></h2>
            <p>{freeRoom().map(([name, count]) => (
              <button type="button" key={name} disabled={count === 0} aria-pressed={view.room === name} onClick={() => change({ room: view.room === name ? "" : name })}>
                <b>{count}</b> {roomName(name)}
              </button>
            ))}</p>
          </section>
        )}
        {unwell.length > 0 && (
          <section aria-label="Cards that are not well">
            <h2>Not well <small>{unwell.length}</small></h2>
            <ul class="plain">{unwell.slice(0, 50).map(([id, card]) => (
              <li key={id} class="card unwell"><b>{card.node}, card {card.index}</b> <span class="quiet">{modelName(card.model)}</span><HealthDetails health={card.health!} /></li>
            ))}</ul>
            {unwell.length > 50 && <p class="quiet">and {unwell.length - 50} more; filter by state</p>}
          </section>
        )}
        <Past />
        {cluster.failures.size > 0 && (
          <section aria-label="Nodes that do not answer">
            <h2>Not answering</h2>
            <ul>{[...cluster.failures.values()].map((each) => <li key={each.node} class="warn"><b>{each.node}</b>: {each.reason}</li>)}</ul>
          </section>
        )}
        {waiting.length > 0 && (
          <section aria-label="Pods that wait">
            <h2>Waiting <small>{waiting.length}, the oldest first</small></h2>
            <ul class="plain">{waiting.slice(0, 200).map((pod) => <WaitingRow key={`${pod.namespace}/${pod.pod}`} pod={pod} />)}</ul>
            {waiting.length > 200 && <p class="quiet">and {waiting.length - 200} more</p>}
          </section>
        )}
        <Drivers />
        <section aria-label="Cards">
          <h2>Cards <small>{shown.length === cluster.cards.size ? "" : `${shown.length} of ${cluster.cards.size} shown`}</small></h2>
          <div class="filters">
            <label>Filter <input ref={search} type="search" value={view.text} placeholder="node, model, namespace, pod, profile" onInput={(event) => change({ text: event.currentTarget.value })} /></label>
            <label>State <select value={view.state} onChange={(event) => change({ state: event.currentTarget.value })}>
              <option value="">all</option>
              <option value="free">with room</option>
              <option value="wasted">held and not used</option>
              <option value="unwell">not well</option>
              <option value="busy">busy</option>
              <option value="unknown">not known</option>
            </select></label>
            {view.room && <button type="button" onClick={() => change({ room: "" })}>with room for {roomName(view.room)} ✕</button>}
          </div>
          <p class="legend">{["busy", "resident", "idle", "never_used", "unknown", "none"].map((state) => (
            <span key={state}><span class={`mark ${state}`} aria-hidden="true" /> {state === "none" ? "free MIG device" : state.replace("_", " ")}</span>
          ))}</p>
          {shown.length > 0 && (
            <div class="row heads" aria-hidden="true">
              <span>card</span><span>memory slots, or shares</span>
              <span class="numbers"><span>busy</span><span>memory</span><span>power</span><span>heat</span></span>
            </div>
          )}
          {summary !== undefined && cluster.cards.size === 0 && <p>No agent has reported a card yet.</p>}
          {cluster.cards.size > 0 && shown.length === 0 && <p>No card matches the filter. Escape clears it.</p>}
          {names.map((name) => (
            <div class="node" key={name}>
              <h3>{name}</h3>
              {(nodes.get(name) ?? []).sort(([, left], [, right]) => left.index - right.index).map(([id, card]) => (
                <CardRow key={id} id={id} card={card} curves={cluster.curves.get(id)} open={view.open === id} toggle={toggle} />
              ))}
            </div>
          ))}
        </section>
      </main>
    </>
  );
}

function groupByNode(cards: [string, Card][]): Map<string, [string, Card][]> {
  const nodes = new Map<string, [string, Card][]>();
  for (const each of cards) nodes.set(each[1].node, [...(nodes.get(each[1].node) ?? []), each]);
  return nodes;
}

let live = false;
let scheduled = false;

/** Draws once in the next frame, however many changes come before it. */
function schedule(): void {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    render(<Page live={live} />, document.getElementById("page")!);
  });
}

document.getElementById("page")!.textContent = "";
schedule();
const feed = new EventSource("/feed");
feed.addEventListener("snapshot", (event) => {
  Object.assign(cluster, emptyCluster());
  applyChange(cluster, JSON.parse(event.data) as Change);
  schedule();
});
feed.addEventListener("change", (event) => {
  applyChange(cluster, JSON.parse(event.data) as Change);
  schedule();
});
feed.addEventListener("open", () => {
  live = true;
  schedule();
});
feed.addEventListener("error", () => {
  live = false;
  schedule();
});
