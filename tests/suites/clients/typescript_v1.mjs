// The official TypeScript SDK 1.x, which knows the revisions up to 2025-11-25.

import { capabilities, elicited, load, run, sampled, transport } from "./visit.mjs";

const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { SSEClientTransport } = await load("@modelcontextprotocol/sdk/client/sse.js");
const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = await load(
  "@modelcontextprotocol/sdk/client/streamableHttp.js",
);
const { CreateMessageRequestSchema, ElicitRequestSchema } = await load(
  "@modelcontextprotocol/sdk/types.js",
);

const transports = {
  http: StreamableHTTPClientTransport,
  sse: SSEClientTransport,
  stdio: StdioClientTransport,
};

await run(async (target) => {
  const { answer } = target;
  const way = transport(target, transports);
  const client = new Client(
    { name: "typescript-v1", version: "1.0.0" },
    { capabilities: capabilities(answer) },
  );
  if (answer !== undefined) {
    client.setRequestHandler(ElicitRequestSchema, () => elicited(answer));
    client.setRequestHandler(CreateMessageRequestSchema, () => sampled(answer));
  }
  await client.connect(way);
  return {
    client,
    // Only the transport over streamable HTTP says what was negotiated.
    protocol: way.protocolVersion ?? null,
    call: (request, onprogress) => client.callTool(request, undefined, { onprogress }),
  };
});
