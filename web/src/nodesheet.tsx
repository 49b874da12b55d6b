// Everything about one node, beside the page: its cards, its driver, what Tessera says of it, and its events.

import { Why } from "./answer";
import type { Card } from "./documents";
import { Events } from "./events";
import { nodeOf } from "./links";
import { sayCard } from "./mosaic";
import { NodeLine } from "./nodes";
import { idOf, store } from "./store";
import { age, byName, modelName, roomName } from "./words";

interface NodeSheetProps {
  id: string;
  onOpen: (id: string) => void;
  onFilter: (text: string) => void;
}

/** What fits on the cards now, one kind at a time. */
function roomOf(cards: Card[]): string {
  const room = new Map<string, number>();
  for (const { free = {} } of cards) {
    for (const [name, number] of Object.entries(free)) room.set(name, (room.get(name) ?? 0) + number);
  }
  const kinds = [...room].filter(([, number]) => number > 0).sort(([left], [right]) => byName(left, right));
  return kinds.map(([name, number]) => `${number} x ${roomName(name, number)}`).join(", or ") || "None.";
}

export function NodeDetails({ id, onOpen, onFilter }: NodeSheetProps) {
  const node = nodeOf(id) ?? "";
  const cards = [...store.cards.values()].filter((each) => each.node === node);
  const state = store.nodes.get(`node/${node}`);
  const failure = store.failures.get(`failure/${node}`);
  // The path of a node has this in the place of a namespace.
  const asked = { namespace: "-", pod: node };
  return (
    <>
      {failure && (
        <p class="warn">
          silent{failure.since ? ` for ${age(Date.now() / 1000 - failure.since)}` : ""}: {failure.reason}
        </p>
      )}
      <ul class="plain">
        {cards
          .sort((left, right) => left.index - right.index)
          .map((card) => (
            <li key={card.uuid}>
              <button type="button" class="link" onClick={() => onOpen(idOf(card))}>
                card {card.index}
              </button>{" "}
              {modelName(card.model)}: {sayCard(card)}
            </li>
          ))}
        {state && <NodeLine state={state} />}
      </ul>
      <h3>Room</h3>
      <p>{roomOf(cards)}</p>
      <p>
        <button type="button" onClick={() => onFilter(`node:${node}`)}>
          show only its cards and pods
        </button>
      </p>
      <h3>What Tessera says of it</h3>
      <Why pod={asked} />
      <Events pod={asked} describe={`kubectl describe node ${node}`} />
    </>
  );
}
