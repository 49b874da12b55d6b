// The form that asks for a token, and the sentence about hidden names.

import { useEffect, useRef, useState } from "preact/hooks";
import { askProvider, problem as lastProblem, leaveForProvider, type Provider } from "./provider";
import { session } from "./session";
import type { Survey } from "./survey";

interface SignInProps {
  /** What the server said of the token; without a token it speaks to programs. */
  reason: string;
  onCancel?: (() => void) | undefined;
}

export function SignIn({ reason, onCancel }: SignInProps) {
  // The field keeps its text itself: drawings come a frame late, and nobody waits for them.
  const field = useRef<HTMLInputElement>(null);
  const [problem, setProblem] = useState(lastProblem);
  const submit = (event: Event): void => {
    event.preventDefault();
    const wrong = session.signIn(field.current?.value ?? "");
    setProblem(wrong);
    if (wrong) return;
    if (field.current) field.current.value = "";
    onCancel?.();
  };
  return (
    <form class="signin" aria-label="Sign in" onSubmit={submit}>
      <h2>Sign in</h2>
      {reason && session.signedIn && <p role="alert">{reason}</p>}
      <p>The page shows what your account in the cluster may see.</p>
      <ByProvider onProblem={setProblem} />
      <h3>With a token</h3>
      <p>Sign in with a token of your account in the cluster. This command prints the token of a service account:</p>
      <pre>kubectl create token ACCOUNT -n NAMESPACE</pre>
      <label>
        Token{" "}
        <input
          type="password"
          autocomplete="off"
          spellcheck={false}
          ref={field}
          aria-invalid={problem !== ""}
          aria-describedby="token-note"
        />
      </label>
      {problem && (
        <p class="warn" role="alert">
          {problem}
        </p>
      )}
      <p>
        <button type="submit" class="main">
          Sign in
        </button>{" "}
        {onCancel && (
          <button type="button" onClick={onCancel}>
            Cancel
          </button>
        )}
      </p>
      <p id="token-note" class="quiet">
        The token stays in this tab until you close it or sign out. It is sent to this page's server only, and never
        stands in an address.
      </p>
    </form>
  );
}

/** The way by the cluster's provider, where there is one. */
function ByProvider({ onProblem }: { onProblem: (problem: string) => void }) {
  const [provider, setProvider] = useState<Provider | undefined>();
  useEffect(() => void askProvider().then(setProvider), []);
  if (!provider) return null;
  return (
    <p>
      <button type="button" class="main" onClick={() => void leaveForProvider(provider).then(onProblem)}>
        Sign in by {new URL(provider.issuer).host}
      </button>
    </p>
  );
}

/** Says which names are hidden, and what would show them. */
export function HiddenNames({ found, onSignIn }: { found: Survey; onSignIn: () => void }) {
  if (!found.hidesNodes && !found.hidesPods) return null;
  const what = [
    found.hidesNodes && "nodes, since you may not list nodes",
    found.hidesPods && "pods, since you may not list pods in their namespaces",
  ].filter(Boolean);
  return (
    <p class="note">
      Names that start with ~ are hidden: names of {what.join("; and of ")}. Texts about them are left out.{" "}
      {session.signedIn ? (
        "An administrator can give you the right to list them; the ClusterRole view has it for the pods of a namespace."
      ) : (
        <button type="button" onClick={onSignIn}>
          Sign in to see your names
        </button>
      )}
    </p>
  );
}
