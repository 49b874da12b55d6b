// Which pods are the visitor's own: those in namespaces that the visitor marked; and, for a visitor from whom the names
// of others are hidden, those whose names are shown.

import type { Lease, Waiting } from "./documents";
import { isHidden } from "./words";

const KEY = "tessera-own";
/** The most namespaces that are remembered. */
const MOST = 32;

type Pod = Pick<Lease | Waiting, "namespace" | "pod">;

class Own {
  #marked = new Set<string>((localStorage.getItem(KEY) ?? "").split(" ").filter(Boolean));
  #hidesOthers = false;
  /** Changes with each answer of `has` that may differ. */
  version = 0;

  has({ namespace, pod }: Pod): boolean {
    return this.#marked.has(namespace) || (this.#hidesOthers && !isHidden(pod));
  }

  /** True if a namespace was marked by hand. */
  marks(namespace: string): boolean {
    return this.#marked.has(namespace);
  }

  /** Marks a namespace, or takes the mark away. */
  turn(namespace: string): void {
    if (!this.#marked.delete(namespace)) this.#marked.add(namespace);
    const kept = [...this.#marked].slice(-MOST);
    this.#marked = new Set(kept);
    if (kept.length > 0) localStorage.setItem(KEY, kept.join(" "));
    else localStorage.removeItem(KEY);
    this.version += 1;
  }

  /** Says whether the names of others are hidden from the visitor. */
  hideOthers(hides: boolean): void {
    if (hides !== this.#hidesOthers) this.version += 1;
    this.#hidesOthers = hides;
  }
}

export const own = new Own();
