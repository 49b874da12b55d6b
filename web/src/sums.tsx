// Who uses how much: the pods that are shown, added up by team, by namespace or by workload.

import { useState } from "preact/hooks";
import { own } from "./own";
import { store } from "./store";
import type { Sum, Survey } from "./survey";
import type { View } from "./view";
import { byName, decimal, gibOf, integer, percent, watts } from "./words";

/** The number of rows that are always shown. */
const FIRST = 8;
/** The most rows. */
const MOST = 200;

interface SumsProps {
  found: Survey;
  change: (part: Partial<View>) => void;
  onOwn: () => void;
}

type By = "teams" | "namespaces" | "owners";

/** What a row is. */
const NAMES: Record<By, string> = { teams: "team", namespaces: "namespace", owners: "workload" };

export function Sums({ found, change, onOwn }: SumsProps) {
  const [chosen, setBy] = useState<By | undefined>();
  // Without a label of teams, each namespace is one.
  const hasTeams = store.teams.size > 0;
  const by = chosen && (hasTeams || chosen !== "teams") ? chosen : hasTeams ? "teams" : "namespaces";
  const [all, setAll] = useState(false);
  const rows = [...found[by]].sort(order(by === "namespaces"));
  if (rows.length === 0) return null;
  const choice = (name: By) => (
    <button key={name} type="button" aria-pressed={by === name} onClick={() => setBy(name)}>
      {NAMES[name]}
    </button>
  );
  return (
    <section id="sums" class="panel" aria-label={`Use by ${NAMES[by]}`}>
      <h2>
        Use by {NAMES[by]}
        <span class="switch">
          {hasTeams && choice("teams")} {choice("namespaces")} {choice("owners")}
        </span>
      </h2>
      <table class="sums">
        <thead>
          <tr>
            <th scope="col">{NAMES[by]}</th>
            <th scope="col">cards</th>
            <th scope="col">busy</th>
            <th scope="col">memory</th>
            <th scope="col">power</th>
            <th scope="col">unused</th>
            <th scope="col">pods</th>
            <th scope="col">waiting</th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, all ? MOST : FIRST).map(([name, sum]) => (
            <Row key={name} {...{ name, sum, by, change, onOwn }} />
          ))}
        </tbody>
      </table>
      {rows.length > FIRST && (
        <button type="button" class="below" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "show fewer" : `show all ${integer(rows.length)}`}
        </button>
      )}
    </section>
  );
}

/** The visitor's own first, hidden names last, then the largest. */
function order(ofNamespaces: boolean) {
  const rank = (name: string): number => (name === "" ? 2 : ofNamespaces && own.marks(name) ? 0 : 1);
  return ([left, a]: [string, Sum], [right, b]: [string, Sum]): number =>
    rank(left) - rank(right) || b.held - a.held || byName(left, right);
}

interface RowProps {
  name: string;
  sum: Sum;
  by: By;
  change: (part: Partial<View>) => void;
  onOwn: () => void;
}

/** The filter that keeps what a row adds up. */
function filterOf(by: By, name: string): string {
  if (by === "teams") return name.includes(" ") ? "" : `team:${name}`;
  if (by === "namespaces") return `ns:${name}`;
  const [namespace = "", owner = ""] = name.split(/\/(.*)/s);
  return `ns:${namespace} ${owner.includes("/") ? "owner" : "pod"}:${owner}`;
}

function Row({ name, sum, by, change, onOwn }: RowProps) {
  const text = filterOf(by, name);
  const isNamespace = by === "namespaces";
  const turn = (): void => {
    own.turn(name);
    onOwn();
  };
  return (
    <tr>
      <th scope="row">
        {isNamespace && name && (
          <button
            type="button"
            class="star"
            aria-pressed={own.marks(name)}
            aria-label={`${name} is mine`}
            title="mark the pods of this namespace as yours"
            onClick={turn}
          >
            {own.marks(name) ? "★" : "☆"}
          </button>
        )}{" "}
        {name ? (
          <button type="button" class="link" onClick={() => change({ text })}>
            {name}
          </button>
        ) : (
          <span class="hidden">hidden names</span>
        )}
      </th>
      <td data-name="cards">{decimal(sum.held)}</td>
      <td data-name="busy">
        {percent(sum.busy)}
        {sum.busy !== undefined && sum.measuredLeases < sum.leases && (
          <small>
            {" "}
            {integer(sum.measuredLeases)} of {integer(sum.leases)} measured
          </small>
        )}
      </td>
      <td data-name="memory">{gibOf(sum.memory, undefined)}</td>
      <td data-name="power">{watts(sum.power)}</td>
      <td data-name="unused">
        {sum.measuredLeases > 0 || sum.wasted > 0 ? `${decimal(sum.wasted / 3600)} GPU-h` : "–"}
      </td>
      <td data-name="pods">{integer(sum.pods.size)}</td>
      <td data-name="waiting">{integer(sum.waiting)}</td>
    </tr>
  );
}
