/* Reads passwords and secrets: from standard input, or from the terminal without echo. */
#pragma once

#include "util/err.h"

#include <stddef.h>

/* Each returns a malloc'd text that the caller wipes (password_free): 1 to `max` bytes, without
 * NUL and trailing newlines. `what` is for messages: "password". */
int password_from_stdin(const char *what, size_t max, char **ret, struct err *e);
int password_ask(const char *question, const char *what, size_t max, char **ret, struct err *e);
/* The same with echo, for text that is not secret. */
int name_ask(const char *question, const char *what, size_t max, char **ret, struct err *e);
void password_free(char *text);
