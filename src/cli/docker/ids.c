#include "cli/docker/docker.h"

#include "image/oci/digest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void docker_id(const char *name, uint64_t created_ns, char out[DOCKER_ID_SIZE])
{
    char text[SPEC_NAME_MAX + 64];
    int n =
        snprintf(text, sizeof(text), "msb container %s %llu", name, (unsigned long long)created_ns);
    struct digest d = digest_of(text, (size_t)n);
    digest_hex(&d, out);
}

bool docker_is_running(const struct sandbox *sb)
{
    return sb->state.pid != 0;
}

static int no_such(const char *word, struct err *e)
{
    return err_set(e, ENOENT, "No such container: %s", word);
}

/* The name of the one sandbox whose ID begins with these digits. */
static int find_by_id(const struct store *s, const char *word, char name[SPEC_NAME_MAX + 1],
                      struct err *e)
{
    struct sandbox *list;
    size_t n, len = strlen(word), found = 0;
    if (len == 0 || len >= DOCKER_ID_SIZE || strspn(word, "0123456789abcdef") != len)
        return no_such(word, e);
    int r = store_list(s, &list, &n, e);
    if (r < 0)
        return r;
    for (size_t i = 0; i < n; i++) {
        char id[DOCKER_ID_SIZE];
        docker_id(list[i].spec.name, list[i].spec.created_ns, id);
        if (strncmp(id, word, len) == 0) {
            found++;
            (void)snprintf(name, SPEC_NAME_MAX + 1, "%s", list[i].spec.name);
        }
    }
    sandbox_list_free(list, n);
    if (found > 1)
        return err_set(e, ENOENT, "Multiple IDs found with provided prefix: %s", word);
    return found ? 0 : no_such(word, e);
}

int docker_open(const struct store *s, const char *word, struct sandbox *ret, struct err *e)
{
    char name[SPEC_NAME_MAX + 1];
    const char *plain = word[0] == '/' ? word + 1 : word; /* as `inspect` writes names */
    int r = spec_check_name(plain, NULL) == 0 ? sandbox_open(s, plain, ret, e) : -ENOENT;
    if (r != -ENOENT)
        return r;
    err_clear(e);
    r = find_by_id(s, word, name, e);
    return r < 0 ? r : sandbox_open(s, name, ret, e);
}

int docker_open_first(const struct docker_cmd *d, struct sandbox *ret, struct err *e)
{
    AUTO_STORE struct store s = STORE_NONE;
    int r = store_open(&s, e);
    return r < 0 ? r : docker_open(&s, d->words[0], ret, e);
}
