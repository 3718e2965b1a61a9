/* The first bytes of a flow: whole, and cut anywhere, they must say the same in the end. */
#include "net/sniff.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sniffer whole, part;
    if (size == 0)
        return 0;
    size_t cut = data[0] * size / 256;
    uint8_t *p = malloc(size);
    if (!p)
        abort();
    memcpy(p, data + 1, size - 1);
    enum sniff_kind all = sniff(&whole, p, size - 1, false);
    if (memchr(whole.name, 0, sizeof(whole.name)) == NULL)
        abort();
    if (cut < size) { /* a decision on fewer bytes must not change with more of them */
        enum sniff_kind early = sniff(&part, p, cut, false);
        if (early != SNIFF_MORE && (early != all || strcmp(part.name, whole.name) != 0))
            abort();
    }
    free(p);
    return 0;
}
