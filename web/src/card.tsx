// One card, as a row with names or as a tile of the mosaic. It hears of its own document and draws itself.

import { Component } from "preact";
import type { Card } from "./documents";
import { sayCard, stripes, WideBar } from "./mosaic";
import { store } from "./store";
import { ABSENCES, celsius, frameOf, gibOf, HEALTH, isCordoned, kindName, modelName, percent, watts } from "./words";

/** A row with values, a line with names, or a tile with colours alone. */
export type Form = "rows" | "names" | "tiles";

interface CardProps {
  id: string;
  form: Form;
  /** `version` of the visitor's own pods. */
  own: number;
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
    const { id, form, own, open } = this.props;
    if (next.id !== id || next.form !== form || next.own !== own || next.open !== open) return true;
    return store.cards.get(next.id) !== this.#drawn;
  }

  override render({ id, form, open, onOpen }: CardProps) {
    const card = store.cards.get(id);
    this.#drawn = card;
    if (!card) return null;
    if (form === "rows") return <CardRow {...{ id, card, open, onOpen }} />;
    return <SmallCard {...{ id, card, open, onOpen }} names={form === "names"} />;
  }
}

type Drawn = Omit<CardProps, "form" | "own"> & { card: Card };

function SmallCard({ id, card, names, open, onOpen }: Drawn & { names: boolean }) {
  const wrong = trouble(card);
  const words = `card ${card.index}, ${modelName(card.model)}, ${sayCard(card)}${wrong ? `, ${wrong}` : ""}`;
  const common = { type: "button" as const, "aria-expanded": open, "data-card": id, onClick: () => onOpen(id) };
  if (names) {
    return (
      <button {...common} class={`named ${frameOf(card)}`} aria-label={words}>
        <span class="index">{card.index}</span>
        <WideBar card={card} />
      </button>
    );
  }
  const { image, own } = stripes(card);
  return (
    <button
      {...common}
      class={`tile ${frameOf(card)}${own ? " own" : ""}`}
      style={{ backgroundImage: image }}
      title={words}
    />
  );
}

function CardRow({ id, card, open, onOpen }: Drawn) {
  const wrong = trouble(card);
  return (
    <button type="button" class={`row ${frameOf(card)}`} aria-expanded={open} data-card={id} onClick={() => onOpen(id)}>
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
