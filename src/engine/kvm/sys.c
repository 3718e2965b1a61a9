#include "engine/kvm/sys.h"

#include <errno.h>
#include <stdint.h>
#include <sys/ioctl.h>

/* #syscalls:vcpu ioctl */

static int host_ioctl(int fd, unsigned long request, void *arg)
{
    int r = ioctl(fd, request, arg);
    return r < 0 ? -errno : r;
}

static kvm_ioctl_fn do_ioctl = host_ioctl;

int kvm_ioctl(int fd, unsigned long request, void *arg)
{
    return do_ioctl(fd, request, arg);
}

int kvm_ioctl_n(int fd, unsigned long request, unsigned long arg)
{
    return do_ioctl(fd, request, (void *)(uintptr_t)arg);
}

void kvm_ioctl_replace(kvm_ioctl_fn fn)
{
    do_ioctl = fn ? fn : host_ioctl;
}
