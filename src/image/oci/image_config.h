/* An image's defaults for the commands that run in it. */
#pragma once

/* Lists are NULL-terminated arrays and never NULL once the image is resolved; strings may be NULL
 * where the image does not set them. For directories and tars, everything is empty. */
struct image_config {
    char **env; /* "KEY=VALUE" */
    char **entrypoint;
    char **cmd;
    char **labels;        /* "KEY=VALUE" */
    char **exposed_ports; /* "80/tcp" */
    char **volumes;       /* paths */
    char *workdir;
    char *user;
    char *stop_signal; /* "SIGTERM", "15" */
};
/* Makes all lists empty; -ENOMEM. */
int image_config_init(struct image_config *c);
void image_config_free(struct image_config *c); /* may be called twice, or on zeros */
