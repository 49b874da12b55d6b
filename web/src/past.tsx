// The last hours of the fleet.

import { Chart } from "./curve";
import { store } from "./store";
import { percent, watts } from "./words";

export function Past() {
  const past = store.history;
  if (past === undefined || past.held.length < 2) return null;
  const { step, until } = past;
  return (
    <section id="past" class="panel" aria-label="The last hours">
      <h2>The last hours</h2>
      <div class="charts">
        <Chart
          label="cards held"
          values={past.held}
          step={step}
          until={until}
          most={store.summary?.cards}
          text={(value) => value.toFixed(1)}
        />
        <Chart label="busy" values={past.busy} step={step} until={until} most={1} text={percent} />
        <Chart label="power" values={past.power} step={step} until={until} text={watts} />
        <Chart
          label="pods waiting"
          values={past.waiting}
          step={step}
          until={until}
          text={(value) => value.toFixed(0)}
        />
      </div>
    </section>
  );
}
