#include "client/net_request.h"

#include "client/request.h"
#include "util/json.h"
#include "util/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { RULES_SHOWN_MAX = POLICY_RULES_MAX };

/* Sends the request and reads the reply, which must be OK. */
static int net_request_end(struct request *q, int dirfd, int fd, struct err *e)
{
    char text[ERR_MSG_MAX];
    const struct proto_frame *f = &q->answer;
    int r = request_end(q, dirfd, fd);
    if (r < 0)
        return err_sys(e, -r, "the sandbox does not answer");
    if (f->type == PROTO_OK)
        return 0;
    proto_find_text(f, F_TEXT, text, sizeof(text));
    utf8_defuse(text);
    uint64_t code = proto_find_num(f, F_ERRNO, EPROTO);
    if (proto_find_num(f, F_KIND, 0) == PROTO_FAIL_VERSION || code == 0 || code > 4095)
        code = EPROTO;
    return err_set(e, (int)code, "%s", text[0] ? text : "the sandbox refused");
}

static void put_port(struct proto_writer *w, uint16_t port, uint8_t proto)
{
    proto_u32(w, F_CTL_PORT, port);
    proto_u32(w, F_CTL_PROTO, proto);
}

static void put_address(struct proto_writer *w, const struct net_addr *a)
{
    char text[ADDR_TEXT_MAX];
    addr_format(a, text);
    proto_str(w, F_CTL_ADDRESS, text);
}

/* --- explain --------------------------------------------------------------------------------- */

static void find_why(const struct proto_frame *f, uint16_t tag, char to[POLICY_WHY_MAX])
{
    proto_find_text(f, tag, to, POLICY_WHY_MAX);
    utf8_defuse(to);
}

static void read_peers(const struct proto_frame *f, struct explain_answer *ret)
{
    struct proto_reader r;
    struct proto_field x;
    proto_reader_init(&r, f->data, f->len);
    while (ret->n_peers < EXPLAIN_PEERS_MAX && proto_next(&r, &x) == 1) {
        if (x.tag != F_CTL_PEER)
            continue;
        struct explain_peer *p = &ret->peer[ret->n_peers];
        struct proto_frame inner = {.data = x.data, .len = x.len};
        char address[ADDR_TEXT_MAX];
        proto_find_text(&inner, F_CTL_ADDRESS, address, sizeof(address));
        if (addr_parse(address, &p->addr) < 0)
            continue;
        p->allow = proto_find_num(&inner, F_CTL_ALLOW, 0) == 1;
        find_why(&inner, F_CTL_WHY, p->why);
        ret->n_peers++;
    }
}

int net_request_explain(int dirfd, const struct explain_target *t, struct explain_answer *ret,
                        struct err *e)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_NET_ASK);
    if (t->name[0])
        proto_str(&q.w, F_CTL_NAME, t->name);
    else
        put_address(&q.w, &t->addr);
    put_port(&q.w, t->port, t->proto);
    int r = net_request_end(&q, dirfd, -1, e);
    if (r < 0)
        return r;
    *ret = (struct explain_answer){.is_name = t->name[0] != '\0',
                                   .allow = proto_find_num(&q.answer, F_CTL_ALLOW, 0) == 1,
                                   .may_ask = proto_find_num(&q.answer, F_CTL_MAY_ASK, 0) == 1};
    find_why(&q.answer, F_CTL_WHY, ret->why);
    find_why(&q.answer, F_CTL_ASK_WHY, ret->ask_why);
    read_peers(&q.answer, ret);
    return 0;
}

/* --- policy ---------------------------------------------------------------------------------- */

int net_request_set(int dirfd, const struct spec_net *n, bool drop, unsigned *cut, struct err *e)
{
    AUTO_REQUEST struct request q;
    AUTO_JSON json_t *j = json_pack("{s:o}", "network", spec_net_to_json(n, true));
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    request_begin(&q, PROTO_NET_SET);
    if (!text)
        return err_oom(e);
    proto_str(&q.w, F_CTL_SPEC, text);
    proto_u32(&q.w, F_CTL_DROP, drop);
    int r = net_request_end(&q, dirfd, -1, e);
    if (r == 0)
        *cut = (unsigned)proto_find_num(&q.answer, F_CTL_CUT, 0);
    return r;
}

int net_request_limit(int dirfd, const json_t *limits, struct err *e)
{
    AUTO_REQUEST struct request q;
    AUTO_FREE char *text = json_dumps(limits, JSON_COMPACT);
    request_begin(&q, PROTO_LIMIT);
    if (!text)
        return err_oom(e);
    proto_str(&q.w, F_CTL_SPEC, text);
    return net_request_end(&q, dirfd, -1, e);
}

int net_request_show(int dirfd, struct net_in_force *ret, struct err *e)
{
    AUTO_REQUEST struct request q;
    struct proto_reader rd;
    struct proto_field x;
    request_begin(&q, PROTO_NET_SHOW);
    int r = net_request_end(&q, dirfd, -1, e);
    if (r < 0)
        return r;
    *ret = (struct net_in_force){0};
    uint64_t defaults = proto_find_num(&q.answer, F_CTL_DEFAULTS, 0);
    ret->default_egress = defaults & 1;
    ret->default_ingress = defaults & 2;
    proto_find_text(&q.answer, F_TEXT, ret->counters, sizeof(ret->counters));
    proto_reader_init(&rd, q.answer.data, q.answer.len);
    while (r == 0 && ret->rules.n < RULES_SHOWN_MAX && proto_next(&rd, &x) == 1)
        if (x.tag == F_CTL_RULE) {
            char *text = proto_get_str(&x);
            if (text)
                utf8_defuse(text);
            r = text ? strlist_take(&ret->rules, text) : 0;
        }
    if (r < 0)
        net_in_force_free(ret);
    return r < 0 ? err_oom(e) : 0;
}

void net_in_force_free(struct net_in_force *n)
{
    strlist_free(&n->rules);
}

/* --- bound secrets --------------------------------------------------------------------------- */

/* K=V for each; bare: K alone. */
static int put_placeholders(struct proto_writer *w, const struct spec_bound *b, bool bare,
                            struct err *e)
{
    AUTO_FREE struct subst_secret *x = malloc(sizeof(*x));
    if (!x)
        return err_oom(e);
    for (size_t i = 0; i < b->secrets.n; i++) {
        char text[SUBST_NAME_MAX + SUBST_HOLDER_MAX + 2];
        int r = spec_bound_parse(b->secrets.v[i], x, e);
        if (r < 0)
            return r;
        for (size_t k = 0; spec_bound_variable(x, k); k++) {
            (void)snprintf(text, sizeof(text), bare ? "%s" : "%s=%s", spec_bound_variable(x, k),
                           x->holder);
            proto_str(w, F_ENV, text);
        }
    }
    return 0;
}

int net_request_secrets(int dirfd, int fd, const struct spec_net *now, const struct spec_net *old,
                        struct err *e)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_SECRETS);
    if (now) {
        AUTO_JSON json_t *j = json_pack("{s:o}", "network", spec_net_to_json(now, true));
        AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
        if (!text)
            return err_oom(e);
        proto_str(&q.w, F_CTL_SPEC, text);
        int r = put_placeholders(&q.w, &old->bound, true, e);
        if (r == 0)
            r = put_placeholders(&q.w, &now->bound, false, e);
        if (r < 0)
            return r;
    }
    return net_request_end(&q, dirfd, fd, e);
}

/* --- ports ----------------------------------------------------------------------------------- */

int net_request_publish(int dirfd, const struct spec_port *p, int fd, struct err *e)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_PORT_ADD);
    put_port(&q.w, p->guest, p->proto);
    return net_request_end(&q, dirfd, fd, e);
}

int net_request_unpublish(int dirfd, const struct spec_port *p, struct err *e)
{
    AUTO_REQUEST struct request q;
    request_begin(&q, PROTO_PORT_RM);
    put_address(&q.w, &p->bind);
    put_port(&q.w, p->host, p->proto);
    return net_request_end(&q, dirfd, -1, e);
}
