/* The tools: tools.json describes them and their arguments; this is what a call runs. */
#pragma once

#include "mcp/job.h"
#include "mcp/server.h"
#include "util/err.h"
#include "util/strlist.h"

#include <jansson.h>

/* What a call runs in a child process. */
struct tool_run {
    struct strlist argv;  /* of msb, or */
    int (*fn)(void *arg); /* a function, which gets this struct */
    const struct mcp_config *config;
    const char *name;  /* of the sandbox */
    const char *path;  /* in the sandbox; both are not owned */
    const char *event; /* of the audit log, if it is about a file */
    uint64_t offset, length;
    uint32_t mode;
    bool append;
    bool cached;     /* create: the image must be in the cache */
    bool *timed_out; /* exec: the child says so, in memory that it shares */
    char *input;     /* malloc'd; its standard input */
    size_t n_input;
    size_t out_max;
    char made[SPEC_NAME_MAX + 1]; /* the sandbox that it creates; "" = none */
    struct mcp_share share;       /* ... and what that takes */
};

struct tool {
    const char *name;
    /* Says what to run; the arguments have been checked (schema.h). A failure is reported to the
     * model. */
    int (*start)(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                 struct err *e);
    /* Makes the structured result; NULL with *e set: it failed. */
    json_t *(*finish)(const struct tool_run *run, const json_t *args, const struct job *j, int code,
                      struct err *e);
    const char *raw; /* the argument that may contain any character, NUL included; NULL = none */
    bool any_code;   /* a nonzero exit code is also a result */
};

const struct tool *tool_find(const char *name);
/* The content of tools.json, which tools/list returns; NULL when out of memory. Not owned. */
json_t *tools_described(void);
/* Checks the arguments, adds defaults, and says what to run; run->config must be set. */
int tool_start(const struct tool *t, json_t *args, struct tool_run *run, struct err *e);
json_t *tool_finish(const struct tool *t, const json_t *args, const struct tool_run *run,
                    const struct job *j, int code, struct err *e);
void tool_run_free(struct tool_run *run);

/* --- arguments, after they are checked --- */

const char *arg_text(const json_t *args, const char *key); /* NULL when missing */
uint64_t arg_number(const json_t *args, const char *key);  /* 0 when missing */
bool arg_flag(const json_t *args, const char *key);        /* false when missing */
/* "name": a sandbox that exists and that the client may use. */
int arg_sandbox(const struct mcp_config *c, const json_t *args, const char **ret, struct err *e);

/* tool_files.c */
int read_file_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                    struct err *e);
json_t *read_file_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                         int code, struct err *e);
int write_file_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e);
int list_files_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e);
