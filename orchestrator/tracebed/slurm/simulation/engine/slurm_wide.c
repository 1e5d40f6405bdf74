/* slurm.c for processors that count the bits of eight words at once: the same numbers, since no rule of arithmetic differs. */
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#pragma GCC target("avx512vpopcntdq,avx512vl,avx512bw,avx512dq,bmi,bmi2,lzcnt,popcnt")
#define WIDE
#include "slurm.c"
#endif
