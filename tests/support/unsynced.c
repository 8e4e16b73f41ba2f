// Preloaded into the engine: records how much of each file below $UNSYNCED_DIR was synced to the disk. After a kill -9 the
// test truncates the files to that length, as after a power failure.
//
// Every successful fsync or fdatasync adds a line "INODE END" to $UNSYNCED_LOG. END is the written length of the file when
// the call began. Files are identified by inode, so a rename changes nothing.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FILES_MAX = 65536 };

static struct { dev_t dev; ino_t ino; off_t end; } files[FILES_MAX];
static int files_len;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// Returns the entry of an open file, or -1 for a file elsewhere. The mutex must be held.
static int find(int fd) {
    static __thread char link[32], path[4096];
    const char *dir = getenv("UNSYNCED_DIR");
    struct stat st;
    if (!dir || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return -1;
    for (int i = 0; i < files_len; i++)
        if (files[i].ino == st.st_ino && files[i].dev == st.st_dev) return i;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len <= 0 || strncmp(path, dir, strlen(dir)) != 0 || files_len == FILES_MAX) return -1;
    files[files_len].dev = st.st_dev;
    files[files_len].ino = st.st_ino;
    files[files_len].end = 0;
    return files_len++;
}

static void written(int fd, off_t end) {
    pthread_mutex_lock(&mutex);
    int i = find(fd);
    struct stat st;
    if (i >= 0 && fstat(fd, &st) == 0) {
        // A file shorter than its written length was truncated, or is a new file with a reused inode.
        if (files[i].end < end || st.st_size < files[i].end) files[i].end = end;
    }
    pthread_mutex_unlock(&mutex);
}

static void written_here(int fd, ssize_t len) {
    if (len > 0) written(fd, lseek(fd, 0, SEEK_CUR));
}

static off_t end_of(int fd) {
    pthread_mutex_lock(&mutex);
    int i = find(fd);
    off_t end = i < 0 ? -1 : files[i].end;
    pthread_mutex_unlock(&mutex);
    return end;
}

static void synced(int fd, off_t end) {
    const char *log = getenv("UNSYNCED_LOG");
    struct stat st;
    if (!log || end < 0 || fstat(fd, &st) != 0) return;
    int out = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out < 0) return;
    char line[64];
    int len = snprintf(line, sizeof line, "%lu %ld\n", (unsigned long)st.st_ino, (long)end);
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    real(out, line, len);
    close(out);
}

ssize_t write(int fd, const void *buf, size_t len) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    ssize_t done = real(fd, buf, len);
    if (fd > 2) written_here(fd, done);
    return done;
}

ssize_t writev(int fd, const struct iovec *iov, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = dlsym(RTLD_NEXT, "writev");
    ssize_t done = real(fd, iov, count);
    if (fd > 2) written_here(fd, done);
    return done;
}

ssize_t pwrite64(int fd, const void *buf, size_t len, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    ssize_t done = real(fd, buf, len, at);
    if (done > 0) written(fd, at + done);
    return done;
}

// Simulates a slow disk: data written during the wait are unsynced, and can be lost.
static void wait_for_disk(void) {
    const char *delay = getenv("UNSYNCED_DELAY_MS");
    if (delay) usleep(1000 * (useconds_t)atoi(delay));
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    off_t end = end_of(fd);
    if (end >= 0) wait_for_disk();
    int result = real(fd);
    if (result == 0) synced(fd, end);
    return result;
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    off_t end = end_of(fd);
    if (end >= 0) wait_for_disk();
    int result = real(fd);
    if (result == 0) synced(fd, end);
    return result;
}
