// Preloaded into the engine to shift its clocks. The file $CLOCK_CONTROL has two numbers of seconds. The first shifts the
// wall clock (negative: back). The second advances the monotonic clock, which timers use.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

// Longest sleep in epoll_wait, in milliseconds, so that the engine notices due timers.
#define NAP 50

static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void find_syscall(void) {
    if (!real_syscall) real_syscall = dlsym(RTLD_NEXT, "syscall");
}

struct ahead {
    long wall, monotonic;
};

static struct ahead ahead(void) {
    const char *control = getenv("CLOCK_CONTROL");
    struct ahead seconds = {0, 0};
    char text[64] = {0};
    find_syscall();
    int fd = control ? (int)real_syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return seconds;
    if (real_syscall(SYS_read, fd, text, sizeof text - 1) < 0) text[0] = 0;
    real_syscall(SYS_close, fd);
    sscanf(text, "%ld %ld", &seconds.wall, &seconds.monotonic);
    return seconds;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (result != 0) return result;
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) now->tv_sec += ahead().wall;
    if (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE) now->tv_sec += ahead().monotonic;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int epoll_wait(int epoll, struct epoll_event *events, int max, int timeout) {
    static int (*real)(int, struct epoll_event *, int, int);
    if (!real) real = dlsym(RTLD_NEXT, "epoll_wait");
    return real(epoll, events, max, timeout < 0 || timeout > NAP ? NAP : timeout);
}

// Waits of Rust's threads end at a monotonic time, which must be converted to the kernel's clock.
long syscall(long number, ...) {
    long args[6];
    struct timespec until;
    va_list list;
    va_start(list, number);
    for (int at = 0; at < 6; at++) args[at] = va_arg(list, long);
    va_end(list);
    find_syscall();
    if (number == SYS_futex && (args[1] & ~FUTEX_PRIVATE_FLAG) == FUTEX_WAIT_BITSET && args[3]) {
        until = *(const struct timespec *)args[3];
        until.tv_sec -= ahead().monotonic;
        args[3] = (long)&until;
    }
    return real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}
