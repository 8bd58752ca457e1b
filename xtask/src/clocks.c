/* A wall clock that jumps, for `cargo x clocks`: loaded before the C library.
 *
 * It has a random time between 1960 and 2160 at each reading. The monotonic clock is the kernel's:
 * the standard library waits for absolute times of it. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define YEAR 31556952LL

static _Atomic uint64_t state = SEED;

/* SplitMix64. */
static uint64_t draw(void)
{
	uint64_t x = atomic_fetch_add(&state, 0x9e3779b97f4a7c15u) + 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	int result = syscall(SYS_clock_gettime, clock, time);

	if (result != 0)
		return result;
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
		time->tv_sec = (int64_t)(draw() % (200 * YEAR)) - 10 * YEAR;
	return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	time->tv_sec = now.tv_sec;
	time->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *out)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (out)
		*out = now.tv_sec;
	return now.tv_sec;
}
