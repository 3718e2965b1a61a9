/* The only way to the host's KVM: all of the engine's calls go through kvm_ioctl(), so that a test
 * can replace it with a fake KVM, or a failing one. */
#pragma once

/* Returns what the call returns, or -errno. */
typedef int (*kvm_ioctl_fn)(int fd, unsigned long request, void *arg);

int kvm_ioctl(int fd, unsigned long request, void *arg);
/* For calls whose argument is a number. */
int kvm_ioctl_n(int fd, unsigned long request, unsigned long arg);

/* For tests, before any thread runs; NULL restores the host's. */
void kvm_ioctl_replace(kvm_ioctl_fn fn);
