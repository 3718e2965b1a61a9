/* The tools: what they are called, what they take, and what becomes of a call. */
#ifndef MSB_MCP_TOOLS_H
#define MSB_MCP_TOOLS_H

#include "mcp/job.h"
#include "mcp/server.h"
#include "util/err.h"
#include "util/strlist.h"

#include <jansson.h>

/* What a call needs of a child process. */
struct tool_run {
    struct strlist argv;  /* of msb, or */
    int (*fn)(void *arg); /* a function, which gets this struct */
    const struct mcp_config *config;
    const char *name, *path; /* of the sandbox, in it; belong to the arguments */
    uint64_t offset, length;
    uint32_t mode;
    bool append;
    char *input; /* malloc'd; its standard input */
    size_t n_input;
    size_t out_max;
    char made[SPEC_NAME_MAX + 1]; /* the sandbox that it makes; "" = none */
};

struct tool {
    const char *name;
    const char *describe; /* JSON: what tools/list says of it */
    /* Checks the arguments and says what to run. A failure is told to the model. */
    int (*start)(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                 struct err *e);
    /* Makes the structured result of what was run; NULL with *e set: it failed. */
    json_t *(*finish)(const struct tool_run *run, const json_t *args, const struct job *j, int code,
                      struct err *e);
};

extern const struct tool tools[];
extern const size_t n_tools;

const struct tool *tool_find(const char *name);
void tool_run_free(struct tool_run *run);

/* --- arguments: each fails with a sentence that names it --- */

int arg_text(const json_t *args, const char *key, bool required, const char **ret, struct err *e);
int arg_number(const json_t *args, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
               struct err *e);
int arg_flag(const json_t *args, const char *key, bool *ret, struct err *e);
/* "name": a sandbox that there is, and that may be touched. */
int arg_sandbox(const struct mcp_config *c, const json_t *args, const char **ret, struct err *e);

/* What a command that failed said about it, on one line. */
int tool_failed(const struct job *j, int code, struct err *e);

/* tool_files.c */
int read_file_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                    struct err *e);
json_t *read_file_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                         int code, struct err *e);
int write_file_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e);
json_t *write_file_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                          int code, struct err *e);
int list_files_start(const struct mcp_config *c, const json_t *args, struct tool_run *run,
                     struct err *e);
json_t *list_files_finish(const struct tool_run *run, const json_t *args, const struct job *j,
                          int code, struct err *e);

#endif
