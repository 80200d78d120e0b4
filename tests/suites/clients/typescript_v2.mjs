// The official TypeScript SDK 2.x, which speaks both eras.

import { capabilities, elicited, load, run, sampled, transport } from "./visit.mjs";

const { Client, SSEClientTransport, StreamableHTTPClientTransport } = await load(
  "@modelcontextprotocol/client",
);

const { StdioClientTransport } = await load("@modelcontextprotocol/client/stdio");

const transports = {
  http: StreamableHTTPClientTransport,
  sse: SSEClientTransport,
  stdio: StdioClientTransport,
};

await run(async (target) => {
  const { era, answer } = target;
  const client = new Client(
    { name: "typescript-v2", version: "1.0.0" },
    {
      capabilities: capabilities(answer),
      versionNegotiation: { mode: era === "modern" ? { pin: "2026-07-28" } : era },
    },
  );
  if (answer !== undefined) {
    client.setRequestHandler("elicitation/create", () => elicited(answer));
    client.setRequestHandler("sampling/createMessage", () => sampled(answer));
  }
  await client.connect(transport(target, transports));
  return {
    client,
    protocol: client.getNegotiatedProtocolVersion() ?? null,
    call: (request, onprogress) => client.callTool(request, { onprogress }),
  };
});
