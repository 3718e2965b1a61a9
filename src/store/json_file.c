#include "store/json_file.h"

#include "util/cleanup.h"
#include "util/fs.h"

#include <errno.h>
#include <string.h>

int json_file_load(int dirfd, const char *name, size_t max, json_t **ret)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    int r = file_read_at(dirfd, name, max, &text, &n);
    if (r < 0)
        return r;
    *ret = json_loadb(text, n, 0, NULL);
    return 0;
}

int json_file_save(int dirfd, const char *name, json_t *j, bool sync)
{
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(j);
    return text ? file_replace_at(dirfd, name, text, strlen(text), 0600, sync) : -ENOMEM;
}
