// The keys of the page.

const KEYS: [string, string][] = [
  ["/", "filter"],
  ["j, k", "next card, card before"],
  ["Enter", "open or close the card or the pod"],
  ["m", "rows or mosaic"],
  ["Escape", "close what is open, then clear the filter"],
  ["?", "this list"],
];

export function KeyList() {
  return (
    <dl class="keylist">
      {KEYS.map(([key, what]) => (
        <div key={key}>
          <dt>
            <kbd>{key}</kbd>
          </dt>
          <dd>{what}</dd>
        </div>
      ))}
    </dl>
  );
}

/** True while keys are letters of a field. */
export function isTyping(): boolean {
  const { activeElement } = document;
  return activeElement instanceof HTMLInputElement || activeElement instanceof HTMLSelectElement;
}

/** Moves the focus to another card. */
export function focusCard(step: number): void {
  const cards = [...document.querySelectorAll<HTMLElement>("[data-card]")];
  const at = cards.indexOf(document.activeElement as HTMLElement);
  cards[Math.max(0, Math.min(cards.length - 1, at + step))]?.focus();
}
