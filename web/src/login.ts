// The authorization code flow with PKCE, by oauth4webapi: the page is a public client, so there is no secret to keep.
//
// Verifier, state and nonce are for one attempt: they stay in this tab's sessionStorage until the provider's answer
// comes, and are removed before it is judged. The ID token goes to the API server, which checks its signature.

import * as oauth from "oauth4webapi";
import type { Provider } from "./provider";

const KEY = "tessera-login";

interface Attempt {
  verifier: string;
  state: string;
  nonce: string;
  hash: string;
}

/** Where the provider sends the visitor back to. */
function redirection(): string {
  return `${location.origin}/`;
}

/** The server lets plain HTTP through for a provider on this machine alone. */
function options({ issuer }: Provider) {
  return { [oauth.allowInsecureRequests]: new URL(issuer).protocol === "http:" };
}

async function discover(provider: Provider): Promise<oauth.AuthorizationServer> {
  const issuer = new URL(provider.issuer);
  return oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, options(provider)));
}

/** Sends the visitor to the provider. */
export async function begin(provider: Provider): Promise<void> {
  const { authorization_endpoint: endpoint } = await discover(provider);
  if (!endpoint) throw new Error("it names no authorization endpoint");
  const attempt: Attempt = {
    verifier: oauth.generateRandomCodeVerifier(),
    state: oauth.generateRandomState(),
    nonce: oauth.generateRandomNonce(),
    hash: location.hash,
  };
  const address = new URL(endpoint);
  const asked = {
    response_type: "code",
    client_id: provider.clientId,
    redirect_uri: redirection(),
    scope: provider.scope,
    state: attempt.state,
    nonce: attempt.nonce,
    code_challenge: await oauth.calculatePKCECodeChallenge(attempt.verifier),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(asked)) address.searchParams.set(name, value);
  sessionStorage.setItem(KEY, JSON.stringify(attempt));
  location.assign(address);
}

/** What is wrong, with the provider's code for it; its free text may be anybody's, since an address can be made up. */
function refusal(error: unknown): unknown {
  const told = error instanceof oauth.AuthorizationResponseError || error instanceof oauth.ResponseBodyError;
  return told && /^\w{1,64}$/.test(error.error) ? new Error(`it answers ${error.error}`) : error;
}

/**
 * The ID token for the provider's answer, and the part of the address that the visitor had.
 *
 * @param address the address that the provider sent the visitor to.
 */
export async function finish(provider: Provider, address: URL): Promise<{ token: string; hash: string }> {
  const kept = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  if (kept === null) throw new Error("it was begun in another tab, or is over already; sign in again");
  const attempt = JSON.parse(kept) as Attempt;
  try {
    return { token: await exchange(provider, address, attempt), hash: attempt.hash };
  } catch (error) {
    throw refusal(error);
  }
}

async function exchange(provider: Provider, address: URL, attempt: Attempt): Promise<string> {
  const server = await discover(provider);
  const client: oauth.Client = { client_id: provider.clientId };
  const answer = oauth.validateAuthResponse(server, client, address, attempt.state);
  const response = await oauth.authorizationCodeGrantRequest(
    server,
    client,
    oauth.None(),
    answer,
    redirection(),
    attempt.verifier,
    options(provider),
  );
  const { id_token: token } = await oauth.processAuthorizationCodeResponse(server, client, response, {
    expectedNonce: attempt.nonce,
    requireIdToken: true,
  });
  if (!token) throw new Error("it gave no ID token");
  return token;
}
