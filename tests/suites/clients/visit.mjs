// What every driver in JavaScript does once its client is connected: `visit.py` for the other
// language, which says what a plan and a report are. The Client classes of both major versions of
// the official SDK have the methods used here.
//
// The SDKs are found in the directory that MCP_CLIENTS names, where `clients.py` put them.

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

// Generous: the longest step of any plan takes a second, but the machine may have other work.
const CONNECT_MS = 30_000;
const STEP_MS = 20_000;
// A gateway that a client starts itself has all servers to start before its first list.
const LIST_MS = 60_000;

const require = createRequire(join(process.env.MCP_CLIENTS, "package.json"));

// Imports a module of an SDK by its name.
export async function load(name) {
  return import(pathToFileURL(require.resolve(name)));
}

// A transport to where the target is, of the classes of an SDK.
export function transport({ where, transport: kind }, { http, sse, stdio }) {
  if (kind === "http") return new http(new URL(where));
  if (kind === "sse") return new sse(new URL(where));
  return new stdio({ command: "/bin/sh", args: ["-c", `exec ${where}`] });
}

// Does what the command line asks for. `connect` takes what to connect to, and gives the connected
// `client`, its `protocol` and `call`, which calls a tool and hears of its progress.
export async function run(connect) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      plan: { type: "string" },
      transport: { type: "string", default: "http" },
      era: { type: "string", default: "legacy" },
    },
  });
  const plan = JSON.parse(await readFile(values.plan, "utf8"));
  const [where] = positionals;
  const target = { ...values, where, answer: plan.answer };
  const report = await visit(target, plan.rounds, connect);
  // A stream that is still open does not keep the program.
  process.stdout.write(`${JSON.stringify(report)}\n`, () => process.exit());
}

async function visit(target, rounds, connect) {
  const report = {
    protocol: null,
    tools: [],
    resources: [],
    templates: [],
    prompts: [],
    calls: {},
    progress: {},
    errors: [],
  };
  const connected = await attempt("connection", report, CONNECT_MS, () => connect(target));
  if (connected === undefined) return report;
  report.protocol = connected.protocol;
  await lookAround(connected.client, report);
  for (const steps of rounds) {
    await Promise.all(steps.map((step) => take(step, connected, report)));
  }
  await attempt("disconnection", report, CONNECT_MS, () => connected.client.close());
  return report;
}

async function lookAround(client, report) {
  const lists = {
    tools: [() => client.listTools(), "tools"],
    resources: [() => client.listResources(), "resources"],
    templates: [() => client.listResourceTemplates(), "resourceTemplates"],
    prompts: [() => client.listPrompts(), "prompts"],
  };
  for (const [name, [request, member]] of Object.entries(lists)) {
    const page = await attempt(`list of ${name}`, report, LIST_MS, request);
    if (page === undefined) continue;
    report[name] = page[member];
    if (page.nextCursor) report.errors.push(`list of ${name}: it has a second page`);
  }
}

async function take(step, { client, call }, report) {
  const given = step.arguments ?? {};
  const result = await attempt(step.label, report, STEP_MS, () => {
    if (step.resource) return client.readResource({ uri: step.resource });
    if (step.prompt) return client.getPrompt({ name: step.prompt, arguments: given });
    return call({ name: step.tool, arguments: given }, ({ progress, total }) => {
      (report.progress[step.label] ??= []).push([progress, total ?? null]);
    });
  });
  if (result !== undefined) report.calls[step.label] = result;
}

// Of an SDK's Client: the capabilities that answering takes.
export function capabilities(answer) {
  return answer === undefined ? {} : { elicitation: {}, sampling: {} };
}

// What a user who is asked, or a model, gives back.
export function elicited(answer) {
  return { action: "accept", content: { answer } };
}

export function sampled(answer) {
  return { role: "assistant", model: "none", content: { type: "text", text: answer } };
}

// What `work` gives, or undefined once it has failed and that is in the report.
async function attempt(label, report, limit, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${limit} ms`)), limit);
  });
  try {
    return await Promise.race([work(), late]);
  } catch (error) {
    report.errors.push(`${label}: ${error}`);
    return undefined;
  } finally {
    clearTimeout(timer);
  }
}
