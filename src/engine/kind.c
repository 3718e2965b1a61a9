#include "engine/kind.h"

#include "util/cleanup.h"
#include "util/words.h"

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
    int i = WORD_FIND(engine_names, s);
    return i < 0 ? ENGINE_INVALID : (enum engine_kind)i;
}
