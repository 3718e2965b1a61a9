/* Mappings of a guest's memory file, shared by all devices of the process, and safe against a guest
 * that truncates the file.
 *
 * Each vhost-user device is sent the same memory table; mapping it once saves page tables and
 * first-touch faults. Devices live on different threads, so this is the one place with a lock
 * (set-up and tear-down only).
 *
 * The guest's kernel holds the same file and may truncate it; touching a page that is no longer
 * there raises SIGBUS. A handler (installed with the first mapping) puts a private page of zeros
 * in its place and raises a flag, so the process lives and the device can be shut down. A SIGBUS
 * anywhere else has its default action.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct guest_map;

/* Maps [offset, offset+size) of a regular file open for reading and writing, or takes another
 * reference to it. -EINVAL unless fd is such a file and the range is inside it; -ENOSPC. */
int guest_map_get(struct guest_map **ret, int fd, uint64_t offset, uint64_t size);
void *guest_map_host(const struct guest_map *m); /* where `offset` is */
void guest_map_put(struct guest_map *m);         /* may be NULL */
/* Whether a page under this mapping has gone missing. */
bool guest_map_lost(const struct guest_map *m);
