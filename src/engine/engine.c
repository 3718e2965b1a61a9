#include "engine/engine.h"

#include <errno.h>

const struct engine_ops *engine_choose(enum engine_kind kind, const char **why, struct err *e)
{
    switch (kind) {
    case ENGINE_AUTO:
        if (why)
            *why = "the kvm engine is not part of this version";
        return &engine_uml;
    case ENGINE_UML:
        if (why)
            *why = "asked for";
        return &engine_uml;
    case ENGINE_UML_PTRACE:
        if (why)
            *why = "asked for";
        return &engine_uml_ptrace;
    case ENGINE_KVM:
        err_set(e, ENOTSUP, "the kvm engine is not available yet");
        err_hint(e, "use --engine auto or --engine uml");
        return NULL;
    case ENGINE_INVALID:
        break;
    }
    err_set(e, EINVAL, "unknown engine");
    err_hint(e, "engines are: auto, kvm, uml, uml-ptrace");
    return NULL;
}
