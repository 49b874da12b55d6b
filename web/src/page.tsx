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

interface FiguresProps {
  summary: Summary;
  found: Survey;
  filtered: boolean;
  broken: number;
  waiting: number;
  wasted: number;
}

/** Sums of the cluster, or of what the filter shows. */
function Figures({ summary, found, filtered, broken, waiting, wasted }: FiguresProps) {
  const cards = filtered ? found.shown : summary.cards;
  const held = filtered ? found.sum.held : summary.held;
  return (
    <section id="sum" aria-label={filtered ? "Sums of what is shown" : "Sums of the cluster"}>
      <dl class="figures">
        <Figure label="cards" part="cards">
          {integer(cards)}
        </Figure>
        <Figure label="allocated" part="cards">
          {decimal(held)} <small>{cards > 0 && percent(held / cards)}</small>
        </Figure>
        <Figure label="busy" part="past">
          {percent(filtered ? found.sum.busy : summary.busy)}
        </Figure>
        <Figure label="power" part="past">
          {watts(filtered ? found.power : summary.power)}
        </Figure>
        <Figure label="pods" part="pods">
          {integer(filtered ? found.sum.pods.size : summary.pods)}
        </Figure>
        <Figure label="waiting" part="waiting">
          {integer(waiting)}
        </Figure>
        <Figure label="broken" part="broken">
          {broken > 0 ? <b class="warn">{integer(broken)}</b> : 0}
        </Figure>
        <Figure label="not used" part="wasted">
          {integer(wasted)}
        </Figure>
      </dl>
      <p class="quiet about">{filtered ? "Of what the filter shows." : ofCluster(summary)}</p>
    </section>
  );
}

/** What the sums of the cluster are about. */
function ofCluster({ cards, nodes, measured, silent = 0, cordoned = 0 }: Summary): string {
  const about = [
    `${count(cards, "card")} on ${count(nodes, "node")}`,
    silent > 0 && `${integer(silent)} silent`,
    cordoned > 0 && `${integer(cordoned)} cordoned`,
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
  const filter = useMemo(() => new Filter(view), [view]);
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
        silent={summary.silent ?? 0}
        {...{ filtered, failures }}
        onOpen={open}
      />,
    ],
    [found.wasted.length, <Wasted key="wasted" filtered={filtered} held={found.wasted} onOpen={open} />],
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
    broken: found.unwell.length + failures.length + broken.length,
    waiting: filtered ? waiting.length : summary.waiting,
    wasted: found.wasted.length,
  };
  return (
    <>
      <HiddenNames found={found} onSignIn={onSignIn} />
      <Mine {...{ found, waiting }} filtered={words.hasWords} onOpen={open} />
      <Figures {...{ summary, found, ...figures }} filtered={!filter.empty} />
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
