#include "image/oci/image_config.h"

#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>

static void free_list(char **list)
{
    for (char **p = list; p && *p; p++)
        free(*p);
    free(list);
}

int image_config_init(struct image_config *c)
{
    *c = (struct image_config){0};
    char ***lists[] = {&c->env,    &c->entrypoint,    &c->cmd,
                       &c->labels, &c->exposed_ports, &c->volumes};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        if (!(*lists[i] = calloc(1, sizeof(char *)))) {
            image_config_free(c);
            return -ENOMEM;
        }
    return 0;
}

void image_config_free(struct image_config *c)
{
    free_list(c->env);
    free_list(c->entrypoint);
    free_list(c->cmd);
    free_list(c->labels);
    free_list(c->exposed_ports);
    free_list(c->volumes);
    free(c->workdir);
    free(c->user);
    free(c->stop_signal);
    *c = (struct image_config){0};
}
