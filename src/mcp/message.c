#include "mcp/message.h"

#include "util/buf.h"
#include "util/utf8.h"

#include <stdbool.h>
#include <string.h>

static bool is_id(const json_t *v)
{
    return json_is_string(v) || json_is_integer(v);
}

static int read_message(struct mcp_message *m, const char **why)
{
    json_t *id = json_object_get(m->root, "id");
    const json_t *version = json_object_get(m->root, "jsonrpc");
    const json_t *method = json_object_get(m->root, "method");
    m->id = is_id(id) ? id : NULL;
    if (!version || !json_is_string(version) || strcmp(json_string_value(version), "2.0") != 0) {
        *why = "\"jsonrpc\" must be \"2.0\"";
        return MCP_INVALID;
    }
    if (!method && (json_object_get(m->root, "result") || json_object_get(m->root, "error")))
        return 0;
    if (!json_is_string(method)) {
        *why = "\"method\" must be a string";
        return MCP_INVALID;
    }
    if (id && !m->id) {
        *why = "\"id\" must be a string or an integer";
        return MCP_INVALID;
    }
    m->method = json_string_value(method);
    m->params = json_object_get(m->root, "params");
    if (m->params && !json_is_object(m->params)) {
        *why = "\"params\" must be an object";
        return MCP_PARAMS;
    }
    return 0;
}

int mcp_message_parse(const char *text, size_t n, struct mcp_message *m, const char **why)
{
    *m = (struct mcp_message){
        .root =
            json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)};
    if (!m->root) {
        *why = "invalid JSON";
        return MCP_PARSE;
    }
    if (!json_is_object(m->root)) {
        *why = "a message must be one JSON object";
        return MCP_INVALID;
    }
    return read_message(m, why);
}

void mcp_message_free(struct mcp_message *m)
{
    json_decref(m->root);
    *m = (struct mcp_message){0};
}

static json_t *id_or_null(const json_t *id)
{
    return id ? json_incref((json_t *)id) : json_null();
}

json_t *mcp_result(const json_t *id, json_t *result)
{
    return result ? json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "id", id_or_null(id), "result",
                              result)
                  : NULL;
}

json_t *mcp_error(const json_t *id, int code, const char *text, json_t *data)
{
    json_t *e = json_pack("{s:i, s:s}", "code", code, "message", text);
    if (e && data && json_object_set_new(e, "data", data) < 0) {
        json_decref(e);
        return NULL;
    }
    return e ? json_pack("{s:s, s:o, s:o}", "jsonrpc", "2.0", "id", id_or_null(id), "error", e)
             : NULL;
}

json_t *mcp_notification(const char *method, json_t *params)
{
    return params
               ? json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0", "method", method, "params", params)
               : NULL;
}

json_t *mcp_text(const void *p, size_t n)
{
    static const char replacement[] = "\xef\xbf\xbd";
    const uint8_t *s = p;
    AUTO_BUF struct buf b = {.limit = 3 * n + 1};
    int r = 0;
    while (n > 0 && r == 0) {
        uint32_t cp;
        int len = utf8_char(s, n, &cp);
        if (len > 0)
            r = buf_append(&b, s, (size_t)len);
        else
            r = buf_append(&b, replacement, 3);
        s += len > 0 ? len : 1;
        n -= len > 0 ? (size_t)len : 1;
    }
    return r < 0 ? NULL : json_stringn(buf_len(&b) ? (const char *)buf_head(&b) : "", buf_len(&b));
}
