/* The options of `create` and `run` that describe a sandbox, and the spec made from them. */
#pragma once

#include "cli/core/conf.h"
#include "cli/options/net.h"
#include "cli/options/security.h"
#include "cli/options/tls.h"
#include "cli/options/traffic.h"
#include "sandbox/lifecycle.h"
#include "spec/spec.h"
#include "store/store.h"

extern const struct opt_group identity_group, resource_group, command_group, file_group,
    image_group;
/* For struct cmd.groups, with the network's. */
#define SANDBOX_GROUPS                                                                            \
    &identity_group, &resource_group, &security_group, &guest_group, &command_group, &file_group, \
        &net_group, &tls_group, &traffic_group, &image_group, &conf_group

#define IMAGE_ARGUMENT_HELP "Image, directory or tar file to boot (default: msb/base)"

/* A spec, and what else the command line specifies about the creation. */
struct sandbox_request {
    struct sandbox_spec spec;
    struct create_options create;
    bool named;     /* the user chose the name */
    bool passing;   /* only --rm: it is not kept, though it has a name */
    int exit_code;  /* of a failure, if not EXIT_FAILED; else 0 */
    int image_lock; /* keeps the image from being removed meanwhile: see struct image */
};

/* Checks everything that can be checked without touching the host, so that bad input fails before
 * anything starts. The image is not looked up yet. */
int sandbox_request_parse(const struct args *a, struct sandbox_request *q, struct err *e);
void sandbox_request_free(struct sandbox_request *q);
/* Prints why it failed; returns the exit code. */
int sandbox_request_fail(const struct sandbox_request *q, const struct err *e);

/* Finds the image, applies its defaults where the user set nothing, and checks the result. */
int sandbox_request_resolve(struct sandbox_request *q, const struct args *a, const struct store *s,
                            struct err *e);
