// The official TypeScript SDK 2.x, which speaks both eras.

import { capabilities, elicited, load, run, sampled } from "./visit.mjs";

const { Client, SSEClientTransport, StreamableHTTPClientTransport } = await load(
  "@modelcontextprotocol/client",
);

await run(async ({ url, transport: kind, era, answer }) => {
  const transport =
    kind === "sse" ? new SSEClientTransport(url) : new StreamableHTTPClientTransport(url);
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
  await client.connect(transport);
  return {
    client,
    protocol: client.getNegotiatedProtocolVersion() ?? null,
    call: (request, onprogress) => client.callTool(request, { onprogress }),
  };
});
