#include "cli/core/prune.h"

#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "sandbox/lifecycle.h"
#include "store/volume.h"
#include "util/cleanup.h"
#include "util/parse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int prune_confirm(const struct args *a, const char *question, const char *what, struct err *e)
{
    char answer[16] = "";
    if (args_has(a, "yes") || args_has(a, "force"))
        return 1;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return err_set(e, ENOTTY, "non-interactive terminal; use --yes to prune %s", what);
    (void)fprintf(stderr, "%s [y/N] ", question);
    (void)fflush(stderr);
    if (fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
        return 1;
    ui_note("Nothing removed.");
    return 0;
}

/* What was removed so far. */
struct pruned {
    size_t sandboxes, volumes, images;
    uint64_t bytes; /* of volumes and images */
};

static void append(struct buf *b, size_t n, const char *one, const char *many)
{
    if (n)
        (void)buf_printf(b, "%s%zu %s", buf_len(b) ? ", " : "", n, n == 1 ? one : many);
}

static int report(const struct args *a, const struct pruned *p)
{
    char size[32];
    AUTO_BUF struct buf text = {.limit = 1 << 10};
    if (wants_json(a))
        return ui_print_json(json_pack("{s:I, s:I, s:I, s:I}", "images", (json_int_t)p->images,
                                       "reclaimed_bytes", (json_int_t)p->bytes, "sandboxes",
                                       (json_int_t)p->sandboxes, "volumes",
                                       (json_int_t)p->volumes));
    append(&text, p->sandboxes, "sandbox", "sandboxes");
    append(&text, p->volumes, "volume", "volumes");
    append(&text, p->images, "image", "images");
    format_bytes(p->bytes, size, sizeof(size));
    if (buf_len(&text) == 0)
        (void)buf_printf(&text, "nothing to remove");
    else if (p->bytes)
        (void)buf_printf(&text, ", %s freed", size);
    if (buf_append(&text, "", 1) == 0)
        ui_success("Pruned", (const char *)buf_head(&text));
    return EXIT_OK;
}

/* Volumes that a sandbox mounts, running or not, cannot be removed (EBUSY), and stay. */
static int prune_volumes(const struct store *s, struct pruned *p, struct err *e)
{
    AUTO_FREE struct volume *list = NULL;
    size_t n = 0;
    int r = volume_list(s, &list, &n, e);
    for (size_t i = 0; r == 0 && i < n; i++) {
        uint64_t used = volume_used(s, &list[i]);
        r = volume_remove(s, list[i].name, e);
        p->volumes += r == 0;
        p->bytes += r == 0 ? used : 0;
        if (r == -EBUSY || r == -ENOENT) {
            err_clear(e);
            r = 0;
        }
    }
    return r;
}

/* A sandbox that has been started since cannot be removed, either. */
static int prune_sandboxes(const struct store *s, struct pruned *p, struct err *e)
{
    struct sandbox *list = NULL;
    size_t n = 0;
    int r = store_list(s, &list, &n, e);
    for (size_t i = 0; r == 0 && i < n; i++) {
        if (list[i].state.pid ||
            (list[i].state.status != STATUS_STOPPED && list[i].state.status != STATUS_CRASHED))
            continue;
        r = sandbox_remove(s, list[i].spec.name, false, ui_warn, e);
        p->sandboxes += r == 0;
        if (r == -EBUSY || r == -ENOENT) {
            err_clear(e);
            r = 0;
        }
    }
    sandbox_list_free(list, n);
    return r;
}

static int volume_prune_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct pruned p = {0};
    struct err e = {0};
    int r = prune_confirm(a, "Remove all volumes that no sandbox mounts, with their data?",
                          "volumes", &e);
    if (r == 0)
        return EXIT_OK;
    r = r < 0 ? r : store_open(&s, &e);
    if (r == 0)
        r = prune_volumes(&s, &p, &e);
    return r < 0 ? ui_fail(&e) : report(a, &p);
}

static int system_prune_run(const struct args *a)
{
    AUTO_STORE struct store s = STORE_NONE;
    struct pruned p = {0};
    struct image_collected images = {0};
    struct err e = {0};
    bool volumes = args_has(a, "volumes");
    int r = prune_confirm(
        a,
        volumes ? "Remove all stopped sandboxes, and the volumes and images that no other uses?"
                : "Remove all stopped sandboxes, and the images that no other uses?",
        "sandboxes", &e);
    if (r == 0)
        return EXIT_OK;
    r = r < 0 ? r : store_open(&s, &e);
    if (r == 0)
        r = prune_sandboxes(&s, &p, &e);
    if (r == 0 && volumes)
        r = prune_volumes(&s, &p, &e);
    if (r == 0)
        r = prune_images(&images, &e);
    p.images = images.images;
    p.bytes += images.bytes;
    return r < 0 ? ui_fail(&e) : report(a, &p);
}

const struct cmd cmd_volume_prune = {
    .name = "prune",
    .flags = CMD_DESTROYS,
    .summary = "Remove all volumes that no sandbox mounts",
    .opts = OPTIONS(YES_OPTION, FORCE_YES_OPTION, QUIET_OPTION, FORMAT_OPTION),
    .details = "Sandboxes, running or stopped, keep their volumes.",
    .examples = "  msb volume prune\n"
                "  msb volume prune --yes",
    .run = volume_prune_run,
};

static const struct cmd cmd_system_prune = {
    .name = "prune",
    .flags = CMD_DESTROYS,
    .summary = "Remove stopped sandboxes and what only they used",
    .opts =
        OPTIONS({"volumes", 0, NULL, "Also remove volumes that no sandbox mounts, with their data"},
                {"all", 'a', NULL, "No effect: images with a name are always included", OPT_HIDDEN},
                YES_OPTION, FORCE_YES_OPTION, QUIET_OPTION, FORMAT_OPTION),
    .details = "Running sandboxes, and the images and volumes that they use, are kept. So are "
               "workspaces and, without --volumes, all volumes.",
    .examples = "  msb system prune\n"
                "  msb system prune --volumes --yes",
    .run = system_prune_run,
};

const struct cmd cmd_system = {
    .name = "system",
    .group = GROUP_STORAGE,
    .summary = "Clean up",
    .subs = VERBS(&cmd_system_prune),
    .examples = "  msb system prune",
};
