#include "image/archive/save.h"
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/image/image.h"
#include "util/output_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int parse_refs(const struct args *a, struct reference *refs, struct err *e)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < a->n_pos; i++)
        r = reference_parse(a->pos[i], &refs[i], e);
    return r;
}

/* Saves to a file that appears once it is complete, or to standard output. */
static int save(const struct args *a, const struct reference *refs, struct err *e)
{
    const char *path = args_get(a, "output"), *format = args_get(a, "format");
    struct output_file f = {.fd = -1};
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    struct spinner spin;
    int r = image_cache_open(&c, e);
    if (r < 0)
        return r;
    if (path)
        r = output_file_open(&f, path, e);
    if (r == 0) {
        spinner_start(&spin, "Saving", a->n_pos == 1 ? a->pos[0] : "images");
        r = save_images(&c.images, refs, a->n_pos,
                        format && strcmp(format, "oci") == 0 ? SAVE_OCI : SAVE_DOCKER,
                        path ? f.fd : STDOUT_FILENO, e);
        spinner_stop(&spin);
        if (r == -ENOENT)
            err_hint(e, IMAGE_LIST_HINT);
    }
    if (r == 0 && path)
        r = output_file_publish(&f, e);
    output_file_close(&f);
    return r;
}

static int save_run(const struct args *a)
{
    struct err e = {0};
    if (!args_has(a, "output") && isatty(STDOUT_FILENO)) {
        (void)err_set(&e, EINVAL, "cannot write an archive to a terminal");
        err_hint(&e,
                 "name a file (msb save -o FILE ...) or use a pipe (msb save ... | podman load)");
        return ui_usage(&e);
    }
    struct reference *refs = calloc(a->n_pos, sizeof(*refs));
    if (!refs) {
        (void)err_oom(&e);
        return ui_fail(&e);
    }
    int r = parse_refs(a, refs, &e);
    if (r == 0)
        r = save(a, refs, &e);
    for (size_t i = 0; i < a->n_pos; i++)
        reference_free(&refs[i]);
    free(refs);
    if (r < 0)
        return ui_fail(&e);
    for (size_t i = 0; i < a->n_pos; i++)
        ui_success("Saved", a->pos[i]);
    return EXIT_OK;
}

const struct cmd cmd_save = {
    .name = "save",
    .group = GROUP_IMAGE,
    .summary = "Save images to an archive",
    .opts = OPTIONS(
        {"format", 0, "FORMAT", "Format of the archive (default: docker)", .choices = "docker|oci"},
        {"output", 'o', "FILE", "File to write (default: stdout)"}, QUIET_OPTION),
    .pos = SOME("REFERENCES", "Images to save"),
    .details = "The archive is for 'docker load', 'podman load', skopeo and 'msb load'. Layers are "
               "regenerated from msb's own format and are not compressed, so they, and the image, "
               "have different digests than in a registry; their content is the same. Saving the "
               "same images produces the same bytes. The file appears when it is complete.",
    .examples = "  msb save -o python.tar python:3.11-slim\n"
                "  msb save alpine:3 | podman load\n"
                "  msb save --format oci -o images.tar alpine:3 python:3.11-slim",
    .run = save_run,
};
