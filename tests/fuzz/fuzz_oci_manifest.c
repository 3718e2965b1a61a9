/* Manifests from strangers: what is accepted keeps its promises. */
#include <stdlib.h>
#include <string.h>

#include "image/oci/oci.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oci_manifest m;
    enum oci_kind kind;
    struct err e = {0};
    if (oci_kind(data, size, &kind, &e) < 0 && !e.msg[0])
        abort();
    e = (struct err){0};
    if (oci_manifest_parse(data, size, &m, &e) < 0) {
        if (!e.msg[0] || !e.code)
            abort();
        return 0;
    }
    if (!m.n_layers || m.n_layers > OCI_LAYERS_MAX || m.config.size > OCI_CONFIG_MAX)
        abort();
    for (size_t i = 0; i < m.n_layers; i++)
        if (!m.layers[i].media_type || m.layers[i].size > INT64_MAX)
            abort();
    oci_manifest_free(&m);
    return 0;
}
