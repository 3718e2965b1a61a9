/* What each field requires of a spec: see the table in fields.c. */
#include "policy/impl.h"

#include "image/image.h"
#include "image/oci/reference.h"
#include "net/packet.h"
#include "util/cleanup.h"
#include "util/fs.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX = 512 };

void judge_refuse(struct judge *j, const struct layer *l, const struct setting *s,
                  const char *asked)
{
    char allowed[TEXT_MAX];
    setting_text(s, allowed, sizeof(allowed));
    judge_find(j, l, s, s->line, OUTCOME_REFUSED, asked, allowed);
}

void judge_allow(struct judge *j, const struct layer *l, const struct setting *s, const char *asked)
{
    char allowed[TEXT_MAX];
    setting_text(s, allowed, sizeof(allowed));
    judge_find(j, l, s, s->line, OUTCOME_ALLOWED, asked, allowed);
}

/* --- numbers ---------------------------------------------------------------------------------- */

void check_disk_volumes(struct judge *j, const struct layer *l, const struct setting *s)
{
    char asked[TEXT_MAX], size[64];
    for (size_t i = 0; i < j->spec->n_mounts; i++) {
        const struct spec_mount *m = &j->spec->mounts[i];
        if (m->kind != MOUNT_NAMED || m->size <= s->number)
            continue;
        number_text(FIELD_SIZE, m->size, size, sizeof(size));
        (void)snprintf(asked, sizeof(asked), "volume '%.100s' of %s", m->source, size);
        judge_refuse(j, l, s, asked);
    }
}

void check_cap(struct judge *j, const struct layer *l, const struct setting *s)
{
    const struct quantity *q = quantity_find(s->field->key);
    uint64_t v = q->get(j->spec);
    char asked[64], now[64];
    number_text(s->field->type, v, asked, sizeof(asked));
    if (v == 0 && q->none_is_all) {
        (void)snprintf(asked, sizeof(asked), "no limit");
        v = UINT64_MAX;
    }
    if (q->said == SAID_DISK)
        check_disk_volumes(j, l, s);
    if (v <= s->number) {
        judge_allow(j, l, s, asked);
    } else if (j->said & q->said) {
        judge_refuse(j, l, s, asked);
        if (!j->failed)
            j->out->v[j->out->n - 1].number = v;
    } else {
        q->set(j->spec, s->number);
        number_text(s->field->type, q->get(j->spec), now, sizeof(now));
        judge_find(j, l, s, s->line, OUTCOME_NARROWED, asked, now);
    }
}

void check_ports(struct judge *j, const struct layer *l, const struct setting *s)
{
    char asked[64];
    (void)snprintf(asked, sizeof(asked), "%zu", j->spec->net.n_ports);
    (j->spec->net.n_ports > s->number ? judge_refuse : judge_allow)(j, l, s, asked);
}

/* Whether that sandbox is one of those to which the layer applies. One that is being created, or
 * cannot be read, is. */
static bool counts(const struct judge *j, const struct layer *l, const char *name)
{
    AUTO_SANDBOX struct sandbox sb = SANDBOX_NONE;
    if (name[0] == '.' || strcmp(name, j->spec->name) == 0)
        return false;
    return sandbox_open(j->store, name, &sb, NULL) < 0 || layer_matches(l, &sb.spec);
}

/* Directories are counted, not what `ls` shows: so creations under way count, too. A change can
 * move a sandbox to another rule set, where it counts as one more. */
void check_sandboxes(struct judge *j, const struct layer *l, const struct setting *s)
{
    char asked[64];
    uint64_t n = 1;
    if (j->why != HOLD_CREATE && j->why != HOLD_CHANGE)
        return;
    AUTO_CLOSEDIR DIR *d = dir_read_at(j->store->sandboxes_fd, ".");
    if (!d)
        n = UINT64_MAX;
    for (const struct dirent *ent; d && (ent = readdir(d));)
        n += counts(j, l, ent->d_name);
    (void)snprintf(asked, sizeof(asked), "sandbox number %llu", (unsigned long long)n);
    (n > s->number ? judge_refuse : judge_allow)(j, l, s, asked);
}

/* --- images ----------------------------------------------------------------------------------- */

/* A name given locally proves nothing: 'msb load -t' and 'msb tag' take any. */
static void refuse_image(struct judge *j, const struct layer *l, const struct setting *s)
{
    char asked[TEXT_MAX];
    (void)snprintf(asked, sizeof(asked), "%.300s%s", j->spec->image,
                   j->spec->image_named_here ? ", which was named on this host and not pulled"
                                             : "");
    judge_refuse(j, l, s, asked);
}

/* A path is stored without links and relative parts: the next start may be from another
 * directory. */
void check_images(struct judge *j, const struct layer *l, const struct setting *s)
{
    if (!image_matches(s, j->spec)) {
        refuse_image(j, l, s);
        return;
    }
    judge_allow(j, l, s, j->spec->image);
    bool local = j->why == HOLD_CREATE && image_is_local(j->spec->image);
    char *path = local ? realpath(j->spec->image, NULL) : NULL;
    if (path) {
        free(j->spec->image);
        j->spec->image = path;
    }
}

static bool is_pulled(const struct sandbox_spec *spec)
{
    return strcmp(spec->image, IMAGE_BASE_REF) != 0 && !image_is_local(spec->image);
}

void check_registries(struct judge *j, const struct layer *l, const struct setting *s)
{
    AUTO_REFERENCE struct reference ref = {0};
    if (!is_pulled(j->spec))
        return;
    bool ok = reference_parse(j->spec->image, &ref, NULL) == 0 && item_matches(s, ref.registry);
    if (j->spec->image_named_here)
        refuse_image(j, l, s);
    else
        (ok ? judge_allow : judge_refuse)(j, l, s, ref.registry ? ref.registry : j->spec->image);
}

void check_digest(struct judge *j, const struct layer *l, const struct setting *s)
{
    AUTO_REFERENCE struct reference ref = {0};
    if (!s->number || strcmp(j->spec->image, IMAGE_BASE_REF) == 0)
        return;
    bool ok = is_pulled(j->spec) && !j->spec->image_named_here &&
              reference_parse(j->spec->image, &ref, NULL) == 0 && ref.digest;
    judge_find(j, l, s, s->line, ok ? OUTCOME_ALLOWED : OUTCOME_REFUSED, j->spec->image,
               "a reference with @sha256:DIGEST");
}

/* --- network ---------------------------------------------------------------------------------- */

static void narrow_egress(struct judge *j, const struct layer *l, const struct setting *s,
                          const struct policy *p, const char *asked)
{
    struct spec_net *n = &j->spec->net;
    AUTO_STRLIST struct strlist rules = {0};
    char now[TEXT_MAX];
    if (policy_narrow(p, s->ceiling, &rules) < 0) {
        j->failed = true;
        return;
    }
    strlist_free(&n->rules);
    n->rules = rules;
    rules = (struct strlist){0};
    free(n->profile);
    n->profile = NULL;
    n->egress = NET_DEFAULT_DENY;
    setting_text(s, now, sizeof(now));
    judge_find(j, l, s, s->line, OUTCOME_NARROWED, asked, now);
}

/* Servers that the host contacts on behalf of the sandbox, and over which rules have no control: a
 * name server decides which addresses a name has, a proxy where a connection ends. */
static void check_helper(struct judge *j, const struct layer *l, const struct setting *s,
                         const struct net_end *at, uint8_t proto, const char *what)
{
    char end[END_TEXT_MAX], asked[END_TEXT_MAX + 32];
    int ignored;
    struct policy_rule rule = {.allow = true,
                               .dir = POLICY_EGRESS,
                               .kind = TARGET_CIDR,
                               .addr = at->addr,
                               .bits = 128,
                               .proto = proto,
                               .lo = at->port,
                               .hi = at->port};
    struct policy one = {.rule = &rule, .n = 1};
    bool ok = policy_within(&one, s->ceiling, &ignored);
    rule.kind = TARGET_GROUP;
    rule.group = addr_classify(&at->addr);
    if (ok || (rule.group == CLASS_PUBLIC && policy_within(&one, s->ceiling, &ignored)))
        return;
    end_format(at, end);
    (void)snprintf(asked, sizeof(asked), "%s %s", what, end);
    judge_refuse(j, l, s, asked);
    if (!j->failed)
        j->out->v[j->out->n - 1].fixed = true;
}

static void check_helpers(struct judge *j, const struct layer *l, const struct setting *s)
{
    const struct spec_net *n = &j->spec->net;
    for (unsigned i = 0; i < n->n_nameservers; i++)
        check_helper(j, l, s, &n->nameserver[i], PROTO_UDP, "name server");
    if (n->proxy.version)
        check_helper(j, l, s, &n->proxy.at, PROTO_TCP, "proxy");
}

void check_egress(struct judge *j, const struct layer *l, const struct setting *s)
{
    struct policy p;
    int rule = -1;
    if (j->spec->net.off)
        return;
    if (spec_net_policy(&j->spec->net, &p, NULL) < 0) {
        judge_refuse(j, l, s, "an invalid network policy");
        return;
    }
    bool ok = policy_within(&p, s->ceiling, &rule);
    const char *asked = ok ? "its network policy" : rule < 0 ? "allow@any" : p.rule[rule].text;
    if (!ok && !(j->said & SAID_NET))
        narrow_egress(j, l, s, &p, asked);
    else
        (ok ? judge_allow : judge_refuse)(j, l, s, asked);
    policy_free(&p);
    check_helpers(j, l, s);
}

/* --- names ------------------------------------------------------------------------------------ */

void check_secrets(struct judge *j, const struct layer *l, const struct setting *s)
{
    for (size_t i = 0; i < j->spec->secrets.n; i++)
        (item_matches(s, j->spec->secrets.v[i]) ? judge_allow
                                                : judge_refuse)(j, l, s, j->spec->secrets.v[i]);
    const struct strlist *bound = &j->spec->net.bound.secrets; /* NAME@... */
    for (size_t i = 0; i < bound->n; i++) {
        char name[TEXT_MAX];
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(bound->v[i], "@"), bound->v[i]);
        (item_matches(s, name) ? judge_allow : judge_refuse)(j, l, s, name);
    }
}

/* KEY matches any value. */
static bool label_matches(const char *pattern, const char *label)
{
    size_t n = strlen(pattern);
    return strchr(pattern, '=') ? fnmatch(pattern, label, FNM_NOESCAPE) == 0
                                : strncmp(pattern, label, n) == 0 && label[n] == '=';
}

void check_required(struct judge *j, const struct layer *l, const struct setting *s)
{
    for (size_t i = 0; i < s->n; i++) {
        bool has = false;
        for (size_t k = 0; k < j->spec->labels.n; k++)
            has = has || (label_matches(s->item[i].text, j->spec->labels.v[k]) &&
                          label_is_own(j->spec, j->spec->labels.v[k]));
        if (!has)
            judge_find(j, l, s, s->item[i].line, OUTCOME_REFUSED, "no such label", s->item[i].text);
    }
}

void check_labels(struct judge *j, const struct layer *l, const struct setting *s)
{
    for (size_t i = 0; i < j->spec->labels.n; i++) {
        bool ok = !label_is_own(j->spec, j->spec->labels.v[i]);
        for (size_t k = 0; !ok && k < s->n; k++)
            ok = label_matches(s->item[k].text, j->spec->labels.v[i]);
        if (!ok)
            judge_refuse(j, l, s, j->spec->labels.v[i]);
    }
}

/* Compares what may be done, not just the profile's name: options add to a profile. */
static bool is_as_strict(const struct spec_security *s, const struct spec_security *want)
{
    return s->profile >= want->profile && !(s->caps & ~want->caps) &&
           (s->no_new_privs || !want->no_new_privs) &&
           (want->pids == 0 || (s->pids != 0 && s->pids <= want->pids));
}

void check_security(struct judge *j, const struct layer *l, const struct setting *s)
{
    struct spec_security want, *has = &j->spec->security;
    const char *name = s->field->choices[s->number];
    AUTO_FREE char *asked = spec_security_text(has);
    spec_security_init(&want);
    if (!asked || !spec_security_set_profile(&want, name)) {
        j->failed = true;
    } else if (is_as_strict(has, &want)) {
        judge_allow(j, l, s, asked);
    } else if (j->said & SAID_SECURITY) {
        judge_refuse(j, l, s, asked);
    } else {
        uint32_t pids = has->pids;
        (void)spec_security_set_profile(has, name);
        if (pids && (has->pids == 0 || pids < has->pids))
            has->pids = pids;
        judge_find(j, l, s, s->line, OUTCOME_NARROWED, asked, name);
    }
    spec_security_free(&want);
}

/* auto becomes the first allowed engine, unless all that it may choose are allowed. */
void check_engines(struct judge *j, const struct layer *l, const struct setting *s)
{
    const char *asked = engine_kind_name(j->spec->engine);
    bool all = item_matches(s, "kvm") && item_matches(s, "uml");
    if (item_matches(s, asked) || (j->spec->engine == ENGINE_AUTO && all)) {
        judge_allow(j, l, s, asked);
    } else if (j->spec->engine == ENGINE_AUTO && s->n > 0) {
        j->spec->engine = engine_kind_parse(s->item[0].text);
        judge_find(j, l, s, s->line, OUTCOME_NARROWED, asked, s->item[0].text);
    } else {
        judge_refuse(j, l, s, asked);
    }
}

/* --- what is writable --------------------------------------------------------------------------- */

static bool in_list(const char *path, const struct setting *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (spec_path_within(path, s->item[i].text))
            return true;
    return false;
}

/* What both allow; for a spec that has none, what the policy allows. */
static void narrow_write_paths(struct judge *j, const struct layer *l, const struct setting *s)
{
    AUTO_STRLIST struct strlist was = j->spec->write_paths;
    char now[TEXT_MAX];
    j->spec->write_paths = (struct strlist){0};
    for (size_t i = 0; i < was.n; i++)
        if (in_list(was.v[i], s) && spec_add_write_path(j->spec, was.v[i], NULL) < 0)
            j->failed = true;
    for (size_t i = 0; i < s->n; i++) {
        bool within = was.n == 0;
        for (size_t k = 0; !within && k < was.n; k++)
            within = spec_path_within(s->item[i].text, was.v[k]);
        if (within && spec_add_write_path(j->spec, s->item[i].text, NULL) < 0)
            j->failed = true;
    }
    spec_protect_mounts(j->spec);
    setting_text(s, now, sizeof(now));
    judge_find(j, l, s, s->line, OUTCOME_NARROWED, was.n ? was.v[0] : "everything", now);
}

void check_write_paths(struct judge *j, const struct layer *l, const struct setting *s)
{
    const struct strlist *w = &j->spec->write_paths;
    const char *beyond = w->n == 0 ? "everything" : NULL;
    for (size_t i = 0; !beyond && i < w->n; i++)
        beyond = in_list(w->v[i], s) ? NULL : w->v[i];
    if (!beyond) {
        judge_allow(j, l, s, w->v[0]);
    } else if (j->said & SAID_WRITE_PATHS) {
        judge_refuse(j, l, s, beyond);
    } else {
        narrow_write_paths(j, l, s); /* frees what `beyond` is */
        if (w->n == 0)
            judge_refuse(j, l, s, "what another file does not allow");
    }
}

void check_home(struct judge *j, const struct layer *l, const struct setting *s)
{
    AUTO_FREE char *home = realpath(j->store->home, NULL);
    bool ok = false;
    for (size_t i = 0; home && i < s->n; i++)
        ok = ok || fnmatch(s->item[i].text, home, FNM_NOESCAPE | FNM_PATHNAME) == 0;
    (ok ? judge_allow : judge_refuse)(j, l, s, home ? home : j->store->home);
}
