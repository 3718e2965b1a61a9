/* gzip with Intel's ISA-L, which inflates two to three times as fast as zlib. It is loaded when the
 * first archive is read, and only if the machine has it, so it does not slow down other commands.
 * It is large and full of assembly code, which is one more reason to read archives in a jail. */
#include "image/layer/decode.h"

#include <pthread.h>

#ifdef HAVE_ISAL
#include <dlfcn.h>
#include <errno.h>
#include <isa-l/igzip_lib.h>
#include <stdlib.h>

static struct {
    void (*init)(struct inflate_state *);
    int (*run)(struct inflate_state *);
} isal;

static void *isal_open(void)
{
    struct inflate_state *s = calloc(1, sizeof(*s));
    if (s) {
        isal.init(s);
        s->crc_flag = ISAL_GZIP;
    }
    return s;
}

static int isal_run(void *state, struct codec_io *io)
{
    struct inflate_state *s = state;
    s->next_in = (uint8_t *)(uintptr_t)io->in;
    s->avail_in = (uint32_t)io->in_len;
    s->next_out = io->out;
    s->avail_out = (uint32_t)io->out_len;
    int got = isal.run(s);
    io->in = s->next_in;
    io->in_len = s->avail_in;
    io->out = s->next_out;
    io->out_len = s->avail_out;
    if (got < 0)
        return -EBADMSG;
    return s->block_state == ISAL_BLOCK_FINISH ? CODEC_END : CODEC_MORE;
}

static int isal_again(void *state)
{
    struct inflate_state *s = state;
    isal.init(s);
    s->crc_flag = ISAL_GZIP;
    return 0;
}

static const struct codec codec_isal = {"gzip", isal_open, isal_run, isal_again, free};
static const struct codec *found;

static void load(void)
{
    void *lib = dlopen("libisal.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return;
    *(void **)&isal.init = dlsym(lib, "isal_inflate_init");
    *(void **)&isal.run = dlsym(lib, "isal_inflate");
    if (isal.init && isal.run)
        found = &codec_isal;
}

const struct codec *codec_gzip_fast(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load);
    return found;
}

#else

const struct codec *codec_gzip_fast(void)
{
    return NULL;
}

#endif
