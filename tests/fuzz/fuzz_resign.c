/* Requests that a guest has signed, signed again: what comes out is one line that signs the host, has the key's
 * name in it, and never the key. */
#include "fuzz_require.h"

#include "s3/resign.h"
#include "util/cleanup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SECRET "never(shown)" /* which no token can be */
#define TOKEN "session-token"
#define BEGIN "AWS4-HMAC-SHA256 Credential=ID/"

static struct http_head head;

/* Whether `name` is among the headers that were signed. */
static bool signs(const char *line, const char *name)
{
    const char *at = strstr(line, "SignedHeaders=");
    const char *end = at ? strchr(at, ',') : NULL;
    size_t n = strlen(name);
    REQUIRE(end);
    for (at += strlen("SignedHeaders="); at < end; at += strcspn(at, ";,") + 1)
        if (strcspn(at, ";,") == n && memcmp(at, name, n) == 0)
            return true;
    return false;
}

static void check(const struct buf *out, bool token)
{
    const char *line = (const char *)buf_head(out);
    size_t n = strnlen(line, buf_len(out));
    REQUIRE(n < buf_len(out) && strncmp(line, BEGIN, strlen(BEGIN)) == 0);
    const char *last = line + n + 1;
    REQUIRE(strnlen(last, buf_len(out) - n - 1) == buf_len(out) - n - 2);
    REQUIRE(strcmp(last, token ? TOKEN : "") == 0);
    for (size_t i = 0; i < n; i++)
        REQUIRE(line[i] >= ' ' && line[i] < 0x7f);
    REQUIRE(!strstr(line, SECRET) && signs(line, "host"));
    REQUIRE(!token || signs(line, "x-amz-security-token"));
}

static void again(const char *value, const char *body, size_t n, bool token)
{
    AUTO_BUF struct buf out = {.limit = 1 << 20};
    const char *why = NULL;
    int r = resign(&head, value, body, n, &out, &why);
    REQUIRE(r == 0 || r == -ENOMEM || (r == -ENODATA && !body) || (r == -EINVAL && why));
    if (r == 0)
        check(&out, token);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *why;
    size_t seen = 0;
    char *p = malloc(size + 1); /* of its own size, so that reading on is noticed */
    REQUIRE(p);
    memcpy(p, data, size);
    ssize_t k = http_head_end(p, size, &seen);
    if (k > 0 && http_request(p, (size_t)k, &head, &why) == 0) {
        again("ID:" SECRET, NULL, 0, false);
        again("ID:" SECRET ":" TOKEN, p + k, size - (size_t)k, true);
    }
    free(p);
    return 0;
}
