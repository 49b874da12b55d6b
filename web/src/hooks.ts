// Draws parts of the page again when documents change.

import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Store } from "./store";

/** Draws the component when anything changed, at most once in `period` milliseconds. */
export function useChanges(store: Store, period: number): void {
  const [, draw] = useState(0);
  useEffect(() => {
    let timer = 0;
    let drawn = 0;
    const now = (): void => {
      timer = 0;
      drawn = performance.now();
      draw((number) => number + 1);
    };
    const end = store.listen(() => {
      if (timer === 0) timer = setTimeout(now, Math.max(0, period - (performance.now() - drawn)));
    });
    now();
    return () => {
      clearTimeout(timer);
      end();
    };
  }, [store, period]);
}

/** Draws the component each `period` milliseconds, for ages. */
export function useTicks(period: number): void {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => draw((number) => number + 1), period);
    return () => clearInterval(timer);
  }, [period]);
}

/** True while the element is near the window; always, if nobody needs to save work. */
export function useNear(place: RefObject<Element>, lazy: boolean, margin: string): boolean {
  const [near, setNear] = useState(false);
  useEffect(() => {
    if (!lazy || !place.current) return;
    const observer = new IntersectionObserver(([entry]) => setNear(entry?.isIntersecting ?? false), {
      rootMargin: margin,
    });
    observer.observe(place.current);
    return () => observer.disconnect();
  }, [place, lazy, margin]);
  return !lazy || near;
}

/** True while the window is as narrow as a phone. */
export function useNarrow(): boolean {
  const [query] = useState(() => matchMedia("(max-width: 40rem)"));
  const [narrow, setNarrow] = useState(query.matches);
  useEffect(() => {
    const onChange = (): void => setNarrow(query.matches);
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, [query]);
  return narrow;
}
