// The visitor's token. It is kept for this tab only (sessionStorage), sent in a header, and never part of an address.

const KEY = "tessera-token";
/** The largest header that servers take. */
const LONGEST = 8192;

type Listener = () => void;

/** Whom the server takes the visitor for, and the time ranges of curves that it offers. */
export interface Who {
  user: string;
  past: string[];
}

export const NOBODY: Who = { user: "", past: [] };

/** Asks the server who looks; nobody where it does not tell. */
export async function askWho(): Promise<Who> {
  try {
    const response = await fetch("/whoami", { headers: session.headers, cache: "no-store" });
    return response.ok ? { ...NOBODY, ...((await response.json()) as Partial<Who>) } : NOBODY;
  } catch {
    return NOBODY;
  }
}

class Session {
  #token = sessionStorage.getItem(KEY) ?? "";
  readonly #listeners = new Set<Listener>();

  get signedIn(): boolean {
    return this.#token !== "";
  }

  get headers(): Record<string, string> {
    return this.#token === "" ? {} : { Authorization: `Bearer ${this.#token}` };
  }

  /** Takes a token as it was pasted; returns what is wrong with it. */
  signIn(text: string): string {
    const token = text.trim().replace(/^Bearer\s+/i, "");
    if (token === "") return "Paste a token first.";
    if (token.length > LONGEST) return `A token has at most ${LONGEST} characters; this text has ${token.length}.`;
    if (!/^[\x21-\x7e]+$/.test(token)) return "A token has no spaces and no line breaks; copy it as one line.";
    sessionStorage.setItem(KEY, token);
    this.#set(token);
    return "";
  }

  signOut(): void {
    sessionStorage.removeItem(KEY);
    this.#set("");
  }

  /** Calls back when the token changed. */
  listen(listener: Listener): void {
    this.#listeners.add(listener);
  }

  #set(token: string): void {
    this.#token = token;
    for (const each of this.#listeners) each();
  }
}

export const session = new Session();
