/* Lets the User-Mode Linux kernel of Debian 12 run on processors with AMX.
 *
 * Linux takes a process's extended registers (PTRACE_SETREGSET, NT_X86_XSTATE) only whole. That kernel has room for
 * 2,696 bytes of them, all there was up to AVX-512; with AMX it is 11,008, and its first process dies of EFAULT. Loaded
 * with LD_PRELOAD, this puts what it has into a whole set and leaves the rest, which nothing in there uses, as it is.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Not on the stack, which is a small one of that kernel's; its one processor makes one call at a time. */
static char whole[64 << 10];

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    va_start(rest, request);
    pid_t pid = va_arg(rest, pid_t);
    void *address = va_arg(rest, void *);
    void *data = va_arg(rest, void *);
    va_end(rest);

    if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) {
        long word;
        long got = syscall(SYS_ptrace, request, pid, address, &word);
        if (got < 0)
            return got;
        errno = 0;
        return word;
    }
    long done = syscall(SYS_ptrace, request, pid, address, data);
    if (done == 0 || errno != EFAULT || request != PTRACE_SETREGSET || (unsigned long)address != NT_X86_XSTATE)
        return done;

    const struct iovec *part = data;
    struct iovec all = { whole, sizeof whole };
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, address, &all) < 0)
        return -1;
    if (part->iov_len > all.iov_len) {
        errno = EFAULT;
        return -1;
    }
    memcpy(whole, part->iov_base, part->iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, address, &all);
}
