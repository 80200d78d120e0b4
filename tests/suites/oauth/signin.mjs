// A sign-in by the official TypeScript SDK: `signin.py` says what it does and prints.
//
//     signin.mjs v1|v2 URL TOOL

import { createServer } from "node:http";
import { load } from "../clients/visit.mjs";

const [version, url, tool] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } =
  version === "v1"
    ? {
        ...(await load("@modelcontextprotocol/sdk/client/index.js")),
        ...(await load("@modelcontextprotocol/sdk/client/streamableHttp.js")),
        ...(await load("@modelcontextprotocol/sdk/client/auth.js")),
      }
    : await load("@modelcontextprotocol/client");

// Where the browser comes back to.
let arrived;
const callback = new Promise((resolve) => (arrived = resolve));
const server = createServer((request, response) => {
  response.end("signed in");
  arrived(new URL(request.url, "http://127.0.0.1").searchParams);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const redirectUrl = `http://127.0.0.1:${server.address().port}/callback`;

const kept = {};
const expectedState = crypto.randomUUID();
const provider = {
  get redirectUrl() {
    return redirectUrl;
  },
  get clientMetadata() {
    return {
      client_name: `TypeScript SDK ${version}`,
      redirect_uris: [redirectUrl],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
      token_endpoint_auth_method: "none",
    };
  },
  state: () => expectedState,
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  redirectToAuthorization: (page) => console.error(`visit ${page}`),
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  discoveryState: () => kept.discovery,
  saveDiscoveryState: (discovery) => (kept.discovery = discovery),
};

const newClient = () => new Client({ name: `typescript-${version}`, version: "1.0.0" });
const newTransport = () => new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });

let client = newClient();
let transport = newTransport();
try {
  await client.connect(transport);
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
  const answer = await callback;
  if (answer.get("state") !== expectedState) throw new Error("another state came back");
  if (!answer.get("code")) throw new Error(`no code: ${answer}`);
  await transport.finishAuth(answer.get("code"), answer.get("iss") ?? undefined);
  client = newClient();
  transport = newTransport();
  await client.connect(transport);
}
const { tools } = await client.listTools();
const call = async (text) => {
  const result = await client.callTool({ name: tool, arguments: { text } });
  return result.content[0].text;
};
const first = await call("first");
// The access token is no longer good: the SDK refreshes.
const before = kept.tokens;
kept.tokens = { ...before, access_token: "expired" };
const second = await call("second");
const report = {
  tools: tools.map(({ name }) => name),
  said: [first, second],
  registered: kept.client.client_id,
  refreshed: kept.tokens.access_token !== "expired" && kept.tokens.access_token !== before.access_token,
  rotated: kept.tokens.refresh_token !== before.refresh_token,
};
process.stdout.write(`${JSON.stringify(report)}\n`, () => process.exit());
