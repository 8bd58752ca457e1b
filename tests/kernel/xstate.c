/*
 * LD_PRELOAD for User-Mode Linux 6.1. It keeps a guest's floating-point registers in a buffer of fixed size, but
 * ptrace(PTRACE_SETREGSET, NT_X86_XSTATE) wants the processor's whole extended state, which AMX has grown beyond that
 * buffer. This stands between: it reads the state whole, hands out what fits, and writes it back whole.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { XSTATE_NOTE = 0x202, HEADER_AT = 512, AMX_COMPONENTS = 3 << 17 };

static unsigned char state[64 * 1024];

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static long xstate(int request, pid_t pid, struct iovec *guest)
{
	struct iovec whole = { state, sizeof(state) };
	uint64_t components;

	if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, XSTATE_NOTE, &whole) < 0)
		return -1;
	size_t common = smaller(guest->iov_len, whole.iov_len);
	if (request == PTRACE_GETREGSET) {
		memcpy(guest->iov_base, state, common);
		guest->iov_len = common;
		return 0;
	}
	memcpy(state, guest->iov_base, common);
	memcpy(&components, state + HEADER_AT, sizeof(components));
	components &= ~(uint64_t)AMX_COMPONENTS;
	memcpy(state + HEADER_AT, &components, sizeof(components));
	return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, XSTATE_NOTE, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	if ((request == PTRACE_GETREGSET || request == PTRACE_SETREGSET) && (long)address == XSTATE_NOTE)
		return xstate(request, pid, data);
	if (request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER) {
		/* The system call stores the word; the C library returns it. */
		long word;
		if (syscall(SYS_ptrace, request, pid, address, &word) < 0)
			return -1;
		errno = 0;
		return word;
	}
	return syscall(SYS_ptrace, request, pid, address, data);
}
