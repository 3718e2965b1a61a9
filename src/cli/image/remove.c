#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/image/image.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_SHOWN = 5 };

/* Sandboxes that use this image: the first few names, and how many there are. */
static int list_users(const struct store *s, const struct digest *image, char *names, size_t size,
                      size_t *ret, struct err *e)
{
    struct sandbox *list = NULL;
    size_t n = 0, found = 0;
    char digest[DIGEST_TEXT_SIZE];
    int r = store_list(s, &list, &n, e);
    if (r < 0)
        return r;
    digest_text(image, digest);
    names[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        const char *has = list[i].spec.image_digest;
        if (!has || strcmp(has, digest) != 0 || found++ >= NAMES_SHOWN)
            continue;
        size_t at = strlen(names);
        (void)snprintf(names + at, size - at, "%s%s", at ? ", " : "", list[i].spec.name);
    }
    sandbox_list_free(list, n);
    *ret = found;
    return 0;
}

static bool has_other_name(struct image_cache *c, const struct image_record *rec)
{
    struct image_list l = {0};
    bool found = false;
    if (image_store_list(&c->images, &l, NULL) < 0)
        return false;
    for (size_t i = 0; !found && i < l.n; i++)
        found = digest_equal(&l.v[i].digest, &rec->digest) &&
                strcmp(l.v[i].reference, rec->reference) != 0;
    image_list_free(&l);
    return found;
}

/* The last name of an image that sandboxes use is removed only with --force. */
static int check_unused(struct image_cache *c, const struct image_record *rec, const char *arg,
                        struct err *e)
{
    char names[1024];
    size_t n = 0;
    int r = list_users(&c->home, &rec->digest, names, sizeof(names), &n, e);
    if (r < 0 || n == 0 || has_other_name(c, rec))
        return r;
    (void)err_set(e, EBUSY, "image '%s' is used by sandbox%s %s%s", arg, n > 1 ? "es" : "", names,
                  n > NAMES_SHOWN ? " and others" : "");
    err_hint(e,
             "remove %s first, or use --force, which removes the name and keeps the files while a "
             "sandbox needs them",
             n > 1 ? "them" : "it");
    return -EBUSY;
}

static int remove_one(struct image_cache *c, const char *arg, bool force, struct err *e)
{
    AUTO_REFERENCE struct reference ref = {0};
    AUTO_IMAGE_RECORD struct image_record rec = {0};
    int r = reference_parse(arg, &ref, e);
    if (r < 0)
        return r;
    /* A damaged image can be removed, too. */
    r = image_store_find(&c->images, &ref, &rec, NULL);
    r = r == 0 && !force ? check_unused(c, &rec, arg, e) : 0;
    if (r == 0)
        r = image_store_untag(&c->images, &ref, e);
    if (r == -ENOENT)
        err_hint(e, IMAGE_LIST_HINT);
    return r;
}

static int image_remove_run(const struct args *a)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    struct err e = {0};
    int code = EXIT_OK;
    bool removed = false;
    if (image_cache_open(&c, &e) < 0)
        return ui_fail(&e);
    for (size_t i = 0; i < a->n_pos; i++) {
        err_clear(&e);
        if (remove_one(&c, a->pos[i], args_has(a, "force"), &e) < 0) {
            code = ui_fail(&e);
            continue;
        }
        ui_success("Removed", a->pos[i]);
        removed = true;
    }
    if (removed)
        image_cache_sweep(&c);
    return code;
}

const struct cmd cmd_image_remove = {
    .name = "remove",
    .alias = "rm",
    .flags = CMD_DESTROYS,
    .summary = "Remove images",
    .opts = OPTIONS({"force", 'f', NULL, "Also remove images that sandboxes use"}, QUIET_OPTION),
    .pos = SOME("REFERENCES", "Images to remove"),
    .details = "Layers that no other image needs are deleted. The last name of an image that "
               "sandboxes use is removed only with --force. Sandboxes never lose their image: its "
               "files stay until no sandbox needs them, and the next 'image rm' or 'image prune' "
               "after that deletes them.",
    .examples = "  msb image rm alpine:3\n"
                "  msb image rm --force python:3.11-slim",
    .run = image_remove_run,
};
