/* A pull that the user watches: one line per layer on a terminal, plain lines elsewhere, nothing
 * with --quiet. `msb pull`, and `create` and `run` where they have to pull, all come through here.
 */
#ifndef MSB_CLI_PULL_PROGRESS_H
#define MSB_CLI_PULL_PROGRESS_H

#include "image/oci/digest.h"
#include "image/oci/reference.h"
#include "image/store/store.h"
#include "registry/pull.h"
#include "util/err.h"

/* As pull_image, with progress on stderr. Whatever opt->registry leaves NULL (home, notice, cancel)
 * is set here. While it runs, SIGINT and SIGTERM end the pull with -EINTR (e set): what was
 * downloaded stays for the next one, and the caller should exit with cli_pull_exit_code(). Of an
 * image that is damaged nothing stays. */
int cli_pull(struct image_store *s, const struct reference *ref, const struct pull_options *opt,
             struct digest *ret, struct err *e);

/* After -EINTR: 128 and the signal. */
int cli_pull_exit_code(void);

#endif
