/* Configurations from strangers: lists are lists, and strings what their users rely on. */
#include <stdlib.h>
#include <string.h>

#include "image/oci/oci.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_list(char **list)
{
    size_t n = 0;
    if (!list)
        abort();
    while (list[n])
        n++;
    if (n > OCI_LIST_MAX)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct oci_config c;
    struct err e = {0};
    if (oci_config_parse(data, size, &c, &e) < 0) {
        if (!e.msg[0] || !e.code)
            abort();
        return 0;
    }
    check_list(c.run.env);
    check_list(c.run.entrypoint);
    check_list(c.run.cmd);
    check_list(c.run.labels);
    check_list(c.run.exposed_ports);
    check_list(c.run.volumes);
    for (char **p = c.run.env; *p; p++)
        if (**p == '=' || !strchr(*p, '='))
            abort();
    if (c.n_diff_ids > OCI_LAYERS_MAX || (c.run.workdir && c.run.workdir[0] != '/'))
        abort();
    oci_config_free(&c);
    return 0;
}
