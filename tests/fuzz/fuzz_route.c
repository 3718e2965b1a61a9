/* Answers about routes: none is read past its end, and an answer to another question is none. */
#include "net/host_route.h"

#include <errno.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *p = malloc(size ? size : 1); /* so that a sanitizer sees its end */
    if (!p)
        abort();
    if (size)
        memcpy(p, data, size);
    uint32_t seq = 7;
    if (size >= 12)
        memcpy(&seq, data + 8, sizeof(seq));
    int same = route_read(p, size, seq), other = route_read(p, size, seq + 1);
    if (same > 255 || same < -4095 || same == -EAGAIN)
        abort();
    if (other != (same == -EBADMSG ? other : -EAGAIN) || other >= 0)
        abort();
    free(p);
    return 0;
}
