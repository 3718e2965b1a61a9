/* A pull with progress display: one line per layer on a terminal, plain lines elsewhere, nothing
 * with --quiet. Used by `msb pull`, and by `create` and `run` when they pull. */
#pragma once

#include "image/oci/digest.h"
#include "image/oci/reference.h"
#include "image/store/store.h"
#include "registry/pull.h"
#include "registry/push.h"
#include "util/err.h"

/* Like pull_image, with progress on stderr. What opt->registry leaves NULL (home, notice, cancel)
 * is set here. SIGINT and SIGTERM end the pull with -EINTR (e set): the next pull resumes from what
 * was downloaded, and the caller should exit with cli_pull_exit_code(). Nothing is kept of a
 * damaged image. */
int cli_pull(struct image_store *s, const struct reference *ref, const struct pull_options *opt,
             struct digest *ret, struct err *e);

/* After -EINTR: 128 and the signal. */
int cli_pull_exit_code(void);

/* The same for a push. */
int cli_push(struct image_store *s, const struct image_record *rec, const struct reference *ref,
             const struct registry_options *opt, struct digest *ret, struct err *e);
