#include "sandbox/commit.h"

#include "sandbox/files.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The answer to LAYER, as a stream. */
struct layer_stream {
    struct stream s;
    struct files *f;
    const uint8_t *at; /* in the last frame */
    size_t left;
    bool ended;
};

static ssize_t layer_read(struct stream *s, void *p, size_t n, struct err *e)
{
    struct layer_stream *l = (struct layer_stream *)s;
    while (l->left == 0 && !l->ended) {
        struct proto_frame frame = {0};
        int r = files_next(l->f, &frame, e);
        if (r < 0)
            return r;
        if (frame.type == PROTO_FILE_DATA) {
            l->at = frame.data;
            l->left = frame.len;
        }
        l->ended = frame.type == PROTO_FILE_OK;
    }
    n = MIN(n, l->left);
    if (n)
        memcpy(p, l->at, n);
    l->at += n;
    l->left -= n;
    return (ssize_t)n;
}

static void layer_close(struct stream *s)
{
}

static const struct stream_ops layer_ops = {.read = layer_read, .close = layer_close};

/* The spec from which the sandbox is started determines the image's parent. */
static int note_parent(void *ctx, const struct sandbox_spec *spec, struct err *e)
{
    char **parent = ctx;
    free(*parent);
    *parent = spec->image_digest ? strdup(spec->image_digest) : NULL;
    if (!*parent)
        return err_set(e, EINVAL, "sandbox '%s' has no image", spec->name);
    return 0;
}

int sandbox_commit(const struct store *s, struct image_store *images, struct commit *c,
                   warn_fn warn, struct digest *ret, struct err *e)
{
    static struct file_req q;
    AUTO_FREE char *parent = NULL;
    const struct attach_look look = {.fn = note_parent, .ctx = &parent};
    struct sandbox_files f = {0};
    struct err late = {0};
    int r = sandbox_layer_open(s, c->name, &look, warn, &f, e);
    if (r == 0) {
        struct layer_stream l = {.s.ops = &layer_ops, .f = &f.files};
        c->parent = parent;
        (void)file_req_init(&q, FILE_OP_LAYER, "/", 0);
        r = files_send(&f.files, &q, e);
        if (r == 0)
            r = image_commit(images, c, &l.s, ret, e);
        c->parent = NULL;
    }
    int closed = sandbox_files_close(s, c->name, warn, &f, &late);
    if (r == 0 && closed < 0) {
        err_copy(e, &late);
        r = closed;
    }
    return r;
}
