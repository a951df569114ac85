/* Preloaded into a process: moves its wall clock by the number of microseconds in a file, which the
 * test writes while the process runs. The file is named by LEASEHOLD_CLOCK_SHIFT. The clock is too
 * fast by LEASEHOLD_CLOCK_RATE millionths, from its start on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;
static int64_t rate, started;

static int64_t real_micros(void) {
    struct timespec now;
    /* Not by the C library, whose function this file replaces. */
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return now.tv_sec * INT64_C(1000000) + now.tv_nsec / 1000;
}

__attribute__((constructor)) static void map_shift(void) {
    const char *millionths = getenv("LEASEHOLD_CLOCK_RATE");
    rate = millionths ? atoll(millionths) : 0;
    started = real_micros();
    const char *path = getenv("LEASEHOLD_CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) shift = page;
}

static int64_t shifted_micros(void) {
    int64_t now = real_micros();
    return now + (now - started) * rate / 1000000 + (shift ? *shift : 0);
}

int clock_gettime(clockid_t id, struct timespec *time) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) {
        return (int)syscall(SYS_clock_gettime, id, time);
    }
    int64_t micros = shifted_micros();
    time->tv_sec = micros / 1000000;
    time->tv_nsec = micros % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    int64_t micros = shifted_micros();
    time->tv_sec = micros / 1000000;
    time->tv_usec = micros % 1000000;
    return 0;
}

time_t time(time_t *seconds) {
    time_t now = shifted_micros() / 1000000;
    if (seconds) *seconds = now;
    return now;
}
