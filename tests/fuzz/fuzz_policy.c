/* Rules: what is accepted is consistent, and can be decided and explained. */
#include "net/explain.h"
#include "net/policy.h"

#include <stdlib.h>
#include <string.h>

#include "net/packet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool named(void *ctx, const struct net_addr *peer, bool suffix, const char *name)
{
    return policy_name_matches("www.example.com", name, suffix);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct policy p;
    struct err e = {0};
    char *text = malloc(size + 1), why[POLICY_WHY_MAX];
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    policy_init(&p);
    int r = policy_add_rules(&p, text, &e);
    if ((r < 0) != (p.n == 0) || (r < 0 && e.msg[0] == '\0'))
        abort();
    for (size_t i = 0; i < p.n; i++) {
        const struct policy_rule *u = &p.rule[i];
        struct err again = {0};
        struct policy q;
        policy_init(&q); /* a rule on its own is the same rule */
        if (u->lo > u->hi || u->bits > 128 || !(u->dir & POLICY_BOTH) ||
            policy_add_rules(&q, u->text, &again) < 0 || q.n != 1 || q.rule[0].kind != u->kind)
            abort();
        policy_free(&q);
    }
    struct policy_flow f = {.dir = POLICY_EGRESS, .proto = PROTO_TCP, .port = 443, .named = named};
    (void)addr_parse("93.184.216.34", &f.peer);
    struct policy_answer a = policy_decide(&p, &f);
    policy_explain(&p, &a, why);
    a = policy_decide_name(&p, "www.example.com");
    policy_explain(&p, &a, why);
    struct explain_target t;
    struct explain_answer said;
    if (explain_parse(text, size & 1, &t, &e) == 0) {
        if (t.port == 0 || (t.name[0] && !policy_name_normal(t.name, t.name)))
            abort();
        explain_by_policy(&p, &t, &said);
        if (said.why[0] == '\0' || (said.is_name && said.allow && !said.may_ask))
            abort();
    }
    (void)policy_add_profile(&p, text, &e);
    policy_free(&p);
    free(text);
    return 0;
}
