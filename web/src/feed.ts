// Reads the feed: server-sent events over fetch, since EventSource cannot send a token. A broken connection is made
// again after a pause that grows, from where it ended. The server's comments show that an idle connection is alive.

import { createParser, type EventSourceMessage } from "eventsource-parser";
import { session } from "./session";
import type { Store } from "./store";

/** Documents that changed, by key, and keys that are gone. */
export interface Change {
  set: Record<string, unknown>;
  gone: string[];
}

/** Milliseconds of the first pause, and of the longest one. */
const SHORTEST = 500;
const LONGEST = 15_000;
/** Without a byte for so long, the connection is dead; the server sends a comment each 15 s. */
const SILENCE = 45_000;

/** The reason of an abort by a new token. */
const RESTART = new Error("restart");

export type Link =
  | { state: "connecting" }
  | { state: "live" }
  | { state: "lost"; reason: string; pause: number }
  /** The server wants a token, or refused the one that it got. */
  | { state: "login"; reason: string };

/** An answer of the server that is no feed. */
class Refusal extends Error {
  constructor(
    message: string,
    readonly login: boolean,
  ) {
    super(message);
  }
}

/** Reads the server's reason; other programs on the way may answer anything. */
export async function readRefusal(response: Response): Promise<{ error: string; login: boolean }> {
  try {
    const body = (await response.json()) as { error?: unknown; login?: unknown };
    if (typeof body.error === "string") return { error: body.error, login: body.login === true };
  } catch {
    // Not JSON: the status has to do.
  }
  return { error: `the server answered ${response.status} ${response.statusText}`.trim(), login: false };
}

export class Feed {
  link: Link = { state: "connecting" };
  #lastId = "";
  #abort = new AbortController();
  #wake = (): void => {};

  constructor(
    private readonly store: Store,
    private readonly onLink: () => void,
  ) {
    session.listen(() => this.#restart());
    addEventListener("online", () => this.#wake());
    addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.#wake());
  }

  /** Reads for as long as the page is open. */
  async run(): Promise<never> {
    let pause = SHORTEST;
    for (;;) {
      const live = await this.#connect();
      if (this.link.state === "login") await this.#sleep(undefined);
      else if (this.link.state === "lost") {
        pause = live ? SHORTEST : Math.min(LONGEST, pause * 2);
        const drawn = pause * (0.75 + Math.random() / 2);
        this.#show({ ...this.link, pause: drawn });
        await this.#sleep(drawn);
      }
    }
  }

  /** Begins anew with other rights: nothing of the old ones stays. */
  #restart(): void {
    this.#lastId = "";
    this.store.clear();
    this.#show({ state: "connecting" });
    this.#abort.abort(RESTART);
    this.#wake();
  }

  /** Reads until the connection ends; true if it was live. */
  async #connect(): Promise<boolean> {
    const abort = new AbortController();
    this.#abort = abort;
    let live = false;
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream", ...session.headers };
      if (this.#lastId) headers["Last-Event-ID"] = this.#lastId;
      const asked = { headers, cache: "no-store", redirect: "manual", signal: abort.signal } as const;
      const response = await fetch("/feed", asked);
      if (response.type === "opaqueredirect") throw new Error("a proxy wants you to sign in again: reload the page");
      if (response.status !== 200 || response.body === null) {
        const { error, login } = await readRefusal(response);
        throw new Refusal(error, login && response.status === 401);
      }
      live = true;
      this.#show({ state: "live" });
      await this.#read(response.body, abort);
      throw new Error("the server ended the connection");
    } catch (error) {
      if (abort.signal.reason === RESTART) return live;
      if (error instanceof Refusal && error.login) {
        this.store.clear();
        this.#lastId = "";
        this.#show({ state: "login", reason: error.message });
      } else this.#show({ state: "lost", reason: error instanceof Error ? error.message : String(error), pause: 0 });
    }
    return live;
  }

  async #read(body: ReadableStream<Uint8Array<ArrayBuffer>>, abort: AbortController): Promise<void> {
    const parser = createParser({ onEvent: (event) => this.#take(event) });
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let timer = 0;
    try {
      for (;;) {
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(new Error("the server is silent")), SILENCE);
        const { done, value } = await reader.read();
        if (done) return;
        parser.feed(value);
      }
    } finally {
      clearTimeout(timer);
    }
  }

  #take(event: EventSourceMessage): void {
    if (event.id !== undefined) this.#lastId = event.id;
    const change = JSON.parse(event.data) as Change;
    if (event.event === "snapshot") this.store.reset(change);
    else this.store.apply(change);
  }

  #show(link: Link): void {
    this.link = link;
    this.onLink();
  }

  async #sleep(milliseconds: number | undefined): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
      if (milliseconds !== undefined) setTimeout(resolve, milliseconds);
    });
  }
}
