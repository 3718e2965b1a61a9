/* What the warden of a user-mode kernel hands out in a reduced jail (jail/reduced.h), where the
 * kernel has no separate file system, network or process tree, and so may name no file, socket or
 * process:
 *
 *     openat        a temporary file is guest memory; what it creates is /dev/null; the one file
 *                   that is only read is /proc/cpuinfo; there are no others
 *     mkdir         succeeds, without a directory
 *     memfd_create  a file for the stubs' program
 *     connect       the socket becomes a connection to the next device
 *     kill          signals reach the kernel and its stubs
 *     fcntl         for F_SETOWN: the kernel can make itself the owner of a descriptor
 *
 * Memory is a memfd whose size is sealed, so it needs no tmpfs to limit it. Only arguments by value
 * are looked at: no path, no address. A kernel that asks out of order gets whatever comes next,
 * which harms only itself.
 */
#pragma once

#include "engine/engine.h"

#include <linux/seccomp.h>
#include <sys/types.h>

struct desk;

/* The answer to a question: an error, a result in place of the call, or permission to make the
 * call. */
struct answer {
    int code;
    bool instead;
    uint64_t result;
};

/* Creates what will be handed out, and the device sockets, in the current directory, which is empty
 * and private. stubs: how many processes the kernel may have at once. */
int desk_open(struct desk **ret, const struct engine_params *p, size_t stubs, int *listen_fd,
              struct err *e);
/* The descriptors it needs, for process_close_others(). */
enum { DESK_FDS_MAX = ENGINE_DEVICES_MAX + 4 };
size_t desk_fds(const struct desk *d, int fds[DESK_FDS_MAX]);
/* Call once the kernel runs, and before its first question. */
int desk_watch(struct desk *d, pid_t kernel);
/* A process that is about to become a stub: 0, or the error with which its exec fails. */
int desk_note_stub(struct desk *d, pid_t pid);
struct answer desk_answer(struct desk *d, int listener, uint64_t id,
                          const struct seccomp_data *call);
