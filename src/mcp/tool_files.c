/* Tools for files. The child reads and writes them through the agent; it gives its answer on
 * standard output: of read_file the size of the file (8 bytes, as in memory) and then its bytes, of
 * the others JSON. */
#include "mcp/tools.h"

#include "client/files.h"
#include "mcp/message.h"
#include "sandbox/lifecycle.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/text.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_DEFAULT = 1 << 20,
    ENTRIES_MAX = 10000,
    LISTING_MAX = 8 << 20,
    WRITE_STEP = 64 * 1024,
};

/* --- in the child ---------------------------------------------------------------------------- */

static int complain(const struct err *e)
{
    (void)fprintf(stderr, "error: %s\n", e->msg);
    return 1;
}

static void no_warning(const char *text)
{
    (void)text;
}

/* Runs fn with a stream to the sandbox, which is started for it if need be. */
static int with_files(const struct tool_run *run,
                      int (*fn)(const struct tool_run *run, struct files *f, struct err *e))
{
    struct files f;
    struct store s; /* the server's descriptors are not ours */
    struct err e = {0};
    bool started = false;
    int sock;
    int r = store_open(&s, &e);
    if (r == 0)
        r = sandbox_attach(&s, run->name, no_warning, &sock, &started, &e);
    if (r == 0) {
        r = files_open(&f, sock, run->name, NULL, NULL, &e);
        if (r == 0)
            r = fn(run, &f, &e);
        files_close(&f);
    }
    if (started)
        (void)sandbox_release(&s, run->name, NULL, NULL);
    store_close(&s);
    return r < 0 ? complain(&e) : 0;
}

static int put(const void *p, size_t n, struct err *e)
{
    int r = write_all(STDOUT_FILENO, p, n);
    return r < 0 ? err_sys(e, -r, "cannot answer") : 0;
}

static int put_json(json_t *j, struct err *e)
{
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text ? put(text, strlen(text), e) : err_oom(e);
}

static int request(const struct tool_run *run, uint32_t op, uint32_t flags, struct file_req *q,
                   struct err *e)
{
    int r = file_req_init(q, op, run->path, flags);
    return r < 0 ? err_sys(e, -r, "'%.100s'", run->path) : 0;
}

static int read_it(const struct tool_run *run, struct files *f, struct err *e)
{
    struct file_req q;
    struct proto_frame frame;
    struct file_attr a = {0};
    int r = request(run, FILE_OP_READ, 0, &q, e);
    q.has |= FILE_HAS_OFFSET | FILE_HAS_LENGTH;
    q.offset = run->offset;
    q.length = run->length;
    if (r == 0)
        r = files_send(f, &q, e);
    if (r == 0)
        r = files_next(f, &frame, e);
    if (r == 0 && (frame.type != PROTO_FILE_ENTRY || file_attr_parse(&a, &frame) < 0))
        r = err_set(e, EPROTO, "the sandbox does not keep to the protocol");
    if (r == 0)
        r = put(&a.size, sizeof(a.size), e);
    for (uint64_t got = 0; r == 0; got += frame.len) {
        r = files_next(f, &frame, e);
        if (r < 0 || frame.type == PROTO_FILE_OK)
            break;
        if (frame.type != PROTO_FILE_DATA || frame.len > run->length - got)
            r = err_set(e, EPROTO, "the sandbox does not keep to the protocol");
        else
            r = put(frame.data, frame.len, e);
    }
    return r;
}

static int write_it(const struct tool_run *run, struct files *f, struct err *e)
{
    struct file_req q;
    struct file_attr a = {0};
    char block[WRITE_STEP];
    ssize_t n = 0;
    int r = request(run, FILE_OP_WRITE, FILE_PARENTS | (run->append ? FILE_APPEND : 0), &q, e);
    q.has |= FILE_HAS_MODE;
    q.mode = run->mode;
    if (r == 0)
        r = files_send(f, &q, e);
    while (r == 0 && !files_answered(f) && (n = read(STDIN_FILENO, block, sizeof(block))) > 0)
        r = files_send_data(f, block, (size_t)n, e);
    if (r == 0 && n < 0)
        r = err_sys(e, errno, "cannot read what to write");
    if (r == 0)
        r = files_send_part(f, PROTO_FILE_END, NULL, e);
    if (r == 0)
        r = files_wait(f, &a, e);
    return r < 0 ? r
                 : put_json(json_pack("{s:s, s:I}", "path", run->path, "size", (json_int_t)a.size),
                            e);
}

static const char *type_name(uint32_t mode)
{
    return S_ISREG(mode)    ? "file"
           : S_ISDIR(mode)  ? "directory"
           : S_ISLNK(mode)  ? "symlink"
           : S_ISFIFO(mode) ? "fifo"
           : S_ISSOCK(mode) ? "socket"
                            : "device";
}

static json_t *entry_json(const struct file_attr *a)
{
    char when[TIME_TEXT_MAX], mode[8];
    time_rfc3339(a->mtime_ns > 0 ? (uint64_t)a->mtime_ns : 0, when);
    (void)snprintf(mode, sizeof(mode), "%04o", a->mode & 07777);
    json_t *j =
        json_pack("{s:o, s:s, s:I, s:s, s:s}", "name", mcp_text(a->name, strlen(a->name)), "type",
                  type_name(a->mode), "size", (json_int_t)a->size, "mode", mode, "modified", when);
    if (j && a->has & FILE_HAS_TARGET)
        (void)json_object_set_new(j, "target", mcp_text(a->target, strlen(a->target)));
    return j;
}

static int list_it(const struct tool_run *run, struct files *f, struct err *e)
{
    struct file_req q;
    struct proto_frame frame;
    json_t *all = json_array();
    bool cut = false;
    int r = request(run, FILE_OP_LIST, 0, &q, e);
    q.has |= FILE_HAS_LIMIT;
    q.limit = ENTRIES_MAX;
    if (r == 0)
        r = files_send(f, &q, e);
    while (r == 0) {
        struct file_attr a = {0};
        r = files_next(f, &frame, e);
        if (r == 0 && frame.type == PROTO_FILE_OK) {
            cut = proto_find_num(&frame, F_FILE_CUT, 0);
            break;
        }
        if (r == 0 && (frame.type != PROTO_FILE_ENTRY || file_attr_parse(&a, &frame) < 0 ||
                       json_array_size(all) >= ENTRIES_MAX))
            r = err_set(e, EPROTO, "the sandbox does not keep to the protocol");
        if (r == 0 && json_array_append_new(all, entry_json(&a)) < 0)
            r = err_oom(e);
    }
    if (r == 0)
        return put_json(json_pack("{s:o, s:b}", "entries", all, "truncated", cut), e);
    json_decref(all);
    return r;
}

static int read_child(void *arg)
{
    return with_files(arg, read_it);
}

static int write_child(void *arg)
{
    return with_files(arg, write_it);
}

static int list_child(void *arg)
{
    return with_files(arg, list_it);
}

/* --- in the server --------------------------------------------------------------------------- */

static int file_args(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e)
{
    int r = arg_sandbox(c, args, &run->name, e);
    return r < 0 ? r : arg_text(args, "path", true, &run->path, e);
}

static int encoding(const json_t *args, bool *base64, struct err *e)
{
    const char *text;
    int r = arg_text(args, "encoding", false, &text, e);
    if (r < 0)
        return r;
    *base64 = text && strcmp(text, "base64") == 0;
    if (text && !*base64 && strcmp(text, "utf-8") != 0)
        return err_set(e, EINVAL, "the argument 'encoding' must be utf-8 or base64");
    return 0;
}

int read_file_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                    struct err *e)
{
    bool base64;
    run->length = READ_DEFAULT;
    int r = file_args(c, args, run, e);
    if (r == 0)
        r = arg_number(args, "offset", 0, 1ULL << 62, &run->offset, e);
    if (r == 0)
        r = arg_number(args, "length", 1, MCP_FILE_MAX, &run->length, e);
    if (r == 0)
        r = encoding(args, &base64, e);
    run->fn = read_child;
    run->out_max = (size_t)run->length + sizeof(uint64_t);
    return r;
}

static json_t *encoded(const uint8_t *p, size_t n)
{
    AUTO_FREE char *text = malloc((n + 2) / 3 * 4 + 1);
    if (!text)
        return NULL;
    int len = EVP_EncodeBlock((unsigned char *)text, p, (int)n);
    return json_stringn(text, (size_t)len);
}

json_t *read_file_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                         int code, struct err *e)
{
    uint64_t size;
    bool base64 = false;
    if (code != 0 || buf_len(&j->out.kept) < sizeof(size)) {
        (void)tool_failed(j, code, e);
        return NULL;
    }
    memcpy(&size, buf_head(&j->out.kept), sizeof(size));
    const uint8_t *p = buf_head(&j->out.kept) + sizeof(size);
    size_t n = buf_len(&j->out.kept) - sizeof(size);
    (void)encoding(args, &base64, NULL);
    json_t *content = base64 ? encoded(p, n) : json_stringn((const char *)p, n);
    if (!content && !base64)
        (void)err_set(e, EILSEQ,
                      "'%.100s' is not UTF-8 text from %llu on: read it with encoding base64",
                      run->path, (unsigned long long)run->offset);
    return content ? json_pack("{s:o, s:I, s:b}", "content", content, "size", (json_int_t)size,
                               "truncated", size > run->offset && size - run->offset > n)
                   : NULL;
}

/* Strict: nothing but the alphabet, padded. */
static int decode(const char *text, size_t n, struct tool_run *run, struct err *e)
{
    AUTO_FREE uint8_t *to = malloc(n / 4 * 3 + 1);
    if (!to)
        return err_oom(e);
    int got = n % 4 == 0 && n > 0 ? EVP_DecodeBlock(to, (const unsigned char *)text, (int)n) : 0;
    if (n % 4 || got < 0 || (size_t)got != n / 4 * 3)
        return err_set(e, EINVAL, "the argument 'content' is not valid base64");
    run->n_input = (size_t)got - (n && text[n - 1] == '=') - (n && text[n - 2] == '=');
    run->input = (char *)steal_ptr(&to);
    return 0;
}

static int take_content(const json_t *args, struct tool_run *run, struct err *e)
{
    const json_t *content = json_object_get(args, "content");
    bool base64;
    int r = encoding(args, &base64, e);
    if (r < 0)
        return r;
    if (!json_is_string(content))
        return err_set(e, EINVAL, "the argument 'content' must be a string");
    size_t n = json_string_length(content);
    if (n > (base64 ? MCP_FILE_MAX / 3 * 4 + 4 : MCP_FILE_MAX))
        return err_set(e, E2BIG,
                       "the argument 'content' is too long: at most %d MiB, append the "
                       "rest",
                       MCP_FILE_MAX >> 20);
    if (base64)
        return decode(json_string_value(content), n, run, e);
    run->input = malloc(n + 1);
    if (!run->input)
        return err_oom(e);
    memcpy(run->input, json_string_value(content), n);
    run->n_input = n;
    return 0;
}

int write_file_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e)
{
    const char *mode;
    char *end = NULL;
    run->fn = write_child;
    run->mode = 0644;
    int r = file_args(c, args, run, e);
    if (r == 0)
        r = arg_text(args, "mode", false, &mode, e);
    if (r == 0 && mode) {
        run->mode = (uint32_t)strtoul(mode, &end, 8);
        if (strspn(mode, "01234567") != strlen(mode) || strlen(mode) < 3 || strlen(mode) > 4)
            r = err_set(e, EINVAL, "the argument 'mode' must be three or four octal digits");
    }
    if (r == 0)
        r = arg_flag(args, "append", &run->append, e);
    return r < 0 ? r : take_content(args, run, e);
}

static json_t *finish_json(const struct job *j, int code, struct err *e)
{
    json_t *result =
        code == 0 ? json_loadb((const char *)buf_head(&j->out.kept), buf_len(&j->out.kept), 0, NULL)
                  : NULL;
    if (!result)
        (void)tool_failed(j, code, e);
    return result;
}

json_t *write_file_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                          int code, struct err *e)
{
    (void)run;
    (void)args;
    return finish_json(j, code, e);
}

int list_files_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e)
{
    run->fn = list_child;
    run->out_max = LISTING_MAX;
    return file_args(c, args, run, e);
}

json_t *list_files_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                          int code, struct err *e)
{
    (void)run;
    (void)args;
    return finish_json(j, code, e);
}
