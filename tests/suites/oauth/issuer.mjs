// The certified issuer of the suite: oidc-provider, with pages where anybody may log in.
//
//     issuer.mjs PORT AUDIENCE_PREFIX LOGIN_REDIRECT_URI
//
// It registers clients by themselves, wants PKCE, issues JWTs for resources whose URL begins with the
// prefix, and rotates refresh tokens. The client `gateway` with the secret `gateway-secret` is for the
// login of Tollbridge. It says on standard error which refresh tokens were used.

import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.env.MCP_CLIENTS, "package.json"));
const { Provider, errors } = await import(pathToFileURL(require.resolve("oidc-provider")));

const [port, prefix, loginRedirect] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const scopes = ["tools:read", "tools:call"];

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "gateway",
      client_secret: "gateway-secret",
      redirect_uris: [loginRedirect],
      grant_types: ["authorization_code", "refresh_token"],
      // Without TLS a web client may not be sent back to loopback.
      application_type: "native",
    },
  ],
  // Most clients do not say that they are native, and without TLS they have to be.
  clientDefaults: { application_type: "native", grant_types: ["authorization_code", "refresh_token"] },
  scopes: ["openid", "offline_access", ...scopes],
  claims: { openid: ["sub"], profile: ["name", "groups"], email: ["email"] },
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  // Refresh tokens also for clients that do not ask for `offline_access`.
  issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed("refresh_token"),
  rotateRefreshToken: true,
  findAccount: async (_ctx, id) => ({
    accountId: id,
    claims: async () => ({
      sub: id,
      name: `${id} of the suite`,
      email: `${id}@example.com`,
      groups: ["eng-suite"],
    }),
  }),
  cookies: { keys: ["a key of the suite"] },
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: async () => undefined,
      useGrantedResource: async () => true,
      getResourceServerInfo: async (_ctx, resource) => {
        if (!resource.startsWith(prefix)) throw new errors.InvalidTarget();
        return {
          scope: scopes.join(" "),
          audience: resource,
          accessTokenTTL: 3600,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        };
      },
    },
  },
  ttl: { AccessToken: 3600, Grant: 86400, Interaction: 600, RefreshToken: 86400, Session: 86400 },
});
for (const event of ["authorization.error", "grant.error", "registration_create.error", "server_error"]) {
  provider.on(event, (_ctx, error) => console.error(event, error.error ?? "", error.error_description ?? error));
}
provider.on("grant.success", (ctx) => console.error("granted", ctx.oidc.params.grant_type));

createServer(provider.callback()).listen(Number(port), "127.0.0.1", () => {
  console.log(`listening on ${issuer}`);
});
