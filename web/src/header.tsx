// The top of the page: the state of the connection, the filter, the theme, and who looks.

import type { RefObject } from "preact";
import { useState } from "preact/hooks";
import type { Link } from "./feed";
import { useNarrow } from "./hooks";
import { KeyList } from "./keys";
import { session } from "./session";
import { CHOICES, type View } from "./view";
import { count, roomName } from "./words";

const THEME = "tessera-theme";
const THEMES: Record<string, string> = { "": "dark", dark: "light", light: "" };

/** Applies the theme that was chosen; empty follows the system. */
function applyTheme(theme: string): void {
  document.documentElement.dataset.theme = theme;
}

applyTheme(localStorage.getItem(THEME) ?? "");

function linkWords(link: Link): string {
  switch (link.state) {
    case "live":
      return "live";
    case "connecting":
      return "connecting";
    case "login":
      return "not signed in";
    case "lost":
      return `not connected: ${link.reason}; next try in ${count(Math.max(1, Math.round(link.pause / 1000)), "second")}`;
  }
}

/** Who looks, as the server or a proxy in front of it knows; and the way out for who signed in here. */
function Account({ name }: { name: string }) {
  return (
    <>
      {name && <span class="quiet account">{name}</span>}
      {session.signedIn && (
        <button type="button" onClick={() => session.signOut()}>
          sign out
        </button>
      )}
    </>
  );
}

interface HeaderProps {
  link: Link;
  /** Who looks; empty if the server does not tell. */
  name: string;
  simulated: boolean;
  view: View;
  change: (part: Partial<View>) => void;
  search: RefObject<HTMLInputElement>;
  onKeys: () => void;
  showsKeys: boolean;
}

export function Header({ link, name, simulated, view, change, search, onKeys, showsKeys }: HeaderProps) {
  const narrow = useNarrow();
  const [theme, setTheme] = useState(localStorage.getItem(THEME) ?? "");
  const turn = (): void => {
    const next = THEMES[theme] ?? "";
    localStorage.setItem(THEME, next);
    applyTheme(next);
    setTheme(next);
  };
  return (
    <header>
      <div class="top">
        <h1>
          <span class="logo" aria-hidden="true" /> Tessera
        </h1>
        {simulated && <span class="badge">simulated cards</span>}
        <span class={`badge ${link.state}`} role="status">
          {linkWords(link)}
        </span>
        <span class="tools">
          <button
            type="button"
            onClick={turn}
            title="light, dark, or as the system"
            aria-label={`theme: ${theme || "system"}`}
          >
            ◐ <span class="word">theme: {theme || "system"}</span>
          </button>
          <button type="button" class="keys" aria-expanded={showsKeys} onClick={onKeys}>
            keys
          </button>
          <Account name={name} />
        </span>
      </div>
      {link.state !== "login" && (
        <search class="filters">
          <label>
            Filter{" "}
            <input
              ref={search}
              type="search"
              value={view.text}
              placeholder={narrow ? "pod, node, ns:team…" : "pod, node, model… or ns:team state:idle"}
              onInput={(event) => change({ text: event.currentTarget.value })}
            />
          </label>
          <label>
            State{" "}
            <select value={view.state} onChange={(event) => change({ state: event.currentTarget.value })}>
              <option value="">all states</option>
              {CHOICES.map(([value, name]) => (
                <option key={value} value={value}>
                  {name}
                </option>
              ))}
            </select>
          </label>
          {view.room && (
            <button type="button" onClick={() => change({ room: "" })}>
              with room for {roomName(view.room)} ✕
            </button>
          )}
          {(view.text || view.state) && (
            <button type="button" onClick={() => change({ text: "", state: "", room: "" })}>
              clear
            </button>
          )}
        </search>
      )}
      {showsKeys && <KeyList />}
    </header>
  );
}
