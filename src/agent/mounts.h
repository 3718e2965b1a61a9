/* The guest's file systems.
 *
 * The kernel has mounted the tools disk as root, with /dev on it. What a command sees is built
 * here: the image (read-only EROFS) under a writable layer (ext4 or tmpfs), joined by overlayfs.
 *
 *   /mnt/lower   the image          /mnt/upper   the writable layer, with upper/ and work/ in it
 *   /newroot     the two joined; becomes /
 *
 * Or the root is a share, with nothing above it and none of our files in it. A read-only one still
 * gets a writable layer, for mount points, and becomes read-only once everything is mounted.
 *
 * The image's own top-level directories are not trusted: /proc, /sys, /dev and /.msb are made real
 * directories before anything is mounted on them. All other paths are resolved after the change of
 * root, so a symlink in the image cannot lead out of it.
 */
#pragma once

/* Of cgroup2, for all mounts of it: from within a cgroup namespace nothing can leave its group, or lift
 * the group's limits. A later mount without it, by the agent, would switch it off. */
#define MOUNTS_CGROUP_OPTIONS "nsdelegate"

#include "agent/request.h"
#include "util/err.h"

/* Everything that can make the start fail: layers, change of root, /proc, /dev, tools and scripts,
 * requested mounts. *upper_fd becomes a descriptor of the writable layer's file
 * system, or -1. */
int mounts_build(struct config *cfg, int *upper_fd, struct err *e);

/* For containers of a pod (container.c). */
int mounts_kernel_fs(const char *type, const char *path, unsigned long flags, const char *opts,
                     struct err *e);
int mounts_tmpfs(const struct req_mount *m, struct err *e);
/* Creates an empty file to mount on, unless one exists. */
int mounts_make_file(const char *path);

/* What can wait until after READY: /sys, /dev/shm and the like, and the directories that the image
 * declares as volumes. Images and kernels without them still work, so failures are ignored. */
void mounts_complete(const struct config *cfg);

/* Hides paths, and makes others read-only. The last step, since the kernel's settings may be among
 * them. */
void mounts_cover(const struct config *cfg);
