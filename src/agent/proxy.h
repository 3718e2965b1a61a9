/* Connections into the guest that need no program from the image: an EXEC with F_CTL_PORT. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* Starts a process that connects to a port of the guest and copies fd[0] to it, and its output to
 * fd[1]; it leads its own session, and exits with 1 if nothing listens there. -errno. */
pid_t proxy_start(uint32_t port, const int fd[3]);
