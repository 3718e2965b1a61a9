#include "cli/docker/docker.h"

#include "cli/image/image.h"
#include "util/cleanup.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum { PREFIX_LEN = sizeof("sha256:") - 1 };

void docker_image_id(const struct image_record *r, char out[DIGEST_TEXT_SIZE])
{
    struct digest config = digest_of(r->config, r->config_len);
    digest_text(&config, out);
}

/* The digits of an ID, which may be cut; NULL: it is none. */
static const char *id_digits(const char *word)
{
    const char *digits = strncmp(word, "sha256:", PREFIX_LEN) == 0 ? word + PREFIX_LEN : word;
    size_t n = strlen(digits);
    bool ok =
        n >= DOCKER_SHORT_ID && n < DIGEST_HEX_SIZE && strspn(digits, "0123456789abcdef") == n;
    return ok ? digits : NULL;
}

/* The names of the image whose ID begins with these digits; none if there is no such image. */
static int find_names(struct image_cache *c, const char *digits, struct strlist *ret, struct err *e)
{
    struct image_list list = {0};
    char id[DIGEST_TEXT_SIZE], found[DIGEST_TEXT_SIZE] = "";
    int r = image_store_list(&c->images, &list, e);
    for (size_t i = 0; r == 0 && i < list.n; i++) {
        AUTO_FREE char *name = image_name(&list.v[i]);
        docker_image_id(&list.v[i], id);
        if (strncmp(id + PREFIX_LEN, digits, strlen(digits)) != 0)
            continue;
        if (*found && strcmp(found, id) != 0)
            r = err_set(e, ENOTUNIQ, "Multiple IDs found with provided prefix: %s", digits);
        else if (!name || strlist_add(ret, name) < 0)
            r = err_oom(e);
        memcpy(found, id, sizeof(found));
    }
    image_list_free(&list);
    return r;
}

int docker_image_names(const char *word, struct strlist *ret, struct err *e)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    AUTO_IMAGE_RECORD struct image_record named = {0};
    AUTO_STRLIST struct strlist names = {0};
    const char *digits = id_digits(word);
    int r = digits ? image_cache_open(&c, e) : 0;
    if (r == 0 && digits && image_find(&c, word, &named, NULL) < 0)
        r = find_names(&c, digits, &names, e);
    if (r == 0 && names.n == 0 && strlist_add(&names, word) < 0)
        r = err_oom(e);
    if (r < 0)
        return r;
    *ret = names;
    names = (struct strlist){0};
    return 0;
}

int docker_find_image(const char *word, struct image_record *ret, struct err *e)
{
    AUTO_IMAGE_CACHE struct image_cache c = IMAGE_CACHE_NONE;
    AUTO_STRLIST struct strlist names = {0};
    int r = docker_image_names(word, &names, e);
    if (r == 0)
        r = image_cache_open(&c, e);
    if (r < 0)
        return r;
    assert(names.v);
    return image_find(&c, names.v[0], ret, e);
}
