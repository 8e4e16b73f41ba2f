// Preloaded into the engine to make the disk below $DISK_DIR behave as the file $DISK_CONTROL says at the moment.
// If the file is absent or empty, the disk works normally.
//
//   full N      this process can write N bytes there in total; then ENOSPC
//   read-only   EROFS for any change
//   failing     EIO for everything
//   stuck       writes wait until the file changes
//   mute        writes succeed, but are reported as EIO
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { WELL, FULL, READ_ONLY, FAILING, STUCK, MUTE };

static atomic_long used;

// Returns the current mode, and the remaining bytes.
static enum mode mode(long *fit) {
    const char *control = getenv("DISK_CONTROL");
    char text[64] = {0};
    int fd = control ? (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return WELL;
    if (syscall(SYS_read, fd, text, sizeof text - 1) < 0) text[0] = 0;
    syscall(SYS_close, fd);
    *fit = 0;
    if (sscanf(text, "full %ld", fit) == 1) return FULL;
    if (strncmp(text, "read-only", 9) == 0) return READ_ONLY;
    if (strncmp(text, "failing", 7) == 0) return FAILING;
    if (strncmp(text, "stuck", 5) == 0) return STUCK;
    if (strncmp(text, "mute", 4) == 0) return MUTE;
    return WELL;
}

static int is_below(const char *path) {
    const char *dir = getenv("DISK_DIR");
    size_t len = dir ? strlen(dir) : 0;
    return len && path && strncmp(path, dir, len) == 0 && (path[len] == '/' || path[len] == 0);
}

static int is_ours(int fd) {
    char link[32], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len <= 0) return 0;
    path[len] = 0;
    return is_below(path);
}

static int fail(int error) {
    errno = error;
    return -1;
}

// Decides on a write of `len` bytes: returns the number of bytes to write, or -1. `*muted` turns success into a failure.
static ssize_t allowed(int fd, size_t len, int *muted) {
    long fit;
    *muted = 0;
    if (!is_ours(fd)) return (ssize_t)len;
    enum mode now;
    while ((now = mode(&fit)) == STUCK) usleep(5000);
    switch (now) {
    case READ_ONLY: return fail(EROFS);
    case FAILING: return fail(EIO);
    case FULL: {
        long room = fit - atomic_load(&used);
        if (room <= 0) return fail(ENOSPC);
        if ((long)len > room) len = (size_t)room;
        break;
    }
    case MUTE: *muted = 1; break;
    default: break;
    }
    atomic_fetch_add(&used, (long)len);
    return (ssize_t)len;
}

// Decides on a call that changes something other than content.
static int refused(int is_one_of_ours, int needs_room) {
    long fit;
    if (!is_one_of_ours) return 0;
    switch (mode(&fit)) {
    case READ_ONLY: return fail(EROFS);
    case FAILING: return fail(EIO);
    case FULL: return needs_room && atomic_load(&used) >= fit ? fail(ENOSPC) : 0;
    default: return 0;
    }
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *buf, size_t len) {
    REAL(write);
    int muted;
    ssize_t part = allowed(fd, len, &muted);
    if (part < 0) return -1;
    ssize_t done = real(fd, buf, (size_t)part);
    return muted && done >= 0 ? fail(EIO) : done;
}

ssize_t writev(int fd, const struct iovec *iov, int count) {
    REAL(writev);
    if (!is_ours(fd)) return real(fd, iov, count);
    // a short write is allowed
    for (int i = 0; i < count; i++)
        if (iov[i].iov_len) return write(fd, iov[i].iov_base, iov[i].iov_len);
    return 0;
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off64_t at) {
    REAL(pwrite64);
    int muted;
    ssize_t part = allowed(fd, len, &muted);
    if (part < 0) return -1;
    ssize_t done = real(fd, buf, (size_t)part, at);
    return muted && done >= 0 ? fail(EIO) : done;
}

int fsync(int fd) {
    REAL(fsync);
    return refused(is_ours(fd), 1) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return refused(is_ours(fd), 1) ? -1 : real(fd);
}

int ftruncate64(int fd, off64_t len) {
    REAL(ftruncate64);
    struct stat st;
    int grows = fstat(fd, &st) == 0 && len > st.st_size;
    return refused(is_ours(fd), grows) ? -1 : real(fd, len);
}

int fallocate64(int fd, int how, off64_t at, off64_t len) {
    REAL(fallocate64);
    return refused(is_ours(fd), 1) ? -1 : real(fd, how, at, len);
}

int posix_fallocate64(int fd, off64_t at, off64_t len) {
    REAL(posix_fallocate64);
    return refused(is_ours(fd), 1) ? errno : real(fd, at, len);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    mode_t rights = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    long fit;
    if (is_below(path)) {
        int changes = (flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT;
        int is_new = flags & O_CREAT && access(path, F_OK) != 0;
        enum mode now = mode(&fit);
        if (now == FAILING) return fail(EIO);
        if (changes && now == READ_ONLY) return fail(EROFS);
        if (is_new && now == FULL && atomic_load(&used) >= fit) return fail(ENOSPC);
    }
    return real(path, flags, rights);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return refused(is_below(to), 1) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return refused(is_below(path), 0) ? -1 : real(path);
}

int mkdir(const char *path, mode_t rights) {
    REAL(mkdir);
    return refused(is_below(path), 1) ? -1 : real(path, rights);
}
