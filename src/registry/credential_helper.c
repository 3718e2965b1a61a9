/* docker-credential-NAME: a program that keeps passwords. It reads the registry from standard input
 * and answers with JSON. It is the user's own program, but its output and its run time are still
 * bounded. */
#include "registry/credentials.h"

#include "image/oci/reference.h"
#include "util/command.h"
#include "util/json.h"

#include <errno.h>
#include <string.h>

enum { ANSWER_MAX = 256 << 10, HELPER_S = 60 };

int credential_helper_parse(const char *text, size_t n, struct credentials *ret, struct err *e)
{
    AUTO_JSON json_t *root = json_loadb(text, n, 0, NULL);
    struct credentials c = {.username = credentials_member(root, "Username"),
                            .password = credentials_member(root, "Secret")};
    if (!c.username || !c.password) {
        credentials_free(&c);
        return err_set(e, EINVAL, "the answer lacks a Username or a Secret");
    }
    if (strcmp(c.username, "<token>") == 0) {
        c.identity_token = c.password;
        c.password = NULL;
        free(c.username);
        c.username = NULL;
    }
    *ret = c;
    return 0;
}

/* Not knowing a registry is not an error; all helpers report it with these words. */
static bool is_not_found(const struct buf *b)
{
    static const char words[] = "credentials not found";
    return buf_len(b) >= sizeof(words) - 1 &&
           memmem(buf_head(b), buf_len(b), words, sizeof(words) - 1) != NULL;
}

/* Its exit status. */
static int run_helper(char *program, const char *server, struct buf *answer, struct err *e)
{
    char *argv[] = {program, (char *)(uintptr_t) "get", NULL};
    const struct command c = {.argv = argv, .input = server, .quiet = true, .seconds = HELPER_S};
    char *to = (char *)buf_reserve(answer, ANSWER_MAX);
    size_t n = 0;
    if (!to)
        return err_oom(e);
    int r = command_run(&c, to, ANSWER_MAX, &n);
    buf_commit(answer, n);
    if (r == -ETIME)
        return err_set(e, ETIMEDOUT, "%s did not answer within %d s", program, HELPER_S);
    if (r == -EFBIG)
        return err_set(e, EFBIG, "%s printed more than %d KiB", program, ANSWER_MAX >> 10);
    if (r >= 0)
        return r;
    err_sys(e, -r, "cannot run %s, named in Docker's config.json", program);
    if (r == -ENOENT)
        err_hint(e, "install it, or run `msb registry login`");
    return r == -ENOENT ? -ENOEXEC : r; /* -ENOENT means that it does not know the registry */
}

int credential_helper_get(const char *name, const char *registry, struct credentials *ret,
                          struct err *e)
{
    char program[128];
    (void)snprintf(program, sizeof(program), "docker-credential-%s", name);
    const char *server = strcmp(registry, REFERENCE_HUB) == 0 ? DOCKER_HUB_KEY : registry;
    AUTO_SECRET_BUF struct buf answer;
    buf_init(&answer, ANSWER_MAX);
    int r = run_helper(program, server, &answer, e);
    if (r < 0)
        return r;
    const char *text = buf_len(&answer) ? (const char *)buf_head(&answer) : "";
    if (r != 0)
        return is_not_found(&answer) ? -ENOENT
                                     : err_set(e, EIO, "%s failed: %.*s", program,
                                               (int)MIN(buf_len(&answer), 200U), text);
    r = credential_helper_parse(text, buf_len(&answer), ret, e);
    return r < 0 ? err_wrap(e, r, "%s", program) : 0;
}
