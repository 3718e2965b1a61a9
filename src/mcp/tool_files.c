/* Tools for files. The child reads and writes them through the agent and answers on standard output:
 * read_file with the size of the file (8 bytes, as in memory) and then its bytes, the others with
 * JSON. */
#include "mcp/tools.h"

#include "client/files.h"
#include "mcp/message.h"
#include "sandbox/lifecycle.h"
#include "store/audit.h"
#include "util/cleanup.h"
#include "util/fs.h"
#include "util/json.h"
#include "util/loop.h"
#include "util/text.h"
#include "util/utf8.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
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
}

/* Runs fn with a stream to the sandbox, which is started first if necessary. */
static int with_files(const struct tool_run *run,
                      int (*fn)(const struct tool_run *run, struct files *f, struct err *e))
{
    struct files f;
    AUTO_STORE struct store s = STORE_NONE; /* the server's descriptors are closed here */
    struct err e = {0};
    bool started = false;
    uint64_t began = now_ns();
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
    if (s.home_fd >= 0)
        audit_done(&s, run->event, run->name, json_pack("{s:o}", "path", audit_text(run->path)),
                   began, r, &e);
    if (started)
        (void)sandbox_release(&s, run->name, NULL, NULL);
    return r < 0 ? complain(&e) : 0;
}

static int put_bytes(const void *p, size_t n, struct err *e)
{
    int r = write_all(STDOUT_FILENO, p, n);
    return r < 0 ? err_sys(e, -r, "cannot answer") : 0;
}

static int put_json(json_t *j, struct err *e)
{
    AUTO_JSON json_t *owned = j;
    AUTO_FREE char *text = owned ? json_dumps(owned, JSON_COMPACT) : NULL;
    return text ? put_bytes(text, strlen(text), e) : err_oom(e);
}

static int file_request(const struct tool_run *run, uint32_t op, uint32_t flags, struct file_req *q,
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
    int r = file_request(run, FILE_OP_READ, 0, &q, e);
    q.has |= FILE_HAS_OFFSET | FILE_HAS_LENGTH;
    q.offset = run->offset;
    q.length = run->length;
    if (r == 0)
        r = files_send(f, &q, e);
    if (r == 0)
        r = files_next(f, &frame, e);
    if (r == 0 && (frame.type != PROTO_FILE_ENTRY || file_attr_parse(&a, &frame) < 0))
        r = err_set(e, EPROTO, "the sandbox broke the protocol");
    if (r == 0)
        r = put_bytes(&a.size, sizeof(a.size), e);
    for (uint64_t got = 0; r == 0; got += frame.len) {
        r = files_next(f, &frame, e);
        if (r < 0 || frame.type == PROTO_FILE_OK)
            break;
        if (frame.type != PROTO_FILE_DATA || frame.len > run->length - got)
            r = err_set(e, EPROTO, "the sandbox broke the protocol");
        else
            r = put_bytes(frame.data, frame.len, e);
    }
    return r;
}

static int write_it(const struct tool_run *run, struct files *f, struct err *e)
{
    struct file_req q;
    struct file_attr a = {0};
    char block[WRITE_STEP];
    ssize_t n = 0;
    int r = file_request(run, FILE_OP_WRITE, FILE_PARENTS | (run->append ? FILE_APPEND : 0), &q, e);
    q.has |= FILE_HAS_MODE;
    q.mode = run->mode;
    if (r == 0)
        r = files_send(f, &q, e);
    while (r == 0 && !files_answered(f) && (n = read(STDIN_FILENO, block, sizeof(block))) > 0)
        r = files_send_data(f, block, (size_t)n, e);
    if (r == 0 && n < 0)
        r = err_sys(e, errno, "cannot read the content");
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
    AUTO_JSON json_t *all = json_array();
    bool cut = false;
    int r = file_request(run, FILE_OP_LIST, 0, &q, e);
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
            r = err_set(e, EPROTO, "the sandbox broke the protocol");
        if (r == 0 && json_array_append_new(all, entry_json(&a)) < 0)
            r = err_oom(e);
    }
    return r < 0 ? r : put_json(json_pack("{s:O, s:b}", "entries", all, "truncated", cut), e);
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
    run->path = arg_text(args, "path");
    return arg_sandbox(c, args, &run->name, e);
}

static bool is_base64(const json_t *args)
{
    return strcmp(arg_text(args, "encoding"), "base64") == 0;
}

int read_file_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                    struct err *e)
{
    run->fn = read_child;
    run->event = "read-file";
    run->offset = arg_number(args, "offset");
    run->length = arg_number(args, "length");
    run->out_max = (size_t)run->length + sizeof(uint64_t);
    return file_args(c, args, run, e);
}

static json_t *encode_base64(const uint8_t *p, size_t n)
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
    bool base64 = is_base64(args);
    if (buf_len(&j->out.kept) < sizeof(size)) {
        (void)err_set(e, EPROTO, "cannot read '%.100s': no answer", run->path);
        return NULL;
    }
    memcpy(&size, buf_head(&j->out.kept), sizeof(size));
    const uint8_t *p = buf_head(&j->out.kept) + sizeof(size);
    size_t n = buf_len(&j->out.kept) - sizeof(size);
    bool more = size > run->offset && size - run->offset > n;
    size_t begun = more && !base64 ? utf8_unfinished(p, n) : 0;
    if (begun < n) /* that character is left to the next call */
        n -= begun;
    json_t *content = base64 ? encode_base64(p, n) : json_stringn((const char *)p, n);
    if (!content && !base64)
        (void)err_set(e, EILSEQ,
                      "'%.100s' is not UTF-8 text at offset %llu: use the encoding base64",
                      run->path, (unsigned long long)run->offset);
    return content ? json_pack("{s:o, s:I, s:b}", "content", content, "size", (json_int_t)size,
                               "truncated", more)
                   : NULL;
}

/* Strict: only the alphabet, with padding. */
static int decode_base64(const char *text, size_t n, struct tool_run *run, struct err *e)
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
    bool base64 = is_base64(args);
    size_t n = json_string_length(content);
    if (n > (base64 ? MCP_FILE_MAX / 3 * 4 + 4 : MCP_FILE_MAX))
        return err_set(e, E2BIG,
                       "the argument 'content' is too long: write at most %d MiB and append the "
                       "rest",
                       MCP_FILE_MAX >> 20);
    if (base64)
        return decode_base64(json_string_value(content), n, run, e);
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
    const char *mode = arg_text(args, "mode");
    run->fn = write_child;
    run->event = "write-file";
    run->append = arg_flag(args, "append");
    run->mode = (uint32_t)strtoul(mode, NULL, 8);
    if (strspn(mode, "01234567") != strlen(mode) || strlen(mode) < 3 || strlen(mode) > 4)
        return err_set(e, EINVAL, "the argument 'mode' must be three or four octal digits");
    int r = file_args(c, args, run, e);
    return r < 0 ? r : take_content(args, run, e);
}

int list_files_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e)
{
    run->fn = list_child;
    run->event = "list-files";
    run->out_max = LISTING_MAX;
    return file_args(c, args, run, e);
}
