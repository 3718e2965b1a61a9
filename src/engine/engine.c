#include "engine/engine.h"

#include "engine/kvm/probe.h"
#include "util/assets.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static const char no_kernel[] = "there is no kernel for the kvm engine";

static bool has_kernel(const struct engine_ops *ops)
{
    char dir[4096], path[sizeof(dir) + 64];
    if (assets_dir(dir, sizeof(dir), NULL) < 0)
        return false;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, ops->kernel_file);
    return access(path, R_OK) == 0;
}

/* For `auto`: kvm if it runs at full speed, else why not. */
static bool try_kvm(struct engine_choice *ret)
{
    struct err e = {0};
    struct kvm_probe p = {0};
    char speed[80];
    AUTO_CLOSE int fd = -1;
    if (!has_kernel(&engine_kvm)) {
        (void)snprintf(ret->why, sizeof(ret->why), "%s; run `make kernel-kvm`", no_kernel);
        return false;
    }
    if (kvm_device_open(&fd, &e) < 0) {
        (void)snprintf(ret->why, sizeof(ret->why), "%.400s", e.msg);
        return false;
    }
    kvm_probe(fd, false, &p, &e);
    kvm_probe_speed(&p, speed, sizeof(speed));
    if (p.verdict == KVM_NOT_RUN)
        (void)snprintf(ret->why, sizeof(ret->why), "%.400s", e.msg);
    else
        (void)snprintf(ret->why, sizeof(ret->why), "/dev/kvm %s kernel code%s, %s",
                       p.verdict == KVM_NATIVE ? "runs" : "opens, but emulates",
                       p.verdict == KVM_NATIVE ? " natively" : "", speed);
    if (p.verdict != KVM_NATIVE)
        return false;
    ret->ops = &engine_kvm;
    ret->device_fd = steal_fd(&fd);
    return true;
}

static int choose_kvm(struct engine_choice *ret, struct err *e)
{
    struct kvm_probe p = {0};
    char speed[80];
    int fd = -1;
    if (!has_kernel(&engine_kvm)) {
        err_set(e, ENOENT, "%s", no_kernel);
        err_hint(e, "run `make kernel-kvm` to build it");
        return -ENOENT;
    }
    int r = engine_kvm.open(&fd, e);
    if (r == 0) {
        kvm_probe(fd, false, &p, e);
        if (p.verdict == KVM_NOT_RUN)
            r = -e->code;
    }
    if (r < 0) {
        err_hint(e, "use --engine auto or --engine uml, which work without it");
        close_fd(&fd);
        return r;
    }
    kvm_probe_speed(&p, speed, sizeof(speed));
    if (p.verdict == KVM_SLOW)
        (void)snprintf(ret->warning, sizeof(ret->warning),
                       "this host's /dev/kvm emulates kernel code, %s: the guest may not boot in "
                       "time; --engine auto would choose uml",
                       speed);
    ret->ops = &engine_kvm;
    ret->device_fd = fd;
    return 0;
}

int engine_choose(enum engine_kind kind, struct engine_choice *ret, struct err *e)
{
    *ret = (struct engine_choice){.device_fd = -1, .why = "asked for"};
    switch (kind) {
    case ENGINE_AUTO:
        if (!try_kvm(ret))
            ret->ops = &engine_uml;
        return 0;
    case ENGINE_UML:
        ret->ops = &engine_uml;
        return 0;
    case ENGINE_UML_PTRACE:
        ret->ops = &engine_uml_ptrace;
        return 0;
    case ENGINE_KVM:
        return choose_kvm(ret, e);
    case ENGINE_INVALID:
        break;
    }
    err_set(e, EINVAL, "unknown engine");
    err_hint(e, "choose auto, kvm, uml or uml-ptrace");
    return -EINVAL;
}

void engine_choice_close(struct engine_choice *c)
{
    close_fd(&c->device_fd);
}
