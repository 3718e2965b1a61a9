#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/image/image.h"
#include "cli/image/progress.h"

#include <errno.h>

static int push_reference(const char *text, const struct registry_options *opt, struct digest *ret,
                          struct err *e)
{
    AUTO_REFERENCE struct reference ref = {0};
    AUTO_IMAGE_RECORD struct image_record rec = {0};
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    int r = reference_parse(text, &ref, e);
    if (r == 0 && ref.digest) {
        err_set(e, EINVAL, "'%s' names an image by its digest; a push needs a name with a tag",
                text);
        err_hint(e, "give it a name with 'msb tag %s NAME:TAG', and push that", text);
        r = -EINVAL;
    }
    if (r == 0)
        r = image_cache_open(&c, e);
    if (r == 0)
        r = image_find(&c, text, &rec, e);
    return r < 0 ? r : cli_push(&c.images, &rec, &ref, opt, ret, e);
}

static int push_run(const struct args *a)
{
    struct err e = {0};
    struct digest digest;
    char hex[DIGEST_TEXT_SIZE];
    const struct registry_options opt = {.insecure = args_has(a, "insecure"),
                                         .ca_certs = args_get(a, "ca-certs")};
    int r = push_reference(a->pos[0], &opt, &digest, &e);
    if (r < 0) {
        int code = ui_fail(&e);
        return r == -EINTR ? cli_pull_exit_code() : code;
    }
    digest_text(&digest, hex);
    ui_success("Pushed", a->pos[0]);
    return ui_print_line(hex);
}

const struct cmd cmd_push = {
    .name = "push",
    .group = GROUP_IMAGE,
    .summary = "Upload an image to a registry",
    .opts = OPTIONS(INSECURE_OPTION, CA_CERTS_OPTION, QUIET_OPTION),
    .pos = ONE("REFERENCE",
               "Stored image, by the name it will have in the registry: ghcr.io/team/app:1.0"),
    .details =
        "The name determines the registry; 'msb tag' gives an image a name in another registry. "
        "Layers that the registry has are not uploaded, and those that it has in another "
        "repository are mounted from there if it allows that. Other layers are regenerated from "
        "msb's own format and compressed: unless they were made by 'msb commit', their digests, "
        "and the image's, differ from those they were pulled with. Their content is the same. "
        "Prints the image's digest in the registry. Credentials are those of 'msb pull'; mirrors "
        "are not used.",
    .examples = "  msb push ghcr.io/team/app:1.0\n"
                "  msb tag app:1.0 localhost:5000/app:1.0 && msb push localhost:5000/app:1.0",
    .run = push_run,
};
