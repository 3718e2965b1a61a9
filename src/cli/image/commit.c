/* commit and tag: names for images, new and old. */
#include "sandbox/commit.h"

#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/image/image.h"
#include "image/image.h"
#include "spec/spec.h"
#include "store/audit.h"
#include "util/cleanup.h"
#include "util/loop.h"

#include <errno.h>
#include <string.h>

/* A name that an image can get. */
static int parse_target(const char *text, struct reference *ref, struct err *e)
{
    int r = reference_parse(text, ref, e);
    if (r == 0 && strcmp(text, IMAGE_BASE_REF) == 0)
        r = err_set(e, EINVAL, "invalid name '%s': it is the built-in image's", text);
    if (r == 0 && ref->digest) {
        r = err_set(e, EINVAL, "invalid name '%s': a digest cannot be assigned", text);
        err_hint(e, "write NAME or NAME:TAG");
    }
    return r;
}

/* ---- commit ---- */

static int commit_into(struct image_cache *c, struct commit *opt, const char *name,
                       struct digest *digest, struct err *e)
{
    struct spinner spin;
    uint64_t began = now_ns();
    spinner_start(&spin, "Committing", opt->name);
    int r = sandbox_commit(&c->home, &c->images, opt, ui_warn, digest, e);
    spinner_stop(&spin);
    char hex[DIGEST_TEXT_SIZE] = "";
    if (r == 0)
        digest_text(digest, hex);
    audit_done(&c->home, "commit", opt->name,
               json_pack("{s:o, s:s*}", "image", audit_text(name), "digest", *hex ? hex : NULL),
               began, r, e);
    if (r < 0) {
        if (r != -ENOENT)
            (void)err_wrap(e, r, "cannot commit '%s'", opt->name);
        image_cache_sweep(c);
    }
    return r;
}

static int commit(const struct args *a, struct commit *opt, struct digest *digest, struct err *e)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    int r = image_cache_open(&c, e);
    return r < 0 ? r : commit_into(&c, opt, a->pos[1], digest, e);
}

static int commit_run(const struct args *a)
{
    struct err e = {0};
    AUTO_REFERENCE struct reference ref = {0};
    struct digest digest;
    AUTO_STRLIST struct strlist changes = {0};
    struct commit opt = {.name = a->pos[0],
                         .author = args_get(a, "author"),
                         .message = args_get(a, "message"),
                         .changes = &changes,
                         .target = &ref};
    int r = args_list(a, "change", &changes) < 0 ? err_oom(&e) : spec_check_name(a->pos[0], &e);
    if (r == 0)
        r = parse_target(a->pos[1], &ref, &e);
    if (r == 0)
        r = image_commit_check(&opt, &e);
    if (r < 0)
        return ui_usage(&e);
    if (commit(a, &opt, &digest, &e) < 0)
        return ui_fail(&e);
    char hex[DIGEST_TEXT_SIZE];
    AUTO_FREE char *name = reference_familiar(&ref);
    digest_text(&digest, hex);
    ui_success("Committed", name ? name : a->pos[1]);
    return ui_print_line(hex);
}

const struct cmd cmd_commit = {
    .name = "commit",
    .group = GROUP_IMAGE,
    .summary = "Create an image from a sandbox's changes",
    .opts = OPTIONS(
        {"change", 'c', "LINE", "Change the configuration with a Dockerfile line", OPT_REPEAT},
        {"message", 'm', "TEXT", "Comment for the image's history"},
        {"author", 'a', "NAME", "Author of the image"}, QUIET_OPTION),
    .pos = ONE("SANDBOX", "Sandbox whose files become a layer"),
    .then = ONE("IMAGE", "Name for the image, NAME[:TAG]"),
    .details =
        "The image has the layers of the sandbox's own image and one more, with everything that "
        "was changed or deleted in it; mounts, volumes and the files that msb itself writes "
        "(/etc/hosts, /etc/hostname, /etc/resolv.conf) are not part of it. Its configuration is "
        "that of the sandbox's image: options of 'create' are left out; use --change for them. In "
        "a running sandbox, writes wait until the files have been read; a stopped one is started "
        "for this and stopped again. Prints the image's digest.\n\n"
        "Lines for --change begin with CMD, ENTRYPOINT, ENV, EXPOSE, LABEL, STOPSIGNAL, USER, "
        "VOLUME or WORKDIR.",
    .examples = "  msb commit dev team/dev:2\n"
                "  msb commit -c 'CMD [\"python3\", \"app.py\"]' -m 'with app' dev app\n"
                "  msb image commit dev ghcr.io/team/dev:2 && msb push ghcr.io/team/dev:2",
    .run = commit_run,
};

/* ---- tag ---- */

static int tag(const struct args *a, const struct reference *to, struct err *e)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    AUTO_IMAGE_RECORD struct image_record rec = {0};
    int r = image_cache_open(&c, e);
    if (r == 0)
        r = image_find(&c, a->pos[0], &rec, e);
    return r < 0 ? r : image_store_tag(&c.images, to, &rec.digest, false, e);
}

static int tag_run(const struct args *a)
{
    struct err e = {0};
    AUTO_REFERENCE struct reference to = {0};
    if (parse_target(a->pos[1], &to, &e) < 0)
        return ui_usage(&e);
    if (tag(a, &to, &e) < 0)
        return ui_fail(&e);
    AUTO_FREE char *name = reference_familiar(&to);
    if (name)
        ui_success("Tagged", name);
    return EXIT_OK;
}

const struct cmd cmd_tag = {
    .name = "tag",
    .group = GROUP_IMAGE,
    .summary = "Give an image another name",
    .opts = quiet_opts,
    .pos = ONE("IMAGE", "Name or digest of a stored image"),
    .then = ONE("NAME", "Another name for it, NAME[:TAG]"),
    .details = "Both names refer to the same image from then on, until one of them is pulled, "
               "committed or tagged again. A name that another image had moves to this one; "
               "sandboxes keep the image they were created from.",
    .examples = "  msb tag python:3.11-slim registry.corp/base/python:3.11\n"
                "  msb tag sha256:0123... app:known-good",
    .run = tag_run,
};
