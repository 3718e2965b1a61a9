/* The progress of long work, in a page that this process shares with its children: one of them does
 * the work and counts, another shows it (the spinner of the command line). Until someone watches,
 * nothing is counted and there is no cost. The numbers are only for display.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts watching, in processes that are started after this. */
void progress_watch(void);

/* From any thread: work on a number of files begins; one of them is done; bytes have been moved. */
void progress_begin(uint64_t files);
void progress_file(void);
void progress_bytes(size_t n);

/* "120 of 4000 files, 35.2 MiB". False: there is nothing to show. */
bool progress_text(char *out, size_t size);
