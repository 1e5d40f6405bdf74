/* The PILS kernel: a fixed amount of work that no memory slows down.
 *
 * One unit fills LANES 32-bit lanes (4 KiB: they stay in the first-level cache) from the number of the unit, mixes
 * each by SWEEPS steps of xorshift (Marsaglia 2003, shifts 13, 17, 5), and adds them up. The lanes do not depend on
 * each other, so that the compiler makes vectors of them. Integers, so that every machine and the NumPy kernel of
 * __init__.py come to the same sum; that somebody reads the sum keeps the compiler from leaving the work out.
 */
#include <stdint.h>

#define LANES 1024
#define SWEEPS 16

/* Do units 0 .. units-1 and return the sum of all lanes, modulo 2^64. */
uint64_t tracebed_pils(uint64_t units)
{
    uint32_t lanes[LANES];
    uint64_t sum = 0;
    for (uint64_t unit = 0; unit < units; unit++) {
        for (uint32_t i = 0; i < LANES; i++)
            lanes[i] = (uint32_t)unit * UINT32_C(2654435769) + i + 1;
        for (int sweep = 0; sweep < SWEEPS; sweep++)
            for (uint32_t i = 0; i < LANES; i++) {
                uint32_t x = lanes[i];
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                lanes[i] = x;
            }
        for (uint32_t i = 0; i < LANES; i++)
            sum += lanes[i];
    }
    return sum;
}
