/* Disks that a sandbox mounts: volumes of that kind, and raw files of the host.
 *
 * What is in them is the guest's: its kernel mounts them, the host never does, nor looks inside. A
 * disk has one sandbox that writes it, or any number that read it: the launcher takes an flock with
 * the descriptor that the monitor goes on to hold, so it ends with the monitor, however that dies.
 */
#ifndef MSB_LAUNCH_DISKS_H
#define MSB_LAUNCH_DISKS_H

#include "store/store.h"

/* Opens and locks all of them, in the order of the spec's mounts. EBUSY, naming the sandbox that
 * has it, for one that is taken. fds: room for SPEC_SHARES_MAX; on failure *n of them are open. */
int disks_open(const struct store *s, const struct sandbox_spec *spec, int *fds, size_t *n,
               struct err *e);

#endif
