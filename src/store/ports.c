#include "store/ports.h"

#include "store/json_file.h"
#include "util/cleanup.h"
#include "util/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PORTS_FILE_MAX = 64 * 1024 };

static const char PORTS_FILE[] = "ports.json";

int ports_save(int run_fd, const struct spec_port *p, size_t n)
{
    if (n == 0)
        return unlinkat(run_fd, PORTS_FILE, 0) < 0 && errno != ENOENT ? -errno : 0;
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_add(&a, spec_port_to_json(&p[i]));
    return json_file_save(run_fd, PORTS_FILE, a, false);
}

static int ports_load(const struct store *s, const char *name, struct spec_port **ret, size_t *n)
{
    char path[SPEC_NAME_MAX + 32];
    AUTO_JSON json_t *a = NULL;
    (void)snprintf(path, sizeof(path), "%s/run/%s", name, PORTS_FILE);
    int r = json_file_load(s->sandboxes_fd, path, PORTS_FILE_MAX, &a);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    size_t count = MIN(json_array_size(a), (size_t)SPEC_PUBLISH_MAX);
    struct spec_port *p = count ? calloc(count, sizeof(*p)) : NULL;
    for (size_t i = 0; p && i < count; i++)
        if (spec_port_from_json(json_array_get(a, i), &p[*n]) == 0)
            (*n)++;
    *ret = p;
    return count && !p ? -ENOMEM : 0;
}

int sandbox_ports(const struct store *s, const struct sandbox *sb, struct spec_port **ret,
                  size_t *n)
{
    const struct spec_net *net = &sb->spec.net;
    *ret = NULL;
    *n = 0;
    if (sb->state.pid)
        return ports_load(s, sb->spec.name, ret, n);
    if (net->n_ports == 0)
        return 0;
    *ret = calloc(net->n_ports, sizeof(**ret));
    if (!*ret)
        return -ENOMEM;
    memcpy(*ret, net->ports, net->n_ports * sizeof(**ret));
    *n = net->n_ports;
    return 0;
}
