/* Indexes from strangers: what is picked is for the platform that was wanted, or does not say. */
#include <stdlib.h>
#include <string.h>

#include "image/oci/oci.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oci_index x;
    struct oci_descriptor d;
    struct oci_platform want = {(char[]){"linux"}, (char[]){"arm64"}, (char[]){"v8"}};
    struct err e = {0};
    int r = oci_index_pick(data, size, &want, &d, &e);
    if (r < 0 && (!e.msg[0] || -r != e.code))
        abort();
    if (oci_index_parse(data, size, &x, NULL) < 0) {
        if (r == 0)
            abort();
        return 0;
    }
    bool could = false;
    for (size_t i = 0; i < x.n; i++)
        could |= oci_platform_match(&x.entries[i].platform, &want) || !x.entries[i].platform.os;
    if (could != (r == 0) || x.n > OCI_INDEX_MAX)
        abort();
    if (r == 0)
        oci_descriptor_free(&d);
    oci_index_free(&x);
    return 0;
}
