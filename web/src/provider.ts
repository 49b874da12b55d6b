// The cluster's OpenID Connect provider, by which visitors may sign in besides pasting a token. What it takes to do so
// is loaded when somebody does.

import { session } from "./session";

/** The provider, and this page as its client. Nothing of it is secret. */
export interface Provider {
  issuer: string;
  clientId: string;
  scope: string;
}

const MODULE = "/assets/login.js";
type Login = typeof import("./login");

/** What was wrong with the last attempt. */
export let problem = "";

/** The provider of this page; undefined where an administrator names none. */
export async function askProvider(): Promise<Provider | undefined> {
  try {
    const response = await fetch("/login", { cache: "no-store" });
    const found = response.ok ? ((await response.json()) as Provider | null) : null;
    return found ?? undefined;
  } catch {
    return undefined;
  }
}

/** Leaves for the provider; returns what is wrong if that cannot be. */
export async function leaveForProvider(provider: Provider): Promise<string> {
  if (!isSecureContext) return "Signing in this way needs HTTPS; open the page by https:// or as localhost.";
  try {
    const { begin } = (await import(MODULE)) as Login;
    await begin(provider);
    return "";
  } catch (error) {
    return say(error, provider);
  }
}

/** Signs in if the provider has just sent the visitor back; leaves nothing of its answer in the address. */
export async function returnFromProvider(): Promise<void> {
  const address = new URL(location.href);
  const { searchParams: answer } = address;
  if (!answer.has("state") || !(answer.has("code") || answer.has("error"))) return;
  history.replaceState(null, "", "/");
  const provider = await askProvider();
  if (!provider) return;
  try {
    const { finish } = (await import(MODULE)) as Login;
    const { token, hash } = await finish(provider, address);
    history.replaceState(null, "", `/${hash}`);
    problem = session.signIn(token);
  } catch (error) {
    problem = say(error, provider);
  }
}

function say(error: unknown, { issuer }: Provider): string {
  return `Signing in by ${issuer} failed: ${error instanceof Error ? error.message : String(error)}.`;
}
