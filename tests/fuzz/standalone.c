/* Runs a fuzz target without libFuzzer, so that every test run exercises it a little.
 *
 *   TARGET              a fixed number of pseudo-random inputs, the same each time
 *   TARGET FILE...      these inputs, to look at a finding
 */
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROUNDS = 200000, SIZE_MAX_ = 512 };

static uint64_t rng = 88172645463325252ULL;

static uint32_t next(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 32);
}

/* Small numbers and zeros are common in the formats under test; pure noise gets nowhere. */
static void one_round(uint8_t *in)
{
    size_t n = next() % SIZE_MAX_;
    for (size_t i = 0; i < n; i++) {
        uint32_t r = next();
        in[i] = r & 1 ? 0 : (r & 2 ? (uint8_t)(r >> 8) & 63 : (uint8_t)(r >> 8));
    }
    (void)LLVMFuzzerTestOneInput(in, n);
}

static int run_file(const char *path)
{
    static uint8_t in[1 << 20];
    FILE *f = fopen(path, "rb");
    if (!f)
        return 1;
    size_t n = fread(in, 1, sizeof(in), f);
    (void)fclose(f);
    (void)LLVMFuzzerTestOneInput(in, n);
    return 0;
}

int main(int argc, char **argv)
{
    uint8_t in[SIZE_MAX_];
    int bad = 0;
    for (int i = 1; i < argc; i++)
        bad |= run_file(argv[i]);
    for (int i = 0; argc == 1 && i < ROUNDS; i++)
        one_round(in);
    return bad;
}
