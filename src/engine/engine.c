#include "engine/engine.h"

#include "engine/kvm/probe.h"
#include "util/assets.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

static bool has_kernel(const struct engine_ops *ops)
{
    char dir[4096], path[sizeof(dir) + 64];
    if (assets_dir(dir, sizeof(dir), NULL) < 0)
        return false;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, ops->kernel_file);
    return access(path, R_OK) == 0;
}

/* Opens /dev/kvm, if it runs guests at all; *p says how fast. */
static int open_kvm(int *ret_fd, struct kvm_probe *p, struct err *e)
{
    AUTO_CLOSE int fd = -1;
    if (!has_kernel(&engine_kvm))
        return err_hinted(e, err_set(e, ENOENT, "there is no kernel for the kvm engine"),
                          "run `make kernel-kvm` to build it");
    int r = engine_kvm.open(&fd, e);
    if (r < 0)
        return r;
    kvm_probe(fd, false, p, e);
    if (p->verdict == KVM_NOT_RUN)
        return -e->code;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* For `auto`: chooses kvm if it runs at full speed, else says why not. */
static bool try_kvm(struct engine_choice *ret)
{
    struct err e = {0};
    struct kvm_probe p = {0};
    char speed[80];
    AUTO_CLOSE int fd = -1;
    if (open_kvm(&fd, &p, &e) < 0) {
        (void)snprintf(ret->why, sizeof(ret->why), "%.400s", e.msg);
        return false;
    }
    bool native = p.verdict == KVM_NATIVE;
    kvm_probe_speed(&p, speed, sizeof(speed));
    (void)snprintf(ret->why, sizeof(ret->why), "/dev/kvm %s, %s",
                   native ? "runs kernel code natively" : "opens, but emulates kernel code", speed);
    if (!native)
        return false;
    ret->ops = &engine_kvm;
    ret->device_fd = steal_fd(&fd);
    return true;
}

static int choose_kvm(struct engine_choice *ret, struct err *e)
{
    struct kvm_probe p = {0};
    char speed[80];
    int r = open_kvm(&ret->device_fd, &p, e);
    if (r < 0) {
        err_hint(e, "use --engine auto or --engine uml, which work without it");
        return r;
    }
    kvm_probe_speed(&p, speed, sizeof(speed));
    if (p.verdict == KVM_SLOW)
        (void)snprintf(ret->warning, sizeof(ret->warning),
                       "this host's /dev/kvm emulates kernel code, %s: the guest may not boot in "
                       "time; --engine auto would choose uml",
                       speed);
    ret->ops = &engine_kvm;
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
    return err_hinted(e, err_set(e, EINVAL, "unknown engine"),
                      "choose auto, kvm, uml or uml-ptrace");
}

void engine_choice_close(struct engine_choice *c)
{
    close_fd(&c->device_fd);
}
