#include "sandbox/files.h"

#include "util/loop.h"

#include <errno.h>

enum {
    REFUSED_MS = 10000, /* how long a sandbox may take to go down */
    RETRY_PAUSE_MS = 20,
};

/* A first request proves that the sandbox will serve us. look: for the layer. */
static int connect_once(const struct store *s, const char *name, const struct attach_look *look,
                        warn_fn warn, struct sandbox_files *f, struct err *e)
{
    static struct file_attr attr;
    int sock;
    bool started = false;
    int r = sandbox_attach_look(s, name, look, warn, &sock, &started, e);
    f->started = f->started || started;
    if (r == 0)
        r = look ? files_open_layer(&f->files, sock, name, e)
                 : files_open(&f->files, sock, name, "0", "/", e);
    if (r == 0)
        r = files_stat(&f->files, "/", 0, &attr, e);
    if (r < 0)
        files_close(&f->files);
    return r;
}

static int open_retrying(const struct store *s, const char *name, const struct attach_look *look,
                         warn_fn warn, struct sandbox_files *ret, struct err *e)
{
    uint64_t until = now_ns() + REFUSED_MS * 1000000ULL;
    for (;;) {
        int r = connect_once(s, name, look, warn, ret, e);
        if (r != -ESHUTDOWN || now_ns() >= until)
            return r;
        err_clear(e);
        sleep_ms(RETRY_PAUSE_MS);
    }
}

int sandbox_files_open(const struct store *s, const char *name, warn_fn warn,
                       struct sandbox_files *ret, struct err *e)
{
    return open_retrying(s, name, NULL, warn, ret, e);
}

int sandbox_layer_open(const struct store *s, const char *name, const struct attach_look *look,
                       warn_fn warn, struct sandbox_files *ret, struct err *e)
{
    return open_retrying(s, name, look, warn, ret, e);
}

int sandbox_files_close(const struct store *s, const char *name, warn_fn warn,
                        struct sandbox_files *f, struct err *e)
{
    files_close(&f->files);
    return f->started ? sandbox_release(s, name, warn, e) : 0;
}
