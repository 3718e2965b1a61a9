/* Connections to 127.0.0.1 in a pod's network namespace.
 *
 * The pod's localhost is in its guest, but callers that forward a port (kubectl port-forward) connect
 * to it in the namespace, from where a packet never leaves. A process there takes these connections,
 * whatever their port (a BPF program of the namespace hands them to its one socket), and each is
 * carried to the same port in the guest over the sandbox's socket. On a host that allows no such
 * program there are none.
 */
#pragma once

/* Starts it, in the calling process's network namespace; it ends with the monitor (a pidfd). dirfd: the
 * sandbox's directory. */
void forward_start(int dirfd, int monitor);
