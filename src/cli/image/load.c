#include "image/archive/load.h"
#include "cli/core/common_opts.h"
#include "cli/core/ui.h"
#include "cli/core/verbs.h"
#include "cli/image/cache.h"
#include "util/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void say_loaded(void *ctx, const struct reference *ref, const struct digest *image)
{
    AUTO_FREE char *name = reference_familiar(ref);
    const char *prefix = ctx;
    if (name && prefix)
        (void)printf("%s%s\n", prefix, name);
    else if (name)
        ui_success("Loaded", name);
}

/* A descriptor for the archive, or for standard input without a path. */
static int open_input(const char *path, struct err *e)
{
    int fd;
    if (path) {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        return fd < 0 ? err_sys(e, errno, "cannot open '%s'", path) : fd;
    }
    if (isatty(STDIN_FILENO))
        return err_hinted(
            e, err_set(e, EINVAL, "no archive given"),
            "name a file (msb load -i FILE) or pipe one in (docker save IMAGE | msb load)");
    fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? err_sys(e, errno, "cannot read standard input") : fd;
}

static int load(const struct args *a, int fd, const struct load_options *opt, struct err *e)
{
    const char *path = args_get(a, "input");
    const char *name = path ? path : "standard input";
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    struct spinner spin;
    int r = image_cache_open(&c, e);
    if (r < 0)
        return r;
    spinner_start(&spin, "Loading", name);
    r = load_images(&c.images, fd, opt, e);
    spinner_stop(&spin);
    if (r < 0) {
        (void)err_wrap(e, r, path ? "cannot load '%s'" : "cannot load %s", name);
        image_cache_sweep(&c);
    }
    return r;
}

static int load_run(const struct args *a)
{
    const char *tag = args_get(a, "tag"), *place = args_get(a, "platform");
    const char *path = args_get(a, "input");
    AUTO_REFERENCE struct reference ref = {0};
    AUTO_OCI_PLATFORM struct oci_platform platform = {0};
    struct err e = {0};
    int r = tag ? reference_parse(tag, &ref, &e) : 0;
    if (r == 0 && ref.digest)
        r = err_set(&e, EINVAL, "invalid name '%s': a digest cannot be assigned", tag);
    if (r == 0 && place)
        r = oci_platform_parse(place, &platform, &e);
    bool usage = r < 0;
    AUTO_CLOSE int fd = -1;
    if (r == 0) {
        fd = open_input(path && strcmp(path, "-") != 0 ? path : NULL, &e);
        usage = fd == -EINVAL && !path;
        r = fd < 0 ? fd : 0;
    }
    if (r == 0) {
        struct load_options opt = {.tag = tag ? &ref : NULL,
                                   .platform = place ? &platform : NULL,
                                   .loaded = say_loaded,
                                   .ctx = (void *)(uintptr_t)args_get(a, "print")};
        r = load(a, fd, &opt, &e);
    }
    if (r < 0)
        return usage ? ui_usage(&e) : ui_fail(&e);
    return EXIT_OK;
}

const struct cmd cmd_load = {
    .name = "load",
    .group = GROUP_IMAGE,
    .summary = "Load images from an archive",
    .opts = OPTIONS({"input", 'i', "FILE", "Archive or directory to load (default: stdin)"},
                    {"tag", 't', "NAME:TAG", "Name for the image, instead of those in the archive"},
                    {"print", 0, "PREFIX", "Print names after this, for docker", OPT_HIDDEN},
                    PLATFORM_OPTION, QUIET_OPTION),
    .details =
        "Reads archives of 'docker save', 'podman save', skopeo and buildx: a docker-archive or an "
        "OCI layout, plain or compressed with gzip or zstd. An OCI layout may also be a directory. "
        "Every digest is checked; a damaged archive loads nothing. Images keep the names in the "
        "archive; an image without one requires --tag.",
    .examples = "  msb load -i alpine.tar\n"
                "  docker save python:3.11-slim | msb load\n"
                "  msb load -i layout/ -t tools:1\n"
                "  msb load -q < images.tar.zst",
    .run = load_run,
};
