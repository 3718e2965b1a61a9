/* Multipart uploads that outlive the sync that began them: a record of each, in the workspace's
 * directory,
 *
 *     s3-uploads/HASH     the upload's ID, the key, what the object's metadata will be; then a line for each
 *                         part that the server has: "NUMBER ETAG SHA256"
 *
 * where HASH is that of the path. The next sync asks the server which parts it still has. A part
 * counts if the record has its ETag, and the file still contains, at that offset, what the record
 * says was sent. Any other error in the record only costs time.
 *
 * A completed push gives up uploads that it did not need.
 */
#include "s3/work.h"
#include "util/fs.h"
#include "util/parse.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define DIR_NAME "s3-uploads"

enum { RECORD_MAX = 1 << 20, NAME_HEX = 32 };

static void name_of(const char *path, char out[DIGEST_HEX_SIZE])
{
    digest_hex_of(path, strlen(path), out);
    out[NAME_HEX] = '\0';
}

/* Splits off the next line; NULL: there is no complete one. */
static char *take_line(char **at)
{
    char *line = *at, *end = line ? strchr(line, '\n') : NULL;
    if (!end)
        return NULL;
    *end = '\0';
    *at = end + 1;
    return line;
}

/* The beginning of a record; *at is where its parts are. The text is the caller's to free. */
struct record {
    char *text, *id, *key, *meta, *at;
};

static bool record_read(int dir, const char *name, struct record *ret)
{
    size_t n;
    *ret = (struct record){0};
    if (file_read_at(dir, name, RECORD_MAX, &ret->text, &n) < 0)
        return false;
    ret->at = ret->text;
    ret->id = take_line(&ret->at);
    ret->key = take_line(&ret->at);
    ret->meta = take_line(&ret->at);
    return ret->meta && *ret->id && *ret->key;
}

static void record_free(struct record *r)
{
    free(r->text);
}
#define AUTO_RECORD CLEANUP(record_free)

static char *join(const struct strlist *meta)
{
    AUTO_BUF struct buf b = {.limit = 4096};
    for (size_t i = 0; i < meta->n; i++)
        if (buf_printf(&b, " %s", meta->v[i]) < 0)
            return NULL;
    return buf_text(&b) ? strdup(buf_text(&b)) : NULL;
}

/* Finds the parts that both the record and the server have. */
static void match_parts(char *at, char (*there)[S3_ETAG_SIZE], struct s3_resume *ret)
{
    for (char *line; (line = take_line(&at));) {
        char *number = strsep(&line, " "), *etag = strsep(&line, " ");
        uint64_t i;
        if (!line || parse_u64(number, &i) < 0 || i < 1 || i > S3_PARTS_MAX ||
            strlen(line) >= sizeof(ret->part->sha) || strcmp(there[i - 1], etag) != 0)
            continue;
        struct s3_sent *sent = &ret->part[i - 1];
        (void)snprintf(sent->etag, sizeof(sent->etag), "%s", etag);
        (void)snprintf(sent->sha, sizeof(sent->sha), "%s", line);
    }
}

/* Resumes an upload that was begun for the same object. */
static int go_on(struct s3_work *w, int dir, const char *name, const char *key, const char *meta,
                 struct s3_upload *up, struct s3_resume *ret)
{
    AUTO_RECORD struct record rec = {0};
    AUTO_FREE char(*there)[S3_ETAG_SIZE] = calloc(S3_PARTS_MAX, sizeof(*there));
    if (!there || !record_read(dir, name, &rec))
        return -ENOENT;
    int r = s3_upload_adopt(rec.key, rec.id, up);
    if (r < 0) {
        s3_upload_free(up);
        return r;
    }
    if (strcmp(rec.key, key) != 0 || strcmp(rec.meta, meta) != 0)
        r = -ESTALE;
    if (r == 0)
        r = s3_upload_list(w->client, up, there, NULL);
    if (r == 0) {
        ret->fd = openat(dir, name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
        match_parts(rec.at, there, ret);
        return 0;
    }
    if (r != -ENOENT)
        s3_upload_abort(w->client, up);
    s3_upload_free(up);
    return r;
}

/* Without a record, the upload still works, but cannot be resumed. */
static int record_new(int dir, const char *name, const struct s3_upload *up, const char *meta)
{
    AUTO_FREE char *text = NULL;
    for (const char *p = up->id; *p; p++)
        if (*p <= 0x20 || *p >= 0x7f)
            return -1;
    if (asprintf(&text, "%s\n%s\n%s\n", up->id, up->key, meta) < 0) {
        text = NULL;
        return -1;
    }
    int r = file_replace_at(dir, name, text, strlen(text), 0600, false);
    return r < 0 ? -1 : openat(dir, name, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
}

int s3_resume_begin(struct s3_work *w, const char *path, const char *key,
                    const struct strlist *meta, struct s3_upload *up, struct s3_resume *ret,
                    struct err *e)
{
    char name[DIGEST_HEX_SIZE];
    AUTO_FREE char *text = join(meta);
    *ret = (struct s3_resume){.fd = -1, .part = calloc(S3_PARTS_MAX, sizeof(*ret->part))};
    if (!text || !ret->part)
        return err_oom(e);
    name_of(path, name);
    (void)mkdirat(w->dir, DIR_NAME, 0700);
    AUTO_CLOSE int dir = dir_open_at(w->dir, DIR_NAME);
    int r = dir < 0 ? dir : go_on(w, dir, name, key, text, up, ret);
    if (r == 0)
        return 0;
    r = s3_upload_begin(w->client, key, meta, up, e);
    if (r == 0 && dir >= 0)
        ret->fd = record_new(dir, name, up, text);
    return r;
}

bool s3_resume_has(const struct s3_resume *r, unsigned number, const char *sha,
                   struct s3_upload *up)
{
    const struct s3_sent *sent = number <= S3_PARTS_MAX ? &r->part[number - 1] : NULL;
    if (!sent || !sent->etag[0] || strcmp(sent->sha, sha) != 0)
        return false;
    memcpy(up->etag[number - 1], sent->etag, S3_ETAG_SIZE);
    return true;
}

void s3_resume_note(const struct s3_resume *r, unsigned number, const char *sha,
                    const struct s3_upload *up)
{
    char line[S3_ETAG_SIZE + 128];
    int n = snprintf(line, sizeof(line), "%u %s %s\n", number, up->etag[number - 1], sha);
    if (r->fd >= 0)
        (void)!write(r->fd, line, (size_t)n); /* in one write: an incomplete line is ignored */
}

void s3_resume_end(struct s3_work *w, const char *path, struct s3_upload *up, struct s3_resume *r,
                   int result)
{
    char name[DIGEST_HEX_SIZE];
    name_of(path, name);
    AUTO_CLOSE int dir = dir_open_at(w->dir, DIR_NAME);
    bool useless = result == -ESTALE; /* the server would refuse it again and again */
    if (result < 0 && (r->fd < 0 || useless))
        s3_upload_abort(w->client, up);
    if (dir >= 0 && (result == 0 || result == -ENOENT || useless))
        (void)unlinkat(dir, name, 0);
    close_fd(&r->fd);
    free(r->part);
    r->part = NULL;
}

bool s3_resume_staged(struct s3_work *w, const struct s3_step *s, const char *etag,
                      char id[S3_ID + 1])
{
    char name[DIGEST_HEX_SIZE], prefix[S3_KEY_SIZE];
    AUTO_RECORD struct record rec = {0};
    AUTO_CLOSE int dir = dir_open_at(w->dir, DIR_NAME);
    name_of(s->path, name);
    s3_staged_key(w->config, "", prefix);
    if (dir < 0 || !record_read(dir, name, &rec) || strncmp(rec.key, prefix, strlen(prefix)) != 0 ||
        strlen(rec.key + strlen(prefix)) != S3_ID)
        return false;
    const char *staged = rec.key + strlen(prefix);
    bool used = s->remote && s->remote->staged && strcmp(s->remote->staged, staged) == 0;
    /* It is used, or about to be removed, by us or soon by others. */
    if (used || strlist_has(&w->remote.leftover, staged) || !s3_mark_is_fresh(&w->remote, staged) ||
        !s3_id_replaces(staged, etag))
        return false;
    (void)snprintf(id, S3_ID + 1, "%s", staged);
    return true;
}

void s3_resume_give_up(struct s3_work *w)
{
    int fd = dir_open_at(w->dir, DIR_NAME);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        close_fd(&fd);
        return;
    }
    for (const struct dirent *x; (x = readdir(d));) {
        AUTO_RECORD struct record rec = {0};
        struct s3_upload up = {0};
        if (x->d_name[0] == '.')
            continue;
        if (record_read(fd, x->d_name, &rec) && s3_upload_adopt(rec.key, rec.id, &up) == 0)
            s3_upload_abort(w->client, &up);
        s3_upload_free(&up);
        (void)unlinkat(fd, x->d_name, 0);
    }
    (void)closedir(d);
    (void)unlinkat(w->dir, DIR_NAME, AT_REMOVEDIR);
}
