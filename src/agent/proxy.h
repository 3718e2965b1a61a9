/* Connections into the guest, without a program of the image: an EXEC with F_CTL_PORT. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

/* A process that connects to the guest's own port and passes fd[0] to it, and what it says to fd[1]; it
 * leads its own session, and exits with 1 if nobody listens. -errno. */
pid_t proxy_start(uint32_t port, const int fd[3]);
