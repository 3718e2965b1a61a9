#include "cli/options/copy.h"

#include "copy/patches.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* SRC may contain colons: DST begins after the first that a slash follows. */
static int split(char *arg, char **dst, struct err *e)
{
    char *colon = strstr(arg, ":/");
    if (!colon || colon == arg)
        return err_hinted(
            e, err_set(e, EINVAL, "expected SRC:DST with an absolute DST: got '%s'", arg),
            "for example ./app.conf:/etc/app.conf");
    *colon = '\0';
    *dst = colon + 1;
    return 0;
}

static int source_kind(const char *option, const char *src, const struct stat *st,
                       enum patch_kind *kind, struct err *e)
{
    bool dir = S_ISDIR(st->st_mode);
    if (!dir && !S_ISREG(st->st_mode))
        return err_set(e, EINVAL, "'%s' is neither a file nor a directory", src);
    if (dir && strcmp(option, "copy-file") == 0)
        return err_set(e, EISDIR, "'%s' is a directory (use --copy-dir)", src);
    if (!dir && strcmp(option, "copy-dir") == 0)
        return err_set(e, ENOTDIR, "'%s' is a file (use --copy-file)", src);
    *kind = dir ? PATCH_COPY_DIR : PATCH_COPY_FILE;
    return 0;
}

/* Made absolute. A file keeps its name, even if it is a link: a copy into a directory uses it. */
static char *absolute(const char *src, bool dir)
{
    const char *slash = strrchr(src, '/');
    char *out = NULL;
    if (dir)
        return realpath(src, NULL);
    AUTO_FREE char *parent =
        slash ? strndup(src, slash == src ? 1 : (size_t)(slash - src)) : strdup(".");
    AUTO_FREE char *real = parent ? realpath(parent, NULL) : NULL;
    if (!real || asprintf(&out, "%s%s%s", real, strcmp(real, "/") == 0 ? "" : "/",
                          slash ? slash + 1 : src) < 0)
        return NULL;
    return out;
}

static int add_copy(struct sandbox_spec *s, const char *option, const char *arg, struct err *e)
{
    AUTO_FREE char *copy = strdup(arg);
    char *dst = NULL;
    struct stat st;
    enum patch_kind kind = PATCH_COPY_FILE;
    if (!copy)
        return err_oom(e);
    int r = split(copy, &dst, e);
    if (r < 0)
        return r;
    if (stat(copy, &st) < 0)
        return err_sys(e, errno, "cannot copy '%s'", copy);
    AUTO_FREE char *real = absolute(copy, S_ISDIR(st.st_mode));
    if (!real)
        return err_sys(e, errno, "cannot copy '%s'", copy);
    r = source_kind(option, copy, &st, &kind, e);
    return r < 0 ? r : spec_patches_add(&s->patches, kind, real, dst, e);
}

int copy_option(struct sandbox_spec *s, const char *option, const char *arg, struct err *e)
{
    int r;
    if (strcmp(option, "mkdir") == 0)
        r = spec_patches_add(&s->patches, PATCH_MKDIR, NULL, arg, e);
    else if (strcmp(option, "rm") == 0)
        r = spec_patches_add(&s->patches, PATCH_REMOVE, NULL, arg, e);
    else
        r = add_copy(s, option, arg, e);
    return r < 0 ? err_wrap(e, r, "--%s", option) : 0;
}

int copy_prepare(void *ctx, int sock, struct err *e)
{
    const struct sandbox_spec *s = ctx;
    return patches_apply(&s->patches, sock, s->name, e);
}
