#include "logs/net_record.h"

#include "util/cleanup.h"
#include "util/json.h"
#include "util/parse.h"
#include "util/text.h"
#include "util/utf8.h"
#include "util/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"flow", "question", "shown", "ended", "missed", "secret"};
static const char *const verdicts[] = {"-", "allow", "deny"};

const char *net_record_kind_name(enum net_record_kind k)
{
    return kinds[k];
}

void net_record_escape(const char *s, char *out, size_t size)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        bool plain = c >= 0x20 && c < 0x7f && c != '\\';
        if (n + (plain ? 1 : 4) >= size)
            break;
        if (plain) {
            out[n++] = (char)c;
            continue;
        }
        out[n++] = '\\';
        out[n++] = 'x';
        out[n++] = hex[c >> 4];
        out[n++] = hex[c & 0xf];
    }
    out[n] = '\0';
}

/* --- reading --- */

static void take_text(const json_t *j, const char *key, char *to, size_t size)
{
    const char *s = json_string_value(json_object_get(j, key));
    (void)snprintf(to, size, "%s", s ? s : "");
    utf8_defuse(to); /* cutting may have split a character */
}

static uint64_t take_number(const json_t *j, const char *key, uint64_t otherwise)
{
    json_t *v = json_object_get(j, key);
    json_int_t i = json_integer_value(v);
    return json_is_integer(v) && i >= 0 ? (uint64_t)i : otherwise;
}

int net_record_read(const struct log_entry *e, struct net_record *ret)
{
    const json_t *j = e->json;
    *ret = (struct net_record){.t_ns = e->t_ns};
    int kind = WORD_FIND(kinds, json_string_value(json_object_get(j, "kind")));
    if (kind < 0)
        return kind;
    ret->kind = (enum net_record_kind)kind;
    int verdict = WORD_FIND(verdicts, json_string_value(json_object_get(j, "verdict")));
    ret->verdict = verdict < 0 ? NET_RECORD_NONE : (enum net_record_verdict)verdict;
    const char *direction = json_string_value(json_object_get(j, "direction"));
    ret->has_flow = direction != NULL;
    if (ret->has_flow) {
        ret->ingress = strcmp(direction, "ingress") == 0;
        take_text(j, "proto", ret->proto, sizeof(ret->proto));
        take_text(j, "address", ret->address, sizeof(ret->address));
        uint64_t port = take_number(j, "port", 0);
        ret->port = port <= UINT16_MAX ? (uint16_t)port : 0;
    }
    take_text(j, "name", ret->name, sizeof(ret->name));
    take_text(j, "why", ret->why, sizeof(ret->why));
    ret->to_host = take_number(j, "to_host", 0);
    ret->to_guest = take_number(j, "to_guest", 0);
    ret->ms = take_number(j, "ms", 0);
    ret->count = MAX(take_number(j, "count", 1), 1);
    return 0;
}

/* --- showing --- */

json_t *net_record_json(const struct net_record *r)
{
    char t[TIME_TEXT_MAX];
    json_t *j = json_object();
    time_rfc3339(r->t_ns, t);
    json_put(&j, "t", json_string(t));
    json_put(&j, "kind", json_string(kinds[r->kind]));
    if (r->verdict != NET_RECORD_NONE)
        json_put(&j, "verdict", json_string(verdicts[r->verdict]));
    if (r->has_flow) {
        json_put(&j, "direction", json_string(r->ingress ? "ingress" : "egress"));
        json_put(&j, "proto", json_string(r->proto));
        json_put(&j, "address", json_string(r->address));
    }
    if (r->has_flow && r->port)
        json_put(&j, "port", json_integer(r->port));
    if (r->name[0])
        json_put(&j, "name", json_string(r->name));
    if (r->why[0])
        json_put(&j, "why", json_string(r->why));
    if (r->kind == NET_RECORD_ENDED) {
        json_put(&j, "to_host", json_integer((json_int_t)r->to_host));
        json_put(&j, "to_guest", json_integer((json_int_t)r->to_guest));
        json_put(&j, "ms", json_integer((json_int_t)r->ms));
    }
    if (r->count > 1)
        json_put(&j, "count", json_integer((json_int_t)r->count));
    return j;
}

void net_record_peer(const struct net_record *r, char *out, size_t size)
{
    char port[16] = "";
    bool v6 = strchr(r->address, ':') != NULL;
    if (!r->has_flow) {
        (void)snprintf(out, size, "%s%.255s", r->name[0] ? "? " : "", r->name);
        return;
    }
    if (r->port)
        (void)snprintf(port, sizeof(port), "%s%u", r->ingress ? " to port " : ":", r->port);
    bool brackets = v6 && r->port && !r->ingress;
    (void)snprintf(out, size, "%s %.255s%s%s%s%s%s", r->ingress ? "<-" : "->", r->name,
                   r->name[0] ? " " : "", brackets ? "[" : "", r->address, brackets ? "]" : "",
                   port);
}

void net_record_story(const struct net_record *r, char *out, size_t size)
{
    char sizes[96] = "", count[48] = "";
    if (r->kind == NET_RECORD_ENDED) {
        char up[24], down[24], time[24];
        format_bytes(r->to_host, up, sizeof(up));
        format_bytes(r->to_guest, down, sizeof(down));
        format_duration(r->ms, time, sizeof(time));
        (void)snprintf(sizes, sizeof(sizes), ": %s out, %s in, %s", up, down, time);
    }
    if (r->kind == NET_RECORD_MISSED)
        (void)snprintf(count, sizeof(count), "%" PRIu64 " decisions were too many to log",
                       r->count);
    else if (r->count > 1)
        (void)snprintf(count, sizeof(count), " (%" PRIu64 " times)", r->count);
    (void)snprintf(out, size, "%s%s%s", r->why, sizes, count);
}

int net_record_text(const struct net_record *r, struct buf *out)
{
    char t[TIME_TEXT_MAX], peer[400], story[NET_RECORD_WHY_MAX + 200];
    time_local(r->t_ns, t);
    net_record_peer(r, peer, sizeof(peer));
    net_record_story(r, story, sizeof(story));
    return buf_printf(out, NET_RECORD_FORMAT, t, kinds[r->kind], verdicts[r->verdict],
                      r->proto[0] ? r->proto : "-", peer[0] ? peer : "-", story);
}
