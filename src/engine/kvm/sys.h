/* The one door to the host's KVM. Everything that the engine asks of it goes through kvm_ioctl(),
 * so that a test can stand behind it: with a KVM of its own, or with one that fails. */
#ifndef MSB_ENGINE_KVM_SYS_H
#define MSB_ENGINE_KVM_SYS_H

/* Returns what the call returns, or -errno. */
typedef int (*kvm_ioctl_fn)(int fd, unsigned long request, void *arg);

int kvm_ioctl(int fd, unsigned long request, void *arg);
/* For calls whose argument is a number. */
int kvm_ioctl_n(int fd, unsigned long request, unsigned long arg);

/* For tests, before any thread runs; NULL brings the host's back. */
void kvm_ioctl_replace(kvm_ioctl_fn fn);

#endif
