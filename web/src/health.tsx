// What is wrong with cards and nodes: the evidence, who holds a card that must be reset, and the next step.

import type { Card, Failure, Health, NodeState } from "./documents";
import { NodeLink } from "./links";
import { Panel } from "./panel";
import { age, count, frameOf, HEALTH, integer, isCordoned, isOutOfUse, modelName, podName } from "./words";

/** What an error needs, by `asks`. */
const ASKS: Record<string, string> = {
  reset: "needs a reset",
  reboot: "needs a reboot of its node",
  replace: "the card must be replaced",
  preflight: "the card must pass its preflight",
  attention: "somebody should look at it",
};

function times(number: number): string {
  return number > 1 ? `seen ${number} times` : "";
}

/** What is wrong with a card. */
export function HealthDetails({ health, card }: { health: Health; card: Card }) {
  const now = Date.now() / 1000;
  const holders = health.holders ?? [];
  const byHand = health.state === "cordoned";
  return (
    <div class="health">
      <p>
        <span class={`mark ${frameOf(card)}`} aria-hidden="true" />{" "}
        <b class={byHand ? "cordoned" : isOutOfUse(card) ? "warn" : "amber"}>{HEALTH[health.state] ?? health.state}</b>
        {health.since ? ` for ${age(now - health.since)}` : ""}
      </p>
      <ul>
        {(health.evidence ?? []).map((each, number) => (
          <li key={each.source + each.text || number}>
            {!each.text.startsWith(each.source) && <b>{each.source}</b>} {each.text}
            <span class="quiet">
              {[ASKS[each.asks], times(each.count ?? 1), each.since && `since ${age(now - each.since)}`]
                .filter(Boolean)
                .map((words) => ` · ${words}`)}
            </span>
            {each.spared && <span> The card stays in use: the breaker spares it.</span>}
          </li>
        ))}
      </ul>
      {holders.length > 0 && (
        <p>
          Held by{" "}
          {holders
            .map((each) => (each.pod ? `pod ${podName(each)}` : `process ${each.pid} ${each.process ?? ""}`))
            .join(", ")}
          {(health.cut ?? 0) > 0 ? ` and ${health.cut} more` : ""}.
        </p>
      )}
      {health.next && <p>Next: {health.next.replace("NODE/INDEX", `${card.node}/${card.index}`)}</p>}
    </div>
  );
}

interface BrokenProps {
  filtered: boolean;
  unwell: [string, Card][];
  failures: Failure[];
  /** Nodes whose driver or start went wrong. */
  nodes: NodeState[];
  /** Cards that are known, and those of them whose agent does not answer. */
  known: number;
  silent: number;
  onOpen: (id: string) => void;
}

/** True for a node that somebody must look at. */
export function isBroken({ driver, startup }: NodeState): boolean {
  return startup?.overdue === true || ["failed", "blocked"].includes(driver?.phase ?? "");
}

export function Broken({ filtered, unwell, failures, nodes, known, silent, onOpen }: BrokenProps) {
  const degraded = unwell.filter(([, card]) => !isOutOfUse(card)).length;
  const items = [
    ...failures.map((each) => <FailureItem key={`f/${each.node}`} failure={each} onOpen={onOpen} />),
    ...nodes.map((each) => (
      <li key={`n/${each.node}`} class="item unwell">
        <NodeLink node={each.node} onOpen={onOpen} />{" "}
        <span class="warn">
          {each.startup?.verdict || (each.driver ? `driver ${each.driver.phase}` : "comes up, and is late")}
        </span>
        {each.driver?.reason && <p>{each.driver.reason}</p>}
      </li>
    )),
    ...[...unwell]
      .sort(([, left], [, right]) => Number(isOutOfUse(right)) - Number(isOutOfUse(left)))
      .map(([id, card]) => <CardItem key={id} id={id} card={card} onOpen={onOpen} />),
  ];
  return (
    <Panel
      filtered={filtered}
      title="Broken"
      id="broken"
      size={items.length}
      number={items.length - degraded}
      note={degraded > 0 ? `and ${integer(degraded)} degraded, still in use` : undefined}
      draw={(most) => items.slice(0, most)}
      empty={
        known === 0
          ? "No card is known, so none is known to be broken."
          : silent > 0
            ? `No fault is known; ${count(silent, "card")} cannot be asked.`
            : "Every card is well, and every agent answers."
      }
      first={3}
    />
  );
}

interface CordonedProps {
  filtered: boolean;
  cards: [string, Card][];
  onOpen: (id: string) => void;
}

/** The cards that a person has taken out of service, each with the reason. */
export function Cordoned({ filtered, cards, onOpen }: CordonedProps) {
  return (
    <Panel
      filtered={filtered}
      title="Cordoned by hand"
      id="cordoned"
      size={cards.length}
      draw={(most) =>
        cards.slice(0, most).map(([id, card]) => <CardItem key={id} id={id} card={card} onOpen={onOpen} />)
      }
      empty="No card is cordoned."
      first={3}
    />
  );
}

function CardItem({ id, card, onOpen }: { id: string; card: Card; onOpen: (id: string) => void }) {
  return (
    <li class={`item ${isCordoned(card) ? "cordoned" : isOutOfUse(card) ? "unwell" : "degraded"}`}>
      <button type="button" class="link" onClick={() => onOpen(id)}>
        {card.node}, card {card.index}
      </button>{" "}
      <small>{modelName(card.model)}</small>
      {card.health && <HealthDetails health={card.health} card={card} />}
    </li>
  );
}

function FailureItem({ failure, onOpen }: { failure: Failure; onOpen: (id: string) => void }) {
  return (
    <li class="item unwell">
      <NodeLink node={failure.node} onOpen={onOpen} />{" "}
      <span class="warn">
        unknown{failure.since ? ` for ${age(Date.now() / 1000 - failure.since)}` : ""}:{" "}
        {failure.reason || "its agent does not answer"}
      </span>
      {(failure.offers ?? []).map((each) => (
        <p key={each.resource} class="quiet">
          it offers {each.count} x {each.resource}
          {each.model ? ` (${modelName(each.model)})` : ""}, pods ask for {each.used}
        </p>
      ))}
      {failure.next && <p>Next: {failure.next}</p>}
    </li>
  );
}
