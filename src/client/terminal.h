/* The user's terminal: raw mode that is always undone, and its size.
 *
 * There is one controlling terminal, so there is one saved state, and it is restored on every exit
 * that a process can catch: terminal_restore(), exit(), abort() and the signals of a crash. After
 * SIGKILL only `stty sane` helps.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Puts the terminal into raw mode, remembering its previous mode. -ENOTTY if it is not a
 * terminal. */
int terminal_raw(int fd);
/* Restores the mode; does nothing if it is not raw. Safe in a signal handler. */
void terminal_restore(void);

/* Stops this process as the terminal's suspend key would, with the terminal as the shell expects
 * it; returns in raw mode (if that was the mode) once the user has continued us. */
void terminal_suspend(void);
/* After SIGCONT: the shell has used the terminal meanwhile, so set raw mode again. */
void terminal_resumed(void);

/* The size of the first of stdin, stdout, stderr that is a terminal; false if none is. */
bool terminal_size(uint32_t *rows, uint32_t *cols);
