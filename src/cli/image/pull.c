#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/image/cache.h"
#include "cli/image/progress.h"
#include "image/image.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int read_options(const struct args *a, struct pull_options *opt,
                        struct oci_platform *platform, struct err *e)
{
    const char *text = args_get(a, "platform");
    const char *form = args_get(a, "materialize");
    if (form && strcmp(form, "layered") != 0)
        return err_hinted(
            e, err_set(e, ENOTSUP, "--materialize %s is not supported", form),
            "images are stored in layers, which sandboxes share: use --materialize layered");
    opt->registry.insecure = args_has(a, "insecure");
    opt->registry.ca_certs = args_get(a, "ca-certs");
    opt->again = args_has(a, "force");
    if (text) {
        struct err why = {0};
        int r = oci_platform_parse(text, platform, &why);
        if (r < 0)
            return args_bad_value(a, "platform", text, why.msg, e);
        opt->platform = platform;
    }
    return 0;
}

static int pull_reference(const char *text, struct pull_options *opt, struct err *e)
{
    AUTO_REFERENCE struct reference ref = {0};
    struct digest digest;
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    if (strcmp(text, IMAGE_BASE_REF) == 0) {
        ui_note("msb/base is built in: nothing to pull.");
        return 0;
    }
    int r = reference_parse(text, &ref, e);
    if (r < 0 && *text && strchr("./~", *text))
        err_hint(e, "directories and tar files need no pull: msb run %s", text);
    if (r < 0)
        return r;
    r = image_cache_open(&c, e);
    opt->registry.home = c.home.home;
    if (r == 0)
        r = cli_pull(&c.images, &ref, opt, &digest, e);
    if (r < 0)
        return r;
    char hex[DIGEST_TEXT_SIZE], line[REFERENCE_MAX + 64];
    AUTO_FREE char *name = reference_familiar(&ref);
    digest_text(&digest, hex);
    (void)snprintf(line, sizeof(line), "%s (%.19s)", name ? name : text, hex);
    ui_success("Pulled", line);
    return 0;
}

static int pull_run(const struct args *a)
{
    struct pull_options opt = {0};
    AUTO_OCI_PLATFORM struct oci_platform platform = {0};
    struct err e = {0};
    int r = read_options(a, &opt, &platform, &e);
    if (r < 0)
        return r == -EINVAL ? ui_usage(&e) : ui_fail(&e);
    r = pull_reference(a->pos[0], &opt, &e);
    int code = r < 0 ? ui_fail(&e) : EXIT_OK;
    return r == -EINTR ? cli_pull_exit_code() : code;
}

const struct cmd cmd_pull = {
    .name = "pull",
    .group = GROUP_IMAGE,
    .summary = "Download an image",
    .opts = OPTIONS({"force", 'f', NULL, "Download all layers again"}, PLATFORM_OPTION,
                    INSECURE_OPTION, CA_CERTS_OPTION,
                    {"materialize", 0, "FORM", "Storage form; only 'layered' is supported",
                     .choices = "layered|flat|all"},
                    QUIET_OPTION),
    .pos = ONE("REFERENCE", "alpine:3, ghcr.io/team/app:1.0, NAME@sha256:..."),
    .details = "Layers that are already stored are not downloaded. Every byte is checked against "
               "the digests in the image's manifest. An interrupted pull resumes where it stopped. "
               "Credentials come from 'msb registry login', then from Docker's config.json; "
               "msb-registry(1) describes mirrors and other settings.",
    .examples = "  msb pull python:3.11-slim\n"
                "  msb pull --platform linux/arm64 alpine\n"
                "  msb pull --ca-certs corp.pem registry.corp/team/app:1.0",
    .run = pull_run,
};
