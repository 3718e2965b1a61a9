/* The options of `create` and `run` that say what a sandbox is, and the spec made from them. */
#ifndef MSB_CLI_SANDBOX_OPTS_H
#define MSB_CLI_SANDBOX_OPTS_H

#include "cli/args.h"
#include "sandbox/lifecycle.h"
#include "spec/spec.h"
#include "store/store.h"

extern const struct opt sandbox_opts[];

/* What of the command line is not part of the spec. */
struct sandbox_request {
    struct sandbox_spec spec;
    struct create_options create;
    bool named;     /* the user chose the name */
    int exit_code;  /* of a failure, where it is not the usual one; else 0 */
    int image_lock; /* nobody removes the image meanwhile: see struct image */
};

/* Everything that can be checked without touching the host is, so that bad input fails before
 * anything starts. The image is not looked up yet. */
int sandbox_request_parse(const struct args *a, struct sandbox_request *q, struct err *e);
void sandbox_request_free(struct sandbox_request *q);
/* Prints why it failed; the exit code. */
int sandbox_request_fail(const struct sandbox_request *q, const struct err *e);

/* Finds the image, takes over its defaults where the user said nothing, checks the result. */
int sandbox_request_resolve(struct sandbox_request *q, const struct args *a, const struct store *s,
                            struct err *e);

/* Appends K=V; K alone is taken from this process's environment. */
int env_option(struct strlist *env, const char *arg, struct err *e);

#endif
