/* Commands that were left running in a sandbox, and how they ended: run/commands.json. Like all of
 * run/ it is read as hostile input. */
#pragma once

#include "store/store.h"

enum {
    BACKGROUND_MAX = 16, /* the latest ones are kept */
    BACKGROUND_TEXT_MAX = 160,
    BACKGROUND_UNKNOWN = -1, /* an exit code: it ended with its sandbox */
};

struct background_command {
    uint32_t id; /* of its session, as in the log; 0 = none */
    bool tty, no_stdin;
    bool ended;
    int exit_code;                      /* of one that ended: 0..255, or BACKGROUND_UNKNOWN */
    uint64_t started_ns, ended_ns;      /* CLOCK_REALTIME */
    char text[BACKGROUND_TEXT_MAX + 1]; /* its words, truncated; no control characters */
};

struct background {
    struct background_command v[BACKGROUND_MAX]; /* by id */
    size_t n;
};

/* Adds a word to a command's text, which begins empty. */
void background_add_word(char text[BACKGROUND_TEXT_MAX + 1], const char *word, size_t n);

/* In the monitor: a command was started, or has ended. */
void background_note(struct background *b, const struct background_command *c);
int background_save(int run_fd, const struct background *b);

/* Loads the commands of the sandbox's current run, or of its last one. None if they cannot be read. */
void background_load(const struct store *s, const struct sandbox *sb, struct background *ret);
/* The latest of them, or, on request, the latest running one; NULL if there is none. */
const struct background_command *background_latest(const struct background *b, bool running);
