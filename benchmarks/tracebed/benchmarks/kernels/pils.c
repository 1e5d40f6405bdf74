/* The PILS kernel: a fixed amount of compute-bound work.
 *
 * One unit fills LANES 32-bit lanes from the number of the unit, mixes each lane by SWEEPS steps of xorshift
 * (Marsaglia 2003, shifts 13, 17, 5), and adds the lanes up. The lanes take 4 KiB and stay in the first-level cache.
 * The lanes are independent, so the compiler can vectorize the loops. Integer arithmetic gives the same sum on every
 * machine and in the NumPy kernel of __init__.py. The sum is returned so that the compiler cannot remove the work.
 */
#include <stdint.h>

#define LANES 1024
#define SWEEPS 16

/* Do units first .. first+units-1 and return the sum of all lanes, modulo 2^64. */
uint64_t tracebed_pils_units(uint64_t first, uint64_t units)
{
    uint32_t lanes[LANES];
    uint64_t sum = 0;
    for (uint64_t unit = first; unit < first + units; unit++) {
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
