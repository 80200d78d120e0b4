// The client that the conformance suite runs against its own mock servers: the TypeScript SDK,
// directly or with Tollbridge in between.
//
//   node client_driver.mjs [--through BINARY] MOCK_URL
//
// `conformance.py` starts the suite, and the suite starts this program once for each scenario. The
// suite appends the URL and names the scenario and the revision in MCP_CONFORMANCE_SCENARIO and
// MCP_CONFORMANCE_PROTOCOL_VERSION. With `--through` the program starts Tollbridge with the mock
// server as its only backend and talks to that instead.
//
// The SDK is found in the directory that GATEWAY_SUITES names, where `conformance.py` put it.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

// Together less than the time that conformance.py gives the suite for a scenario.
const STARTUP_MS = 15_000;
const PLAY_MS = 25_000;
const STOP_MS = 10_000;

const scenario = process.env.MCP_CONFORMANCE_SCENARIO;
const revision = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION;
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? "{}");
const require = createRequire(join(process.env.GATEWAY_SUITES, "package.json"));
const sdk = await import(pathToFileURL(require.resolve("@modelcontextprotocol/client")));

// What a client does in each scenario once it is connected. The order of the calls is the suite's
// where it looks at the order.
const scripts = {
  initialize: listTools,

  tools_call: callEveryTool,

  "elicitation-sep1034-client-defaults": callEveryTool,

  "sse-retry": callEveryTool,

  "request-metadata": listTools,

  "http-standard-headers": async (client) => {
    await callEveryTool(client);
    for (const { uri } of (await client.listResources()).resources) {
      await client.readResource({ uri });
    }
    for (const { name } of (await client.listPrompts()).prompts) {
      await client.getPrompt({ name });
    }
  },

  "http-custom-headers": async (client) => {
    await listTools(client);
    for (const call of context.toolCalls) {
      await client.callTool(call);
    }
  },

  "http-invalid-tool-headers": callEveryTool,

  "sep-2322-client-request-state": async (client) => {
    for (const { name } of await listTools(client)) {
      const call = client.callTool({ name });
      // The mock leaves out resultType here. The suite wants to see no second call; that the SDK
      // gives its caller an error is its own matter.
      await (name === "test_mrtr_no_result_type" ? call.catch(() => {}) : call);
    }
  },

  // The mock server knows no tools/call here: what counts is that nobody follows the schema's $ref.
  "json-schema-ref-no-deref": listTools,

  "json-schema-2020-12-preservation": async (client) => {
    const tool = (await listTools(client)).find(({ name }) => name === "json_schema_2020_12_tool");
    await client.callTool({ name: "json_schema_echo", arguments: { schema: tool.inputSchema } });
  },
};

async function listTools(client) {
  return (await client.listTools()).tools;
}

async function callEveryTool(client) {
  for (const { name, inputSchema } of await listTools(client)) {
    await client.callTool({ name, arguments: exampleOf(inputSchema) });
  }
}

function exampleOf(schema) {
  const examples = { boolean: true, integer: 2, number: 2, string: "example" };
  const properties = Object.entries(schema.properties ?? {});
  return Object.fromEntries(properties.map(([name, { type }]) => [name, examples[type] ?? null]));
}

async function connect(url) {
  const modern = revision >= "2026-07-28";
  const client = new sdk.Client(
    { name: "tollbridge-conformance-driver", version: "1.0.0" },
    {
      capabilities: { elicitation: { form: { applyDefaults: true } }, roots: {}, sampling: {} },
      versionNegotiation: { mode: modern ? { pin: revision } : "legacy" },
    },
  );
  // The SDK adds the defaults of the form; a field without one is not required by any scenario.
  client.setRequestHandler("elicitation/create", () => ({ action: "accept", content: {} }));
  client.setRequestHandler("roots/list", () => ({ roots: [] }));
  await client.connect(new sdk.StreamableHTTPClientTransport(new URL(url)));
  return client;
}

// Runs `work` with the URL of a Tollbridge in front of `mock`, and ends Tollbridge afterwards.
async function throughTollbridge(binary, mock, work) {
  const home = await mkdtemp(join(tmpdir(), "tollbridge-client-"));
  const config = join(home, "config.toml");
  await writeFile(config, `[servers.mock]\nurl = ${JSON.stringify(mock)}\ntransport = "http"\n`);
  const gateway = spawn(binary, ["serve", "--config", config, "--listen", "127.0.0.1:0"], {
    env: { ...process.env, HOME: home, TOLLBRIDGE_DATA_DIR: join(home, "data") },
    stdio: ["ignore", "pipe", "inherit"],
  });
  try {
    const base = await firstLine(gateway);
    return await work(`${base}/mcp/servers/mock`);
  } finally {
    await stop(gateway);
    await rm(home, { recursive: true, force: true });
  }
}

async function firstLine(gateway) {
  const late = AbortSignal.timeout(STARTUP_MS);
  const ended = once(gateway, "exit", { signal: late }).then(([code]) => {
    throw new Error(`tollbridge ended with ${code} before it listened`);
  });
  const lines = createInterface({ input: gateway.stdout });
  const said = once(lines, "line", { signal: late }).then(([line]) => {
    const [, url] = /^listening on (http:\/\/\S+)/.exec(line) ?? [];
    if (url === undefined) throw new Error(`not the line of a listening tollbridge: ${line}`);
    return url;
  });
  // Whoever loses the race may fail later, unheard.
  ended.catch(() => {});
  said.catch(() => {});
  return Promise.race([said, ended]);
}

async function stop(gateway) {
  if (gateway.exitCode !== null || gateway.signalCode !== null) return;
  const ended = once(gateway, "exit");
  gateway.kill("SIGTERM");
  const impatience = setTimeout(() => gateway.kill("SIGKILL"), STOP_MS);
  await ended;
  clearTimeout(impatience);
}

async function play(url) {
  const late = once(AbortSignal.timeout(PLAY_MS), "abort").then(() => {
    throw new Error(`${scenario} is not over after ${PLAY_MS} ms`);
  });
  const played = connect(url).then(async (client) => {
    await scripts[scenario](client);
    await client.close();
  });
  await Promise.race([played, late]);
}

const words = process.argv.slice(2);
const mock = words.pop();
const ending = words[0] === "--through" ? throughTollbridge(words[1], mock, play) : play(mock);
await ending.catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
// A call that hangs, or a stream that is still open, does not keep the program.
process.exit();
