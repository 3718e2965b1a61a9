// The official client of the Model Context Protocol, driven by test_mcp.py:
//
//     node mcp_client.mjs PACKAGES MODE COMMAND [ARGUMENT...]
//
// starts COMMAND as a server, then answers one JSON object a line on standard input, each naming
// something to do, with one on standard output. MODE is "handshake" (package sdk) or "stateless"
// (package client, protocol revision 2026-07-28 and no other).
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, mode, command, ...args] = process.argv.slice(2);
const require = createRequire(packages + "/");
const load = (name) => import(pathToFileURL(require.resolve(name)).href);

async function connect() {
    const stateless = mode === "stateless";
    const base = stateless ? "@modelcontextprotocol/client" : "@modelcontextprotocol/sdk/client";
    const { Client } = await load(stateless ? base : base + "/index.js");
    const { StdioClientTransport } = await load(base + (stateless ? "/stdio" : "/stdio.js"));
    const options = stateless ? { versionNegotiation: { mode: { pin: "2026-07-28" } } } : {};
    const client = new Client({ name: "test", version: "1" }, options);
    const transport = new StdioClientTransport({ command, args, env: process.env });
    await client.connect(transport);
    return client;
}

const client = await connect();
const aborts = new Map();

async function act(request) {
    const { op } = request;
    if (op === "server") {
        return { version: client.getServerVersion(), capabilities: client.getServerCapabilities(),
                 instructions: client.getInstructions() };
    }
    if (op === "tools") {
        return (await client.listTools()).tools;
    }
    if (op === "abort") {
        aborts.get(request.key).abort("the test says so");
        return {};
    }
    if (op === "close") {
        await client.close();
        return {};
    }
    const progress = [];
    const options = { timeout: 60000, onprogress: (p) => progress.push(p) };
    if (request.key) {
        const abort = new AbortController();
        aborts.set(request.key, abort);
        options.signal = abort.signal;
    }
    const call = { name: request.tool, arguments: request.arguments };
    const result = mode === "stateless" ? await client.callTool(call, options)
                                        : await client.callTool(call, undefined, options);
    return { ...result, progress };
}

for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    const answer = (fields) => console.log(JSON.stringify({ seq: request.seq, ...fields }));
    act(request).then((result) => answer({ result }), (e) => answer({ error: String(e.message ?? e) }));
}
process.exit(0);
