/* Host sockets that programs in a guest reach through vsock: CID 2 and a port. */
#pragma once

#include "util/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SPEC_VSOCK_MAX = 16,        /* ports */
    SPEC_VSOCK_PORT_MIN = 1024, /* those below are msb's own */
    SPEC_VSOCK_PATH_MAX = 4096,
    SPEC_VSOCK_NAME_MAX = 96, /* last component: the rest of an address is for its directory */
};

struct spec_vsock {
    char *path; /* absolute; its directory had no symbolic links when the sandbox was created */
    uint32_t port;
};

struct spec_vsocks {
    struct spec_vsock *v;
    size_t n;
};

void spec_vsock_free(struct spec_vsocks *l);
/* HOST_SOCK:PORT[/stream]. Resolves the directory on the host: *usage becomes false if that failed. */
int spec_vsock_add(struct spec_vsocks *l, const char *text, bool *usage, struct err *e);
/* NULL if there are none. */
json_t *spec_vsock_to_json(const struct spec_vsocks *l);
int spec_vsock_from_json(struct spec_vsocks *l, const json_t *j, struct err *e);
