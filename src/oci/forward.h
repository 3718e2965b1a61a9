/* Connections to 127.0.0.1 in a pod's network namespace.
 *
 * The pod's localhost is in its guest, but callers that forward a port (kubectl port-forward)
 * connect to it in the namespace, from where a packet never leaves. A process there accepts these
 * connections, whatever their port (a BPF program in the namespace steers them to its one socket),
 * and each is forwarded to the same port in the guest over the sandbox's socket. On a host that
 * allows no such program, this does not work.
 */
#pragma once

/* Starts it, in the calling process's network namespace; it ends when the monitor (a pidfd) does.
 * dirfd: the sandbox's directory. */
void forward_start(int dirfd, int monitor);
