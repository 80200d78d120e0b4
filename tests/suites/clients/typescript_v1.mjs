// The official TypeScript SDK 1.x, which knows the revisions up to 2025-11-25.

import { capabilities, elicited, load, run, sampled } from "./visit.mjs";

const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { SSEClientTransport } = await load("@modelcontextprotocol/sdk/client/sse.js");
const { StreamableHTTPClientTransport } = await load(
  "@modelcontextprotocol/sdk/client/streamableHttp.js",
);
const { CreateMessageRequestSchema, ElicitRequestSchema } = await load(
  "@modelcontextprotocol/sdk/types.js",
);

await run(async ({ url, transport: kind, answer }) => {
  const transport =
    kind === "sse" ? new SSEClientTransport(url) : new StreamableHTTPClientTransport(url);
  const client = new Client(
    { name: "typescript-v1", version: "1.0.0" },
    { capabilities: capabilities(answer) },
  );
  if (answer !== undefined) {
    client.setRequestHandler(ElicitRequestSchema, () => elicited(answer));
    client.setRequestHandler(CreateMessageRequestSchema, () => sampled(answer));
  }
  await client.connect(transport);
  return {
    client,
    // The transport over SSE keeps to itself what was negotiated.
    protocol: transport.protocolVersion ?? null,
    call: (request, onprogress) => client.callTool(request, undefined, { onprogress }),
  };
});
