/* `msb docker`, and msb invoked as `docker`: the part of Docker's command line that programs use,
 * on top of msb's own verbs.
 *
 *   docker.c  subcommands; verbs for containers, one after another, and for images
 *   flags.c   the table of options: what each becomes, or why it is refused
 *   run.c     run, create, start, exec
 *   ps.c      ps
 *   show.c    inspect, images, version, info
 *   print.c   templates, tables, durations
 *   ids.c     containers by name, ID or beginning of an ID
 *   images.c  the same for images
 *
 * A container is a sandbox. Its ID is made from its name and the time of its creation: nothing is
 * stored, and every sandbox has one. Exit codes are Docker's: 125 when a container could not be
 * run, 126 and 127 as everywhere, else the command's; 1 for all other failures.
 */
#pragma once

#include "image/oci/digest.h"
#include "store/store.h"
#include "util/strlist.h"

#include <jansson.h>

enum { DOCKER_FAILED = 125, DOCKER_ID_SIZE = 65, DOCKER_SHORT_ID = 12 };
/* The version of Docker whose command line this imitates. */
#define DOCKER_VERSION "27.0.0"

/* Subcommands, as bits: options belong to several. */
enum docker_verb {
    DOCKER_RUN = 1 << 0,
    DOCKER_CREATE = 1 << 1,
    DOCKER_EXEC = 1 << 2,
    DOCKER_START = 1 << 3,
    DOCKER_STOP = 1 << 4,
    DOCKER_KILL = 1 << 5,
    DOCKER_RM = 1 << 6,
    DOCKER_PS = 1 << 7,
    DOCKER_INSPECT = 1 << 8,
    DOCKER_LOGS = 1 << 9,
    DOCKER_CP = 1 << 10,
    DOCKER_PULL = 1 << 11,
    DOCKER_IMAGES = 1 << 12,
    DOCKER_WAIT = 1 << 13,
    DOCKER_SYSTEM = 1 << 14, /* version, info */
    DOCKER_RMI = 1 << 15,
    DOCKER_LOAD = 1 << 16,
    DOCKER_SAVE = 1 << 17,
    DOCKER_RESTART = 1 << 18,
    DOCKER_COMMIT = 1 << 19,
    DOCKER_TAG = 1 << 20,
    DOCKER_PUSH = 1 << 21,
    DOCKER_LOGIN = 1 << 22,
    DOCKER_LOGOUT = 1 << 23,
};

struct docker_kept {
    const char *name, *value;
};

/* A command line, translated. */
struct docker_cmd {
    const char *name;    /* of the subcommand */
    unsigned verb;       /* enum docker_verb */
    struct strlist opts; /* for msb's verb */
    struct docker_kept *kept;
    size_t n_kept; /* options that the subcommand itself handles */
    char **words;  /* the remaining words */
    size_t n_words;
    bool image, container; /* `docker image inspect`, `docker container inspect` */
};

/* Options of d->verb, from argv on. With `first`, the first word that is not an option ends them. */
int docker_parse(struct docker_cmd *d, char **argv, size_t n, bool first, struct err *e);
void docker_cmd_free(struct docker_cmd *d);
bool docker_has(const struct docker_cmd *d, const char *name);
const char *docker_get(const struct docker_cmd *d, const char *name); /* NULL: not given */

/* Runs a verb of msb in this process; returns its exit code. */
int docker_call(const struct strlist *argv);
/* The same without its output, which differs from Docker's. */
int docker_call_silently(const struct strlist *argv);
/* Begins such a call: the words (NULL-terminated), and the translated options. */
int docker_begin(struct strlist *argv, const struct docker_cmd *d, const char *const *words);

/* The 64 digits of a sandbox. */
void docker_id(const char *name, uint64_t created_ns, char out[DOCKER_ID_SIZE]);
/* Opens the container that `word` names. -ENOENT, with Docker's message, if it names none or
 * several. */
int docker_open(const struct store *s, const char *word, struct sandbox *ret, struct err *e);
/* The first argument of a command that takes one container. */
int docker_open_first(const struct docker_cmd *d, struct sandbox *ret, struct err *e);
bool docker_is_running(const struct sandbox *sb);

/* "sha256:..." of an image's configuration. */
struct image_record;
void docker_image_id(const struct image_record *r, char out[DIGEST_TEXT_SIZE]);
/* What msb's verbs call an image: if `word` is an ID, or at least the first 12 digits of one, all
 * the image's names; else, and if an image has that name, `word` itself. */
int docker_image_names(const char *word, struct strlist *ret, struct err *e);
int docker_find_image(const char *word, struct image_record *ret, struct err *e);

int docker_run(struct docker_cmd *d);
int docker_create(struct docker_cmd *d);
int docker_start(struct docker_cmd *d); /* attached; else: */
int docker_start_one(const struct sandbox *sb);
int docker_exec(struct docker_cmd *d);
int docker_ps(struct docker_cmd *d);
int docker_inspect(struct docker_cmd *d);
int docker_images(struct docker_cmd *d);
int docker_print_image_id(const char *name);
int docker_version(struct docker_cmd *d);
int docker_info(struct docker_cmd *d);

/* What `ps` and `inspect` show about a container besides its spec. */
struct docker_look {
    char id[DOCKER_ID_SIZE], status[96]; /* "Up 5 minutes" */
    bool running;
    int exit_code; /* of its command, if that has ended */
    uint64_t ended_ns;
};
void docker_look(const struct store *s, const struct sandbox *sb, struct docker_look *l);

int docker_show_fail(const struct err *e);
int docker_daemon_fail(const struct err *e); /* as if a daemon had reported it */
/* Prints each value in a list with a template, one per line; takes the list. */
int docker_print(const char *format, json_t *values);
/* Prints as -q, --format TEMPLATE, --format 'table TEMPLATE' or --format json asks for, or in `usual`
 * columns; takes both objects. `headers` has the titles of the columns in place of a row's values. */
int docker_print_rows(const struct docker_cmd *d, const char *usual, json_t *headers, json_t *rows);
/* "5 minutes", in Docker's words; how long ago that was, which is never negative. */
void docker_duration(uint64_t ns, char out[48]);
uint64_t docker_since(uint64_t when_ns);
json_t *docker_ago(uint64_t when_ns);
/* Words joined by a separator. */
json_t *docker_joined(char *const *list, const char *sep);
