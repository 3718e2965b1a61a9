/* Whether and how to color terminal output. */
#pragma once

#include <stdbool.h>

#define SGR_BOLD "\x1b[1m"
#define SGR_DIM "\x1b[2m"
#define SGR_RED "\x1b[31m"
#define SGR_GREEN "\x1b[32m"
#define SGR_YELLOW "\x1b[33m"
#define SGR_BLUE "\x1b[34m"
#define SGR_MAGENTA "\x1b[35m"
#define SGR_CYAN "\x1b[36m"
#define SGR_RESET "\x1b[0m"

/* fd is a terminal, NO_COLOR is unset or empty, and TERM is not "dumb". */
bool term_colors(int fd);
/* The width of the terminal at fd, in columns; `otherwise` if it is not a terminal. */
unsigned term_columns(int fd, unsigned otherwise);
