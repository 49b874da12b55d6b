// The whole answer of `tessera why` about a pod or a node.

import { useEffect, useState } from "preact/hooks";
import { readRefusal } from "./feed";
import { session } from "./session";

export interface Explanation {
  answers?: { verdict: string; facts: string[]; help: string[] }[];
  error?: string;
}

interface Pod {
  namespace: string;
  pod: string;
}

/** Asks the page's server about a pod. */
export async function askAbout<T>(what: string, { namespace, pod }: Pod): Promise<T | { error: string }> {
  const path = `/${what}/${encodeURIComponent(namespace)}/${encodeURIComponent(pod)}`;
  try {
    const response = await fetch(path, { headers: session.headers, cache: "no-store" });
    return response.ok ? ((await response.json()) as T) : await readRefusal(response);
  } catch (error) {
    return { error: String(error) };
  }
}

/** Asks for the whole answer of `tessera why`. */
export function explain(pod: Pod): Promise<Explanation> {
  return askAbout<Explanation>("why", pod);
}

export function Answer({ answer }: { answer: Explanation }) {
  if (answer.error) return <p class="warn">{answer.error}</p>;
  return (
    <>
      {(answer.answers ?? []).map((each) => (
        <div class="answer" key={each.verdict}>
          <p>{each.verdict}</p>
          <ul>
            {each.facts.map((fact) => (
              <li key={fact}>{fact}</li>
            ))}
          </ul>
          {each.help.length > 0 && <p>What would help:</p>}
          <ul>
            {each.help.map((help) => (
              <li key={help}>{help}</li>
            ))}
          </ul>
        </div>
      ))}
    </>
  );
}

/** The answer of `tessera why`, asked for once. */
export function Why({ pod: { namespace, pod } }: { pod: { namespace: string; pod: string } }) {
  const [answer, setAnswer] = useState<Explanation | undefined>();
  useEffect(() => {
    void explain({ namespace, pod }).then(setAnswer);
  }, [namespace, pod]);
  return answer ? <Answer answer={answer} /> : <p class="quiet">asking…</p>;
}
