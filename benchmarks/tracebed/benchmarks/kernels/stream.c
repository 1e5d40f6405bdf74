/* The unit of work of the application `stream`: a triad on a block, as in STREAM (McCalpin: "Memory Bandwidth and Machine
 * Balance in Current High Performance Computers", IEEE TCCA Newsletter, December 1995), written from its definition.
 *
 * Each function works on the elements or units first .. first+count-1, so threads can share arrays. Arrays do not
 * overlap.
 */
#include <stdint.h>

#define BLOCK 8192 /* elements of a block: 64 KiB an array */
#define LANES 8    /* independent sums, so that the compiler can vectorize them */
#define SCALAR 3.0

/* Set element i of a to 0, of b to i modulo 1009, and of c to i modulo 2003. These are primes, so blocks differ. */
void tracebed_stream_set(double *a, double *b, double *c, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++) {
        a[i] = 0;
        b[i] = (double)(i % 1009);
        c[i] = (double)(i % 2003);
    }
}

/* Do the units first .. first+count-1 of the application `stream` on arrays of `blocks` blocks, set by
 * `tracebed_stream_set`, and return their checksum, modulo 2^64.
 *
 * A unit is the triad on one block. Its checksum is its number plus 1, times the sum of the results. All values are
 * integers far below 2^53, so the sum is exact in any order. The block of a unit follows from the number of the unit by
 * Fibonacci hashing: threads with neighboring shares work on distant blocks. Threads that meet in a block write the
 * same values.
 */
uint64_t tracebed_stream_units(double *restrict a, const double *restrict b, const double *restrict c, uint64_t blocks,
                               uint64_t first, uint64_t count)
{
    uint64_t checksum = 0;
    for (uint64_t unit = first; unit < first + count; unit++) {
        const uint64_t start = ((unit * UINT64_C(0x9E3779B97F4A7C15) >> 32) * blocks >> 32) * BLOCK;
        double sums[LANES] = {0};
        for (uint64_t i = start; i < start + BLOCK; i += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                const double value = b[i + lane] + SCALAR * c[i + lane];
                a[i + lane] = value;
                sums[lane] += value;
            }
        double sum = 0;
        for (int lane = 0; lane < LANES; lane++)
            sum += sums[lane];
        checksum += (unit + 1) * (uint64_t)sum;
    }
    return checksum;
}
