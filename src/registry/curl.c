#include "registry/curl.h"

#include "registry/registry.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CURL_LIBRARY "libcurl.so.4"

static struct {
    pthread_mutex_t lock;
    bool loaded;
    struct curl_api api;
} lib = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int load_library(struct err *e)
{
    void *h = dlopen(CURL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!h) {
        err_set(e, ENOENT, "registries and buckets need libcurl: %s", dlerror());
        err_hint(e, "install it with `apt-get install libcurl4`");
        return -ENOENT;
    }
    struct curl_api api;
    const char *missing = NULL;
#define X(fn)                                                                               \
    {                                                                                       \
        void *sym = dlsym(h, "curl_" #fn);                                                  \
        if (!sym)                                                                           \
            missing = "curl_" #fn;                                                          \
        memcpy(&api.fn, &sym, sizeof(sym)); /* ISO C has no cast from object to function */ \
    }
    CURL_FUNCTIONS(X)
#undef X
    if (missing || api.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        (void)dlclose(h);
        return err_set(e, ELIBBAD, "%s is too old: it has no %s", CURL_LIBRARY,
                       missing ? missing : "working curl_global_init");
    }
    lib.api = api; /* loaded for good: threads and handlers of it may be alive at exit */
    lib.loaded = true;
    return 0;
}

int registry_library(char *version, size_t size, struct err *e)
{
    const struct curl_api *curl;
    int r = curl_load(&curl, e);
    if (r == 0) {
        const char *all = curl->version(); /* with the versions of all that it uses */
        (void)snprintf(version, size, "%.*s", (int)strcspn(all, " "), all);
    }
    return r;
}

int curl_load(const struct curl_api **ret, struct err *e)
{
    (void)pthread_mutex_lock(&lib.lock);
    int r = lib.loaded ? 0 : load_library(e);
    (void)pthread_mutex_unlock(&lib.lock);
    if (r == 0)
        *ret = &lib.api;
    return r;
}
