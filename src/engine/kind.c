#include "engine/kind.h"

#include "util/cleanup.h"

#include <string.h>

static const char *const engine_names[] = {
    [ENGINE_AUTO] = "auto",
    [ENGINE_KVM] = "kvm",
    [ENGINE_UML] = "uml",
    [ENGINE_UML_PTRACE] = "uml-ptrace",
};

const char *engine_kind_name(enum engine_kind k)
{
    return k >= 0 && (size_t)k < ARRAY_LEN(engine_names) ? engine_names[k] : "invalid";
}

enum engine_kind engine_kind_parse(const char *s)
{
    for (size_t i = 0; i < ARRAY_LEN(engine_names); i++)
        if (strcmp(s, engine_names[i]) == 0)
            return (enum engine_kind)i;
    return ENGINE_INVALID;
}
