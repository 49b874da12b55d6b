// The live page. One connection brings all documents and then their changes; each part draws what changed.

import { type ComponentChildren, options, render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Cards, isMosaic } from "./cards";
import type { Summary } from "./documents";
import { Feed, type Link } from "./feed";
import { Header } from "./header";
import { Broken, Cordoned, isBroken } from "./health";
import { useChanges, useNarrow, useTicks } from "./hooks";
import { focusCard, isTyping } from "./keys";
import { inQueue, KueueWorkloads } from "./kueue";
import { Mine } from "./mine";
import { Nodes } from "./nodes";
import { own } from "./own";
import { Past } from "./past";
import { Pods, Wasted } from "./pods";
import { problem, returnFromProvider } from "./provider";
import { Room } from "./room";
import { Services } from "./services";
import { askWho, NOBODY } from "./session";
import { Sheet } from "./sheet";
import { HiddenNames, SignIn } from "./signin";
import { store } from "./store";
import { Sums } from "./sums";
import { type Survey, survey } from "./survey";
import { Filter, readView, type View, writeView } from "./view";
import { inOrder, WaitingPods } from "./waiting";
import { count, decimal, integer, isOutOfUse, percent, watts } from "./words";

/** Milliseconds between two drawings of lists and sums; tiles of cards are drawn at once. */
const PERIOD = 500;
/** The same for a large cluster. */
const LONG_PERIOD = 1000;
const LARGE = 500;

/** A figure; a click anywhere on it goes to its part of the page. */
function Figure({ label, part, children }: { label: string; part: string; children: ComponentChildren }) {
  return (
    <div class="figure goes">
      <dt>
        <button type="button" class="link" onClick={() => document.getElementById(part)?.scrollIntoView()}>
          {label}
        </button>
      </dt>
      <dd>{children}</dd>
    </div>
  );
}

interface FiguresProps {
  summary: Summary;
  found: Survey;
  filtered: boolean;
  view: View;
  /** Nodes and cards that work for nobody, and those that have errors and work. */
  broken: number;
  degraded: number;
  waiting: number;
}

/** Sums of the cluster, or of what the filter shows. */
function Figures({ summary, found, filtered, view, broken, degraded, waiting }: FiguresProps) {
  const cards = filtered ? found.shown : summary.cards;
  const held = filtered ? found.sum.held : summary.held;
  return (
    <section id="sum" aria-label={filtered ? "Sums of what is shown" : "Sums of the cluster"}>
      <dl class="figures">
        <Figure label="cards" part="cards">
          {integer(cards)}
        </Figure>
        <Figure label="allocated" part="sums">
          {decimal(held)} <small>{cards > 0 && percent(held / cards)}</small>
        </Figure>
        <Figure label="busy" part="past">
          {percent(filtered ? found.sum.busy : summary.busy)}
        </Figure>
        <Figure label="power" part="past">
          {watts(!filtered ? summary.power : found.shared ? found.sum.power : found.power)}
        </Figure>
        <Figure label="pods" part="pods">
          {integer(filtered ? found.sum.pods.size : summary.pods)}
        </Figure>
        <Figure label="waiting" part="waiting">
          {integer(waiting)}
        </Figure>
        <Figure label="broken" part="broken">
          {broken > 0 ? <b class="warn">{integer(broken)}</b> : 0}{" "}
          {degraded > 0 && <small class="more">+{integer(degraded)} degraded</small>}
        </Figure>
        <Figure label="not used" part="wasted">
          {integer(found.wasted.length)}{" "}
          {found.suspects.length > 0 && <small class="more">+{integer(found.suspects.length)} so far</small>}
        </Figure>
      </dl>
      <p class="quiet about">{filtered ? ofFilter(found, view) : ofCluster(summary)}</p>
    </section>
  );
}

/** What the sums are about while a filter is set. */
function ofFilter({ shared, shown }: Survey, { state, room }: View): string {
  const about = [
    "Of what the filter shows",
    shared &&
      `${count(shown, "card")}, of which others hold a part too; power is the part of the pods that are shown, as far as it is known`,
    (state || room) && "waiting, broken and not used count all states and rooms",
  ];
  return `${about.filter(Boolean).join("; ")}.`;
}

/** What the sums of the cluster are about. */
function ofCluster({ cards, nodes, measured, silent = 0, cordoned = 0, heldLost = 0 }: Summary): string {
  const about = [
    `${count(cards, "card")} on ${count(nodes, "node")}`,
    silent > 0 && `${integer(silent)} silent`,
    cordoned > 0 && `${integer(cordoned)} cordoned`,
    heldLost > 0 && `${decimal(heldLost)} of what is allocated is on failed cards`,
    measured > 0 ? `busy is measured on ${integer(measured)}` : cards > 0 && "no card measures how busy it is",
  ];
  return `${about.filter(Boolean).join("; ")}.`;
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
  const [who, setWho] = useState(NOBODY);
  const live = link.state === "live";
  useEffect(() => {
    if (live) void askWho().then(setWho);
  }, [live]);
  useChanges(store, store.cards.size < LARGE ? PERIOD : LONG_PERIOD);
  useTicks(30_000);
  const [view, change] = useView();
  const [showsKeys, setShowsKeys] = useState(false);
  const [signsIn, setSignsIn] = useState(problem !== "");
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
      else if (event.key === "m") change({ form: isMosaic(view) ? "rows" : "" });
      else if (event.key === "/") {
        event.preventDefault();
        search.current?.focus();
      }
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  const { summary } = store;
  const header = { link, name: who.user, view, change, search, showsKeys, simulated: summary?.simulated ?? false };
  return (
    <>
      <Header {...header} onKeys={() => setShowsKeys(!showsKeys)} />
      <main class={view.open && summary ? "beside" : ""}>
        {link.state === "login" && <SignIn reason={link.reason} />}
        {link.state !== "login" && signsIn && <SignIn reason="" onCancel={() => setSignsIn(false)} />}
        {link.state !== "login" && !summary && <p>Reading the cluster…</p>}
        {summary && (
          <Overview summary={summary} {...{ view, change, open }} ranges={who.past} onSignIn={() => setSignsIn(true)} />
        )}
      </main>
      {view.open && (
        <Sheet
          id={view.open}
          ranges={who.past}
          range={view.range}
          onRange={(range) => change({ range })}
          onOpen={(id) => change({ open: id })}
          onFilter={(text) => change({ text, open: "", state: "", room: "" })}
          onClose={close}
        />
      )}
    </>
  );
}

interface OverviewProps {
  summary: Summary;
  view: View;
  change: (part: Partial<View>) => void;
  open: (id: string) => void;
  ranges: string[];
  onSignIn: () => void;
}

function Overview({ summary, view, change, open, ranges, onSignIn }: OverviewProps) {
  const none = view.room !== "" && ![...store.cards.values()].some((card) => card.free?.[view.room]);
  const filter = useMemo(() => new Filter(view, none), [view, none]);
  const words = useMemo(() => new Filter({ ...view, state: "", room: "" }), [view]);
  const [, drawOwn] = useState(0);
  const narrow = useNarrow();
  const found = survey(store, filter, words);
  own.hideOthers(found.hidesPods);
  const waiting = [...store.waiting.values()].filter((pod) => filter.waiting(pod)).sort(inOrder);
  const failures = [...store.failures.values()].filter((each) => filter.node(each));
  const nodes = [...store.nodes.values()].filter((each) => filter.node(each));
  const workloads = [...store.workloads.values()].filter((each) => filter.workload(each));
  const services = [...store.services].filter(([, each]) => filter.service(each));
  const broken = nodes.filter(isBroken);
  const degraded = found.unwell.filter(([, card]) => !isOutOfUse(card)).length;
  const filtered = !words.empty;
  const named = found.namespaces.has(words.namespace) ? words.namespace : "";
  const panels: [number, ComponentChildren][] = [
    [waiting.length, <WaitingPods key="waiting" filtered={filtered} pods={waiting} onOpen={open} />],
    [
      found.unwell.length + failures.length + broken.length,
      <Broken
        key="broken"
        unwell={found.unwell}
        nodes={broken}
        known={summary.cards}
        silent={summary.silent ?? 0}
        {...{ filtered, failures }}
        onOpen={open}
      />,
    ],
    [
      found.wasted.length + found.suspects.length,
      <Wasted key="wasted" {...{ found, filtered }} onOpen={open} onState={(state) => change({ state, room: "" })} />,
    ],
  ];
  if ((summary.cordoned ?? 0) > 0) {
    const cards = found.cordoned;
    panels.push([cards.length, <Cordoned key="cordoned" {...{ filtered, cards }} onOpen={open} />]);
  }
  if (store.kueue) {
    const queue = { kueue: store.kueue, filtered, workloads: workloads.sort(inQueue) };
    panels.push([1, <KueueWorkloads key="kueue" {...queue} unshown={[...store.unshown.values()]} />]);
  }
  const lists = (
    <>
      <div class="panels">{panels.filter(([size]) => size > 0).map(([, panel]) => panel)}</div>
      <div class="quiet-panels">{panels.filter(([size]) => size === 0).map(([, panel]) => panel)}</div>
    </>
  );
  const picture = (
    <>
      <Room {...{ found, view, change }} onOpen={open} />
      <Cards {...{ found, view, change }} onOpen={open} />
    </>
  );
  const figures = {
    broken: found.unwell.length - degraded + failures.length + broken.length,
    degraded,
    waiting: filtered ? waiting.length : summary.waiting,
  };
  return (
    <>
      <HiddenNames found={found} onSignIn={onSignIn} />
      <Mine {...{ found, waiting }} filtered={words.hasWords} onOpen={open} />
      <Figures {...{ summary, found, view, ...figures }} filtered={!filter.empty} />
      {narrow ? [lists, picture] : [picture, lists]}
      <Services {...{ services, filtered }} onOpen={open} />
      <Past {...{ ranges, view, change, filtered }} namespace={named} />
      <Sums {...{ found, change }} onOwn={() => drawOwn((number) => number + 1)} />
      <Pods held={found.held} pods={found.sum.pods.size} onOpen={open} />
      <Nodes states={nodes} />
    </>
  );
}

const root = document.getElementById("page");
if (root) {
  // All changes between two frames are drawn once, and none in a hidden tab.
  options.debounceRendering = requestAnimationFrame;
  root.textContent = "";
  const feed = new Feed(store, () => render(<Page link={feed.link} />, root));
  void returnFromProvider().then(() => {
    render(<Page link={feed.link} />, root);
    void feed.run();
  });
}
