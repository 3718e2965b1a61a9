/* JSON-RPC 2.0 as MCP uses it: one message per line, requests and notifications in, results, errors
 * and notifications out. The input is untrusted. */
#pragma once

#include <jansson.h>
#include <stddef.h>

enum {
    MCP_LINE_MAX = 8 << 20, /* a message; write_file carries whole files */
};

enum mcp_error {
    MCP_PARSE = -32700,
    MCP_INVALID = -32600,
    MCP_NO_METHOD = -32601,
    MCP_PARAMS = -32602,
    MCP_INTERNAL = -32603,
    MCP_VERSION = -32022, /* a protocol version that we do not support */
};

struct mcp_message {
    json_t *root; /* owns all of it */
    json_t *id;   /* string or integer; NULL: a notification */
    const char *method;
    json_t *params; /* an object, or NULL */
};

/* 0, or an enum mcp_error with *why set; m->id is set even then if it could be read. Free it
 * (mcp_message_free) in any case. For a response, which we never ask for: 0, with no method. */
int mcp_message_parse(const char *text, size_t n, struct mcp_message *m, const char **why);
void mcp_message_free(struct mcp_message *m);

/* New references. NULL when out of memory. */
json_t *mcp_result(const json_t *id, json_t *result);                          /* takes result */
json_t *mcp_error(const json_t *id, int code, const char *text, json_t *data); /* takes data */
json_t *mcp_notification(const char *method, json_t *params);                  /* takes params */

/* Untrusted text as a JSON string: anything that is not UTF-8 becomes U+FFFD. */
json_t *mcp_text(const void *p, size_t n);
