/* The image of `create` and `run`: finds or pulls it, merges its configuration into the spec. */
#include "cli/options/sandbox.h"

#include "cli/core/ui.h"
#include "cli/image/progress.h"
#include "image/image.h"
#include "spec/signals.h"
#include "store/secret.h"
#include "util/assets.h"
#include "util/cleanup.h"
#include "util/diag.h"
#include "util/loop.h"
#include "util/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- its configuration ---------------------------------------------------------------------- */

/* The image's variables, overridden by the user's. An image's entries may be malformed; such
 * entries are left out. */
static int merge_env(struct sandbox_spec *s, char *const *image_env, struct err *e)
{
    AUTO_STRLIST struct strlist merged = {0};
    int r = 0;
    for (char *const *v = image_env; r == 0 && *v; v++)
        if (**v != '=' && strchr(*v, '='))
            r = strlist_set_env(&merged, *v);
    for (size_t i = 0; r == 0 && i < s->env.n; i++)
        r = strlist_set_env(&merged, s->env.v[i]);
    if (r < 0)
        return err_oom(e);
    struct strlist own = s->env;
    s->env = merged;
    merged = own;
    return 0;
}

/* The user's labels take precedence, and labels that an image may not have are omitted. */
static int merge_labels(struct sandbox_spec *s, char *const *image_labels, struct err *e)
{
    struct strlist own = s->labels;
    s->labels = (struct strlist){0};
    int r = 0;
    for (char *const *v = image_labels; *v; v++)
        (void)spec_add_label(s, *v, NULL);
    for (size_t i = 0; r == 0 && i < s->labels.n; i++) {
        char *key = strndup(s->labels.v[i], strcspn(s->labels.v[i], "="));
        r = key && strlist_take(&s->image_labels, key) == 0 ? 0 : err_oom(e);
    }
    for (size_t i = 0; r == 0 && i < own.n; i++)
        r = spec_add_label(s, own.v[i], e);
    strlist_free(&own);
    return r;
}

static int add_all(struct strlist *to, char *const *from, struct err *e)
{
    for (; *from; from++)
        if (strlist_add(to, *from) < 0)
            return err_oom(e);
    return 0;
}

/* The command: --entrypoint replaces the image's, and with it the image's CMD, which was written
 * for it; a command after "--" replaces the CMD. */
static int merge_command(struct sandbox_spec *s, const struct image_config *c, const struct args *a,
                         struct err *e)
{
    const char *entrypoint = args_get(a, "entrypoint");
    int r = 0;
    if (!entrypoint)
        r = add_all(&s->entrypoint, c->entrypoint, e);
    else if (*entrypoint && strlist_add(&s->entrypoint, entrypoint) < 0)
        r = err_oom(e);
    if (r < 0)
        return r;
    AUTO_STRLIST struct strlist words = {0};
    if (args_list(a, "cmd", &words) < 0)
        return err_oom(e);
    if (a->command || words.n)
        return add_all(&s->cmd, a->command ? a->command : words.v, e);
    return entrypoint ? 0 : add_all(&s->cmd, c->cmd, e);
}

/* For an image whose entrypoint begins with an init, as with s6: the init runs with its own
 * arguments, and commands run without it. */
static int adopt_init(struct sandbox_spec *s, struct err *e)
{
    static const char *const known[] = {"/init", "/sbin/init", "/usr/sbin/init",
                                        "/lib/systemd/systemd", "/usr/lib/systemd/systemd"};
    bool found = false;
    if (!s->init.path || strcmp(s->init.path, SPEC_INIT_AUTO) != 0 || s->entrypoint.n == 0)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        found |= strcmp(s->entrypoint.v[0], known[i]) == 0;
    if (!found)
        return 0;
    bool own_args = s->init.args.n > 0;
    int r = spec_init_set_path(&s->init, s->entrypoint.v[0], e);
    for (size_t i = 1; r == 0 && !own_args && i < s->entrypoint.n; i++)
        r = strlist_add(&s->init.args, s->entrypoint.v[i]) < 0 ? err_oom(e) : 0;
    strlist_free(&s->entrypoint);
    return r;
}

/* Ports and volumes that an image declares; invalid ones are left out, as Docker does. */
static void take_declared(struct sandbox_spec *s, const struct image_config *c)
{
    for (char *const *v = c->exposed_ports; v && *v; v++)
        (void)spec_add_port(s, *v, NULL);
    for (char *const *v = c->volumes; v && *v; v++)
        (void)spec_add_volume(s, *v, NULL);
}

static int take_text(char **to, const char *from, bool usable, struct err *e)
{
    if (*to || !usable)
        return 0;
    *to = strdup(from);
    return *to ? 0 : err_oom(e);
}

static int adopt_image(struct sandbox_request *q, const struct args *a, struct image *img,
                       struct err *e)
{
    struct sandbox_spec *s = &q->spec;
    const struct image_config *c = &img->config;
    s->image_kind = img->kind;
    s->image_digest = steal_ptr(&img->digest);
    s->image_named_here = img->named_here;
    q->image_lock = steal_fd(&img->lock_fd);
    take_declared(s, c);
    int r = take_text(&s->workdir, c->workdir, c->workdir && c->workdir[0] == '/', e);
    if (r == 0)
        r = take_text(&s->user, c->user, c->user && *c->user, e);
    if (r == 0)
        r = take_text(&s->stop_signal, c->stop_signal,
                      c->stop_signal && signal_number(c->stop_signal) > 0, e);
    if (r == 0)
        r = merge_env(s, c->env, e);
    if (r == 0)
        r = merge_labels(s, c->labels, e);
    if (r == 0)
        r = merge_command(s, c, a, e);
    return r < 0 ? r : adopt_init(s, e);
}

/* --- finding it ----------------------------------------------------------------------------- */

/* The options of a pull, and the spinner that must stop for its progress display. */
struct fetch {
    struct pull_options opt;
    struct oci_platform platform;
    struct spinner spin;
};

static int fetch(void *ctx, struct image_store *s, const struct reference *ref, struct err *e)
{
    struct fetch *f = ctx;
    struct digest digest;
    spinner_stop(&f->spin);
    return cli_pull(s, ref, &f->opt, &digest, e);
}

/* Only a warning, since an image of data or scripts works. */
static void warn_foreign(const struct oci_platform *asked)
{
    struct oci_platform host = {0}, any = {.os = asked->os, .architecture = asked->architecture};
    char theirs[OCI_PLATFORM_TEXT], ours[OCI_PLATFORM_TEXT], text[3 * OCI_PLATFORM_TEXT];
    oci_platform_host(&host);
    oci_platform_text(asked, theirs);
    oci_platform_text(&host, ours);
    (void)snprintf(text, sizeof(text), "programs for %s do not run here: this machine is %s",
                   theirs, ours);
    if (oci_platform_match(&any, &host) == 0)
        ui_warn(text);
    oci_platform_free(&host);
}

static int pull_options(const struct args *a, struct sandbox_request *q, const struct store *s,
                        struct fetch *f, struct err *e)
{
    static const char *const when[] = {[IMAGE_PULL_MISSING] = "if-missing",
                                       [IMAGE_PULL_ALWAYS] = "always",
                                       [IMAGE_PULL_NEVER] = "never"};
    const char *pull = args_get(a, "pull"), *platform = args_get(a, "platform");
    if (pull)
        q->spec.pull = (enum image_pull)MAX(WORD_FIND(when, pull), 0);
    f->opt.registry.insecure = args_has(a, "insecure");
    f->opt.registry.ca_certs = args_get(a, "ca-certs");
    f->opt.registry.home = s->home;
    if (!platform)
        return 0;
    struct err why = {0};
    if (oci_platform_parse(platform, &f->platform, &why) < 0) {
        q->exit_code = EXIT_USAGE;
        return args_bad_value(a, "platform", platform, why.msg, e);
    }
    f->opt.platform = &f->platform;
    warn_foreign(&f->platform);
    return 0;
}

static int find_image(struct sandbox_request *q, struct image_ctx *ctx, struct fetch *f,
                      struct image *img, struct err *e)
{
    ctx->pull = q->spec.pull;
    ctx->fetch = fetch;
    ctx->fetch_ctx = f;
    ctx->platform = f->opt.platform;
    spinner_start(&f->spin, "Preparing", q->spec.image);
    int r = image_resolve(q->spec.image, ctx, img, e);
    spinner_stop(&f->spin);
    if (r == -EINTR)
        q->exit_code = cli_pull_exit_code();
    return r;
}

int sandbox_request_resolve(struct sandbox_request *q, const struct args *a, const struct store *s,
                            struct err *e)
{
    uint64_t t0 = now_ns();
    AUTO_FREE char *cache = NULL;
    int r = sandbox_check_policy(s, &q->spec, &q->create, e); /* before anything is pulled */
    if (r == 0)
        r = secret_check_known(s, &q->spec.secrets, e);
    if (r < 0)
        return r;
    if (asprintf(&cache, "%s/cache", s->home) < 0)
        return err_oom(e);
    char assets[4096];
    struct err assets_err = {0};
    bool have_assets = assets_dir(assets, sizeof(assets), &assets_err) == 0;
    if (!have_assets && strcmp(q->spec.image, IMAGE_BASE_REF) == 0) {
        err_copy(e, &assets_err);
        return -assets_err.code;
    }
    struct image_ctx ctx = {.cache_dir = cache, .assets_dir = have_assets ? assets : NULL};
    struct image img = IMAGE_INIT;
    struct fetch f = {0};
    r = pull_options(a, q, s, &f, e);
    if (r == 0)
        r = find_image(q, &ctx, &f, &img, e);
    oci_platform_free(&f.platform);
    if (r < 0)
        return r;
    diag_debug("image %s has digest %s", q->spec.image, img.digest);
    diag_took("finding the image", t0);
    r = adopt_image(q, a, &img, e);
    image_free(&img);
    return r < 0 ? r : spec_validate(&q->spec, e);
}
