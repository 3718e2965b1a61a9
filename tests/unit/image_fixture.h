/* Temporary directories, in-memory output files and fsck.erofs for the image tests. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes a directory under $TMPDIR and returns its path in a static buffer; `rm_tmpdir` removes the
 * last one with everything in it. */
const char *mk_tmpdir(void);
void rm_tmpdir(void);
/* "<tmpdir>/<name>" in one of a few static buffers. */
const char *tmp_path(const char *name);
void put_file(const char *path, const void *p, size_t n);
/* An anonymous file to write an image to. */
int mk_memfile(void);
/* Runs fsck.erofs on an open image when the machine has it; fails the test when it complains. */
void fsck_erofs(int fd);
/* Bytes that look random and depend on the seed alone. */
void fill_bytes(uint8_t *p, size_t n, uint32_t seed);
