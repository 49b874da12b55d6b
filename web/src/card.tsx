// One card, as a row with names or as a tile of the mosaic. It hears of its own document and draws itself.

import { Component } from "preact";
import type { Card } from "./documents";
import { sayCard, stripes, WideBar } from "./mosaic";
import { store } from "./store";
import { ABSENCES, celsius, gibOf, HEALTH, isCordoned, kindName, modelName, percent, watts } from "./words";

interface CardProps {
  id: string;
  mosaic: boolean;
  open: boolean;
  onOpen: (id: string) => void;
}

/** What is wrong with a card in a line; empty for one that is well. */
export function trouble(card: Card): string {
  if (card.silent) return "the node's agent does not answer";
  if (!card.health) return "";
  if (isCordoned(card)) return card.health.evidence?.[0]?.text ?? "cordoned by hand";
  const sources = (card.health.evidence ?? [])
    .map((each) => each.source)
    .filter(Boolean)
    .join(", ");
  return `${HEALTH[card.health.state] ?? card.health.state}${sources ? `: ${sources}` : ""}`;
}

export class CardTile extends Component<CardProps> {
  #end: (() => void) | undefined;
  #drawn: Card | undefined;

  override componentDidMount(): void {
    this.#end = store.watch(this.props.id, () => this.setState({}));
  }

  override componentWillUnmount(): void {
    this.#end?.();
  }

  override shouldComponentUpdate(next: CardProps): boolean {
    const { id, mosaic, open } = this.props;
    return store.cards.get(next.id) !== this.#drawn || next.id !== id || next.mosaic !== mosaic || next.open !== open;
  }

  override render({ id, mosaic, open, onOpen }: CardProps) {
    const card = store.cards.get(id);
    this.#drawn = card;
    if (!card) return null;
    return mosaic ? <SmallCard {...{ id, card, open, onOpen }} /> : <CardRow {...{ id, card, open, onOpen }} />;
  }
}

type Drawn = Omit<CardProps, "mosaic"> & { card: Card };

function SmallCard({ id, card, open, onOpen }: Drawn) {
  const wrong = trouble(card);
  const words = `card ${card.index}, ${modelName(card.model)}, ${sayCard(card)}${wrong ? `, ${wrong}` : ""}`;
  return (
    <button
      type="button"
      class={`tile${wrong ? ` ${isCordoned(card) ? "cordoned" : "unwell"}` : ""}${card.silent ? " silent" : ""}`}
      style={{ backgroundImage: stripes(card) }}
      title={words}
      aria-expanded={open}
      data-card={id}
      onClick={() => onOpen(id)}
    />
  );
}

function CardRow({ id, card, open, onOpen }: Drawn) {
  const wrong = trouble(card);
  return (
    <button type="button" class="row" aria-expanded={open} data-card={id} onClick={() => onOpen(id)}>
      <span class="name">
        <b>card {card.index}</b> {modelName(card.model)} <small>{kindName(card)}</small>
      </span>
      <WideBar card={card} />
      <span class="numbers">
        <span title={ABSENCES[card.busyAbsent ?? ""]}>{percent(card.busy)}</span>
        <span>{gibOf(card.memory, card.memoryTotal)}</span>
        <span>{watts(card.power)}</span>
        <span>{celsius(card.temperature)}</span>
      </span>
      {wrong && <span class={isCordoned(card) ? "cordoned" : "warn"}>{wrong}</span>}
      {(card.throttled ?? []).length > 0 && (
        <span class="warn">slowed down: {(card.throttled ?? []).join(", ").replaceAll("_", " ")}</span>
      )}
    </button>
  );
}
