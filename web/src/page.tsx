// The live page. One connection brings all documents and then their changes; each part draws what changed.

import { type ComponentChildren, options, render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Cards, isMosaic } from "./cards";
import type { Summary } from "./documents";
import { Feed, type Link } from "./feed";
import { Header } from "./header";
import { Broken, Cordoned, isBroken } from "./health";
import { useChanges, useTicks } from "./hooks";
import { focusCard, isTyping } from "./keys";
import { inQueue, KueueWorkloads } from "./kueue";
import { Nodes } from "./nodes";
import { Past } from "./past";
import { Pods, Wasted } from "./pods";
import { Room } from "./room";
import { Sheet } from "./sheet";
import { HiddenNames, SignIn } from "./signin";
import { store } from "./store";
import { survey } from "./survey";
import { Filter, readView, type View, writeView } from "./view";
import { inOrder, WaitingPods } from "./waiting";
import { count, decimal, integer, percent, watts } from "./words";

/** Milliseconds between two drawings of lists and sums; tiles of cards are drawn at once. */
const PERIOD = 500;
/** The same for a large cluster. */
const LONG_PERIOD = 1000;
const LARGE = 500;

function Figure({ label, part, children }: { label: string; part?: string; children: ComponentChildren }) {
  const go = (): void => document.getElementById(part ?? "")?.scrollIntoView();
  return (
    <div class="figure">
      <dt>
        {part ? (
          <button type="button" class="link" onClick={go}>
            {label}
          </button>
        ) : (
          label
        )}
      </dt>
      <dd>{children}</dd>
    </div>
  );
}

/** On how many cards a mean was measured. */
function measuredOn(measured: number, cards: number): string {
  return measured > 0 ? `, measured on ${integer(measured)} of ${count(cards, "card")}` : ", no card measures it";
}

function Figures({ summary, broken }: { summary: Summary; broken: number }) {
  const { cards, nodes, held, measured, wastedLeases, silent = 0, cordoned = 0 } = summary;
  return (
    <dl class="figures">
      <Figure label="cards" part="cards">
        {integer(cards)}{" "}
        <small>
          on {count(nodes, "node")}
          {silent > 0 && `, ${count(silent, "card")} silent`}
          {cordoned > 0 && `, ${integer(cordoned)} cordoned`}
        </small>
      </Figure>
      <Figure label="held">
        {decimal(held)} <small>of {integer(cards)} cards</small>
      </Figure>
      <Figure label="busy">
        {percent(summary.busy)}
        {measured < cards && <small>{measuredOn(measured, cards)}</small>}
      </Figure>
      <Figure label="power">{watts(summary.power)}</Figure>
      <Figure label="pods with cards" part="pods">
        {integer(summary.pods)}
      </Figure>
      <Figure label="broken" part="broken">
        {broken > 0 ? <b class="warn">{integer(broken)}</b> : 0}
      </Figure>
      <Figure label="waiting" part="waiting">
        {integer(summary.waiting)}
      </Figure>
      <Figure label="held, not used" part="wasted">
        {integer(wastedLeases)}
      </Figure>
    </dl>
  );
}

/** The view and its changes, kept in the address. */
function useView(): [View, (part: Partial<View>) => void] {
  const [view, setView] = useState(readView);
  // The last choice, also before it is drawn.
  const chosen = useRef(view);
  useEffect(() => {
    const onAddress = (): void => {
      chosen.current = readView();
      setView(chosen.current);
    };
    addEventListener("hashchange", onAddress);
    addEventListener("popstate", onAddress);
    return () => {
      removeEventListener("hashchange", onAddress);
      removeEventListener("popstate", onAddress);
    };
  }, []);
  const change = (part: Partial<View>): void => {
    const next = { ...chosen.current, ...part };
    writeView(next, chosen.current);
    chosen.current = next;
    setView(next);
  };
  return [view, change];
}

function Page({ link }: { link: Link }) {
  useChanges(store, store.cards.size < LARGE ? PERIOD : LONG_PERIOD);
  useTicks(30_000);
  const [view, change] = useView();
  const [showsKeys, setShowsKeys] = useState(false);
  const [signsIn, setSignsIn] = useState(false);
  const search = useRef<HTMLInputElement>(null);
  const opened = useRef<HTMLElement | null>(null);
  const open = (id: string): void => {
    opened.current = document.activeElement as HTMLElement;
    change({ open: view.open === id ? "" : id });
  };
  const close = (): void => {
    change({ open: "" });
    opened.current?.focus();
  };
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") {
        if (view.open) close();
        else change({ text: "", state: "", room: "" });
        setShowsKeys(false);
        search.current?.blur();
      } else if (isTyping()) return;
      else if (event.key === "?") setShowsKeys(!showsKeys);
      else if (event.key === "j") focusCard(1);
      else if (event.key === "k") focusCard(-1);
      else if (event.key === "m") change({ form: isMosaic(view) ? "rows" : "mosaic" });
      else if (event.key === "/") {
        event.preventDefault();
        search.current?.focus();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  const { summary } = store;
  const header = { link, view, change, search, showsKeys, simulated: summary?.simulated ?? false };
  return (
    <>
      <Header {...header} onKeys={() => setShowsKeys(!showsKeys)} />
      <main class={view.open && summary ? "beside" : ""}>
        {link.state === "login" && <SignIn reason={link.reason} />}
        {link.state !== "login" && signsIn && <SignIn reason="" onCancel={() => setSignsIn(false)} />}
        {link.state !== "login" && !summary && <p>Reading the cluster…</p>}
        {summary && <Overview summary={summary} {...{ view, change, open }} onSignIn={() => setSignsIn(true)} />}
      </main>
      {view.open && <Sheet id={view.open} onClose={close} />}
    </>
  );
}

interface OverviewProps {
  summary: Summary;
  view: View;
  change: (part: Partial<View>) => void;
  open: (id: string) => void;
  onSignIn: () => void;
}

function Overview({ summary, view, change, open, onSignIn }: OverviewProps) {
  const filter = useMemo(() => new Filter(view), [view]);
  const words = useMemo(() => new Filter({ ...view, state: "", room: "" }), [view]);
  const found = survey(store, filter, words);
  const waiting = [...store.waiting.values()].filter((pod) => filter.waiting(pod));
  const failures = [...store.failures.values()].filter((each) => filter.node(each));
  const nodes = [...store.nodes.values()].filter((each) => filter.node(each));
  const workloads = [...store.workloads.values()].filter((each) => filter.workload(each));
  const broken = (summary.unwell ?? 0) + store.failures.size + [...store.nodes.values()].filter(isBroken).length;
  return (
    <>
      <HiddenNames found={found} onSignIn={onSignIn} />
      <Figures summary={summary} broken={broken} />
      <Room {...{ found, view, change }} onOpen={open} />
      <div class="panels">
        <Broken
          filtered={!words.empty}
          unwell={found.unwell}
          failures={failures}
          nodes={nodes.filter(isBroken)}
          onOpen={open}
        />
        {(summary.cordoned ?? 0) > 0 && <Cordoned filtered={!words.empty} cards={found.cordoned} onOpen={open} />}
        <WaitingPods filtered={!words.empty} pods={waiting.sort(inOrder)} />
        {store.kueue && (
          <KueueWorkloads
            kueue={store.kueue}
            filtered={!words.empty}
            workloads={workloads.sort(inQueue)}
            unshown={[...store.unshown.values()]}
          />
        )}
        <Wasted filtered={!words.empty} held={found.wasted} onOpen={open} />
      </div>
      <Cards {...{ found, view, change }} onOpen={open} />
      <Pods held={found.held} onOpen={open} />
      <Nodes states={nodes} />
      <Past />
    </>
  );
}

const root = document.getElementById("page");
if (root) {
  // All changes between two frames are drawn once, and none in a hidden tab.
  options.debounceRendering = requestAnimationFrame;
  root.textContent = "";
  const feed = new Feed(store, () => render(<Page link={feed.link} />, root));
  render(<Page link={feed.link} />, root);
  void feed.run();
}
