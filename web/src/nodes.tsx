// Drivers and their rollout, and the way of new nodes to usable cards.

import type { NodeState } from "./documents";
import { isBroken } from "./health";
import { byName } from "./words";

/** The most nodes that are drawn. */
const MOST = 100;

export function Nodes({ states }: { states: NodeState[] }) {
  if (states.length === 0) return null;
  const groups = new Map<string, number>();
  for (const { driver } of states) {
    if (!driver) continue;
    const way = [...new Set([driver.strategy, driver.phase, driver.upgrade])].filter(Boolean).join(", ");
    const name = `${driver.version || "driver"}: ${way}`;
    groups.set(name, (groups.get(name) ?? 0) + 1);
  }
  const moving = states.filter(isMoving).sort((left, right) => byName(left.node, right.node));
  return (
    <section id="nodes" class="panel" aria-label="Drivers and nodes on their way">
      <h2>Drivers and nodes on their way</h2>
      {groups.size > 0 && (
        <p class="groups">
          {[...groups]
            .sort(([left], [right]) => byName(left, right))
            .map(([name, number]) => (
              <span class="badge" key={name}>
                <b>{number}</b> {name}
              </span>
            ))}
        </p>
      )}
      {moving.length === 0 && <p class="quiet">Every node has its driver, and none is coming up.</p>}
      <ul class="plain">
        {moving.slice(0, MOST).map((state) => (
          <NodeLine key={state.node} state={state} />
        ))}
      </ul>
      {moving.length > MOST && <p class="quiet">and {moving.length - MOST} more; use the filter</p>}
    </section>
  );
}

/** True for a node that comes up, or whose driver changes or is not ready. */
function isMoving({ driver, startup }: NodeState): boolean {
  const upgrades = driver?.upgrade !== undefined && driver.upgrade !== "" && driver.upgrade !== "upgrade-done";
  return startup !== undefined || (driver !== undefined && (driver.phase !== "ready" || upgrades));
}

export function NodeLine({ state }: { state: NodeState }) {
  const { driver, startup } = state;
  const phases = startup?.phases ?? [];
  const total = phases.reduce((sum, { seconds }) => sum + seconds, 0);
  return (
    <li class={isBroken(state) ? "item unwell" : "item"}>
      <b>{state.node}</b>{" "}
      {startup ? (
        <span class={startup.overdue ? "warn" : ""}>{startup.verdict || "comes up"}</span>
      ) : (
        driver && (
          <span>
            driver {driver.version} ({driver.strategy}): {driver.phase}
            {driver.upgrade && driver.upgrade !== "upgrade-done" ? `, ${driver.upgrade}` : ""}
          </span>
        )
      )}
      {phases.length > 0 && (
        <span class="phases">
          {phases.map(({ name, seconds }) => (
            <span key={name} style={{ flexGrow: Math.max(seconds, total / 50) }} title={`${name} ${seconds} s`}>
              {name} {Math.round(seconds)} s
            </span>
          ))}
        </span>
      )}
      {(startup?.facts ?? []).map((fact) => (
        <div class="quiet" key={fact}>
          {fact}
        </div>
      ))}
      {!startup && driver?.reason && <div class="quiet">{driver.reason}</div>}
      {driver?.offered && <div class="quiet">better and possible now: {driver.offered}</div>}
    </li>
  );
}
