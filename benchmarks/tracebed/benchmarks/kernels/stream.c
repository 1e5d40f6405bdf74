/* The kernels of STREAM (McCalpin: "Memory Bandwidth and Machine Balance in Current High Performance Computers", IEEE
 * TCCA Newsletter, December 1995), written from their definition, and the unit of work of the application `stream`.
 *
 * Each function works on the elements first .. first+count-1 of its arrays, so threads can share arrays. Arrays do not
 * overlap.
 */
#include <math.h>
#include <stdint.h>

enum { COPY, SCALE, ADD, TRIAD };

/* Run one of the four kernels: c = a, b = s c, c = a + b, a = b + s c. */
void tracebed_stream(int function, double *restrict a, double *restrict b, double *restrict c, double scalar,
                     uint64_t first, uint64_t count)
{
    const uint64_t end = first + count;
    switch (function) {
    case COPY:
        for (uint64_t i = first; i < end; i++)
            c[i] = a[i];
        break;
    case SCALE:
        for (uint64_t i = first; i < end; i++)
            b[i] = scalar * c[i];
        break;
    case ADD:
        for (uint64_t i = first; i < end; i++)
            c[i] = a[i] + b[i];
        break;
    case TRIAD:
        for (uint64_t i = first; i < end; i++)
            a[i] = b[i] + scalar * c[i];
        break;
    }
}

/* Set elements to a value. */
void tracebed_stream_fill(double *array, double value, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++)
        array[i] = value;
}

/* Return the sum of the absolute differences between the elements and a value. */
double tracebed_stream_error(const double *array, double value, uint64_t first, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = first; i < first + count; i++)
        sum += fabs(array[i] - value);
    return sum;
}

#define BLOCK 8192 /* elements of a block: 64 KiB an array */
#define LANES 8    /* independent sums, so that the compiler can vectorize them */
#define SCALAR 3.0

/* Set element i of b to i modulo 1009, and of c to i modulo 2003. These are primes, so blocks differ. */
void tracebed_stream_pattern(double *b, double *c, uint64_t first, uint64_t count)
{
    for (uint64_t i = first; i < first + count; i++) {
        b[i] = (double)(i % 1009);
        c[i] = (double)(i % 2003);
    }
}

/* Do the units first .. first+count-1 of the application `stream` on arrays of `blocks` blocks, set by
 * `tracebed_stream_pattern`, and return their checksum, modulo 2^64.
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
